"""``save_pretrained`` and ``from_pretrained`` for drafters and heads.

The names are those of the Hugging Face libraries, the files too: config.json and
model.safetensors, tensors under published names. Unlike their mixins these methods
read local folders only, are strict about every tensor, and know no pickles.
"""

from pathlib import Path
from typing import Self

import torch
from torch import nn

from xpress_lab.errors import LabError
from xpress_lab.files import read_json, read_tensors, write_checkpoint


class Pretrained:
    """Mixin for modules that :meth:`settings` can rebuild."""

    architecture: str | None = None  # its name in config.json; else the class's

    def settings(self) -> dict:
        """Arguments that make an empty module of the same sizes; JSON values."""
        raise NotImplementedError

    @classmethod
    def of_settings(cls, settings: dict) -> Self:
        """An empty module from :meth:`settings`."""
        return cls(**settings)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config.json and model.safetensors, in the module's own dtype."""
        named = {"architectures": [self.architecture or type(self).__name__]}
        write_checkpoint(Path(folder), published(self), named | self.settings())

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, dtype: torch.dtype | None = None
    ) -> Self:
        """Read what :meth:`save_pretrained` wrote.

        Args:
            dtype: by default that of the stored tensors.
        """
        folder = Path(folder)
        settings = read_json(folder / "config.json")
        named = (settings.pop("architectures", None) or ["nothing known"])[0]
        wanted = cls.architecture or cls.__name__
        if named != wanted:
            raise LabError(f"{folder} holds {named}, not {wanted}.")
        try:
            module = cls.of_settings(settings)
        except (TypeError, ValueError, RuntimeError) as error:
            raise LabError(
                f"{folder}: config.json does not describe a {cls.__name__} ({error})."
            ) from error
        tensors = read_tensors(folder)
        stored = next(iter(tensors.values())).dtype if tensors else torch.float32
        module.to(dtype or stored)
        load_strictly(module, tensors, folder)
        return module.eval()


def published(module: nn.Module) -> dict[str, torch.Tensor]:
    """A module's state dict under published names."""
    named = getattr(module, "published_state", module.state_dict)
    return named()


def load_strictly(
    module: nn.Module, tensors: dict[str, torch.Tensor], where: Path
) -> None:
    """Fill a module after checking every name and shape."""
    expected = {name: value.shape for name, value in published(module).items()}
    check_tensors(expected, tensors, where)
    load = getattr(module, "load_published_state", module.load_state_dict)
    load(tensors)


def check_tensors(expected: dict, found: dict, where: Path) -> None:
    """Nothing missing, nothing unexpected, every shape right; names the first few."""
    wrong = {
        "missing": [n for n in expected if n not in found],
        "unexpected": [n for n in found if n not in expected],
        "of another size": [
            f"{n} {list(found[n].shape)}, not {list(shape)}"
            for n, shape in expected.items()
            if n in found and found[n].shape != shape
        ],
    }
    told = [
        f"{what}: {', '.join(names[:2])}{' ...' if len(names) > 2 else ''}"
        for what, names in wrong.items()
        if names
    ]
    if told:
        raise LabError(f"Tensors in {where} do not fit its config: {'; '.join(told)}.")
