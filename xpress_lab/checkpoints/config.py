"""A published config.json, asked key by key; what it does not say is never guessed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xpress_lab.errors import LabError

# Parts of other drafters (Domino, DFlash2, Gemma, EAGLE-3.1) that change what the
# tensors mean.
FOREIGN_KEYS = (
    "attention_bias",
    "conv_kernel_size",
    "fc_norm",
    "fc_norm_perslice",
    "final_logit_softcapping",
    "projector_type",
    "selector_rank",
    "shift_label",
)


@dataclass(frozen=True)
class Config:
    """The settings of a checkpoint.

    where: folder or file, for messages. values: the table as read.
    """

    where: Path
    values: dict[str, Any]

    def inner(self, name: str) -> dict:
        """A table inside the table; empty where there is none."""
        table = self.values.get(name) or {}
        if not isinstance(table, dict):
            raise LabError(f"{self.where}: {name} is {table!r}, not a table.")
        return table

    def need(self, key: str, kind: type = int, inside: tuple[str, ...] = ()):
        """A value that must be there, the same in every place that has it.

        Args:
            inside: inner tables that may hold the key instead of the outer one.
        """
        places = [self.values, *map(self.inner, inside)]
        found = [place[key] for place in places if key in place]
        if not found:
            raise LabError(f"{self.where}: config.json does not say {key!r}.")
        if any(value != found[0] for value in found):
            raise LabError(f"{self.where}: config.json gives {key!r} as {found}.")
        kinds = (int, float) if kind is float else kind
        is_bool = isinstance(found[0], bool)
        if is_bool != (kind is bool) or not isinstance(found[0], kinds):
            raise LabError(
                f"{self.where}: {key} is {found[0]!r}, not of kind {kind.__name__}."
            )
        return found[0]

    def at_least(self, least: int, key: str, inside: tuple[str, ...] = ()) -> int:
        """A whole number of ``least`` or more."""
        value = self.need(key, inside=inside)
        if value < least:
            raise LabError(
                f"{self.where}: {key} is {value}, but must be {least} or more."
            )
        return value

    def same(self, key: str, value: int, theirs: int, whose: str) -> None:
        """Raise unless a setting equals that of something else."""
        if value != theirs:
            raise LabError(
                f"{self.where}: {key} is {value}, the {whose}'s is {theirs}."
            )

    def refuse_unsupported(self) -> None:
        """What published configs may ask for and our drafter does not compute."""
        kinds = set(self.values.get("layer_types") or ()) - {"full_attention"}
        if kinds:
            raise LabError(
                f"{self.where}: layers of kind {', '.join(kinds)} are not supported."
            )
        activation = self.values.get("hidden_act", "silu")
        if activation != "silu":
            raise LabError(
                f"{self.where}: hidden_act {activation!r} is not supported: "
                "drafters compute 'silu'."
            )
        for key in ("rope_scaling", "rope_parameters"):
            rope = self.inner(key)
            if rope.get("rope_type", rope.get("type", "default")) != "default":
                raise LabError(
                    f"{self.where}: {key} {rope} is not supported, only 'default'."
                )
        for place in (self.values, self.inner("dflash_config")):
            for key in FOREIGN_KEYS:
                if place.get(key):
                    raise LabError(
                        f"{self.where}: {key} {place[key]!r} is not supported: "
                        "this is another kind of drafter."
                    )
