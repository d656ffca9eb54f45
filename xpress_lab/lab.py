"""The Python entry: a tier loaded, and texts out of it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from xpress_lab.batching import decode_batch
from xpress_lab.block_method import BlockMethod
from xpress_lab.checkpoints import (
    CONFIDENCE,
    Arm,
    load_arm,
    load_confidence,
)
from xpress_lab.decoding import Generation, decode
from xpress_lab.devices import memory, pick_device, pick_dtype
from xpress_lab.eagle_method import EagleMethod
from xpress_lab.errors import LabError
from xpress_lab.methods import Method, PlainDecoding
from xpress_lab.ngram import NGram, load_ngram
from xpress_lab.packed import PackedLinear, pack
from xpress_lab.presets import BLOCKS, METHODS, PretrainedTarget, Tier, get_tier
from xpress_lab.replayed import ReplayedMethod, ReplayedTarget
from xpress_lab.sampling import Sampling
from xpress_lab.scheduling import RoundCosts
from xpress_lab.spoken import Spoken
from xpress_lab.target import Target, weight_bytes
from xpress_lab.tree_methods import check_rescoring, tree_method, uses_passes

DEFAULT_PASSES = 6
TENSORS = "model.safetensors"
KNOWN_BY = ("config.json", TENSORS)  # one of which every checkpoint folder has


class Lab:
    """A target and its trained arms; arms are read from disk when first asked for.

    Args:
        replay: record calls and replay them; by default on CUDA, where it is quicker.
    """

    def __init__(
        self,
        tier: Tier,
        folder: Path,
        device: torch.device,
        dtype: torch.dtype,
        replay: bool | None = None,
    ):
        self.tier, self.folder = tier, folder
        check_target(tier, device, dtype)
        replay = device.type == "cuda" if replay is None else replay
        kind = ReplayedTarget if replay else Target
        self.target = kind.load(tier.target_folder(folder), device, dtype)
        room = memory(device)
        if room is None or 2 * self.target.model.get_memory_footprint() < room:
            pack(self.target.model)
        self._arms: dict[str, Arm] = {}
        self._methods: dict[tuple, Method] = {}
        self._ngram: NGram | None = None

    @property
    def target_name(self) -> str:
        """Hub id of the target, or the folder where it lies."""
        named = getattr(self.tier.target, "name", None)
        return named or str(self.tier.target_folder(self.folder))

    def place(self, name: str) -> Path:
        """Where an arm or table lies: in the folder, or else among the shipped ones,
        provided that both draft for the same target."""
        own, target = self.folder / name, self.tier.target_folder(self.folder)
        there = any((own / file).is_file() for file in KNOWN_BY)
        usual = self.tier.target == get_tier(self.tier.name).target
        if there or not usual or target == self.folder / "target":
            return own
        shipped = self.tier.folder() / name
        return shipped if shipped.is_dir() else own

    def arm(self, kind: str, confidence: bool = False) -> Arm:
        """The trained drafter and head of a method with a checkpoint of its own.

        Args:
            confidence: together with its confidence head, which must be there, inside
                it or beside it.
        """
        if kind not in self._arms:
            self._arms[kind] = load_arm(self.place(kind), self.target)
            pack(self._arms[kind].drafter)
        arm, beside = self._arms[kind], self.place(f"{kind}/{CONFIDENCE}")
        if not confidence or arm.confidence is not None:
            return arm
        if not beside.is_dir():
            raise LabError(
                f"The {kind} arm has no confidence head: train one with "
                f"xpress-lab train --tier {self.tier.name} --only {kind}/{CONFIDENCE} "
                f"--out {self.folder}"
            )
        return replace(arm, confidence=load_confidence(beside, arm, self.target))

    def ngram(self) -> NGram:
        """The 3-gram counted on the target's responses, read when first asked for."""
        if self._ngram is None:
            self._ngram = load_ngram(self.place("ngram"), self.target.vocab_size)
        return self._ngram

    def method(
        self,
        name: str,
        passes: int | None = DEFAULT_PASSES,
        *,
        confidence: float = 0.0,
        budget: int | None = None,
        rescoring: str = "marginals",
        candidates: int | None = None,
        costs: RoundCosts | None = None,
    ) -> Method:
        """A method by name.

        Args:
            passes: K of xpress, ``None`` for the fixed point.
            confidence: verify a chain's drafts up to the first that the confidence
                head gives less; 0 verifies all and needs no such head.
            budget: drafts a round of a tree method, ``None`` for as many as a chain.
            rescoring: how xpress scores a tree, by refined ``marginals`` or ``paths``.
            candidates: rows a slot that xpress tries before full passes, 0 for none;
                ``None`` tries some where only the time can change.
            costs: of a round; a chain's drafts are then verified while they are worth
                it, by its confidence head and :mod:`xpress_lab.scheduling`.
        """
        if name not in METHODS:
            raise LabError(f"Unknown method {name!r}: use {', '.join(METHODS)}.")
        check_rescoring(name, rescoring)
        if candidates and name != "xpress":
            raise LabError(f"candidates={candidates} is for xpress, not for {name}.")
        if (confidence or costs) and name not in BLOCKS:
            raise LabError(
                f"A confidence threshold cuts the blocks of {', '.join(BLOCKS)}; "
                f"for {name} use 0."
            )
        if name == "ar":
            return PlainDecoding()
        if name == "eagle":
            arm = self.arm(name)
            return EagleMethod(self.target, arm.drafter, arm.draft_ids)
        kind, plus, _ = name.partition("+")
        if not plus:
            return self.block_method(name, passes, confidence, candidates, costs)
        passes = passes if uses_passes(name, rescoring) else 0
        chain = self.block_method(kind, passes, candidates=0)  # needs all scores
        return tree_method(name, chain, budget, rescoring, self.ngram)

    def block_method(
        self,
        kind: str,
        passes: int | None,
        confidence: float = 0.0,
        candidates: int | None = None,
        costs: RoundCosts | None = None,
    ) -> BlockMethod:
        """The method that an arm's checkpoint makes, its head folded."""
        arm = self.arm(kind, confidence=bool(confidence or costs))
        how = confidence, kind, candidates, costs
        return arm_method(arm, self.target, passes, *how)

    def _named(self, method: str | Method, passes, budget=None) -> Method:
        """A method by name, made once: it keeps its caches, and on CUDA recordings."""
        if not isinstance(method, str):
            return method
        key = method, passes, budget
        if key not in self._methods:
            self._methods[key] = self.method(method, passes, budget=budget)
        return self._methods[key]

    def trained(self) -> list[str]:
        """Methods that can run: plain decoding, and those whose weights are here."""
        counted = (self.place("ngram") / TENSORS).is_file()

        def there(name: str) -> bool:
            arm = self.place(name.partition("+")[0]) / "config.json"
            return arm.is_file() and (counted or name != "dflash+presto")

        return [name for name in METHODS if name == "ar" or there(name)]

    def unknown_words(self, prompt: str) -> list[str]:
        """Words of the prompt that this target has no token for."""
        tokenizer = self.target.tokenizer
        pieces = tokenizer(prompt, return_offsets_mapping=True)
        return [
            prompt[start:end].strip()
            for token, (start, end) in zip(
                pieces["input_ids"], pieces["offset_mapping"], strict=True
            )
            if token == tokenizer.unk_token_id and prompt[start:end].strip()
        ]

    def generate(
        self,
        prompt: str,
        method: str | Method = "xpress",
        *,
        passes: int | None = DEFAULT_PASSES,
        budget: int | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        draft_temperature: float | None = None,
        max_new_tokens: int = 128,
        seed: int = 0,
        on_text: Callable[[str], None] | None = None,
        keep_trace: bool = True,
    ) -> Generation:
        """Answer a prompt. See :func:`xpress_lab.decoding.decode` for the fields.

        ``on_text`` is called with new text after each round, in whole characters.
        """
        chosen = self._named(method, passes, budget)
        spoken = Spoken(self.target.tokenizer.decode, on_text) if on_text else None
        text = decode(
            self.target,
            chosen,
            self.target.encode(prompt),
            sampling=Sampling(temperature, top_k, top_p, draft_temperature),
            max_new_tokens=max_new_tokens,
            seed=seed,
            on_tokens=spoken,
            keep_trace=keep_trace,
        )
        if spoken:
            spoken.close()
        return text

    def generate_batch(
        self,
        prompts: Sequence[str],
        method: str | Method = "xpress",
        *,
        passes: int | None = DEFAULT_PASSES,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        draft_temperature: float | None = None,
        max_new_tokens: int | Sequence[int] = 128,
        seeds: Sequence[int] | None = None,
        keep_trace: bool = False,
    ) -> list[Generation]:
        """Answer prompts side by side, each as :meth:`generate` would with its seed.

        See :func:`xpress_lab.batching.decode_batch` for the fields.
        """
        return decode_batch(
            self.target,
            self._named(method, passes),
            [self.target.encode(prompt) for prompt in prompts],
            sampling=Sampling(temperature, top_k, top_p, draft_temperature),
            max_new_tokens=max_new_tokens,
            seeds=seeds,
            keep_trace=keep_trace,
        )


def check_target(tier: Tier, device: torch.device, dtype: torch.dtype) -> None:
    """Raise, before anything is read, for a pretrained target that was not fetched or
    that this device cannot hold."""
    if not isinstance(tier.target, PretrainedTarget):
        return
    name, folder = tier.target.name, tier.target.folder()
    if not (folder / "config.json").is_file():
        other = "" if tier.target == get_tier(tier.name).target else f" --model {name}"
        raise LabError(
            f"{name}, the target of tier {tier.name}, is not on this machine: run "
            f"xpress-lab fetch {tier.name}{other}"
        )
    needed, room = weight_bytes(folder, dtype), memory(device)
    if room is not None and needed > room:
        how = str(dtype).removeprefix("torch.")
        raise LabError(
            f"{name} takes {needed / 1e9:.1f} GB in {how}, and {device} has "
            f"{room / 1e9:.1f} GB: choose a device with more memory, or bfloat16."
        )


def arm_method(
    arm: Arm,
    target: Target,
    passes: int | None = DEFAULT_PASSES,
    confidence: float = 0.0,
    name: str | None = None,
    candidates: int | None = None,
    costs: RoundCosts | None = None,
) -> BlockMethod:
    """An arm made ready to draft: its head folded; arguments as in Lab.method."""
    kind = ReplayedMethod if isinstance(target, ReplayedTarget) else BlockMethod
    method = kind(
        name or arm.kind,
        target,
        arm.drafter,
        None if arm.head is None else arm.head.fold(),
        passes,
        arm.draft_ids,
        arm.confidence,
        confidence,
        candidates,
        costs,
    )
    if isinstance(arm.drafter.fc, PackedLinear):
        method.borrowed.pack()  # what it reads out by, as its own layers
    return method


def load_lab(
    tier: str = "pocket",
    *,
    device: str = "auto",
    dtype: str = "float32",
    folder: str | Path | None = None,
    model: str | None = None,
    replay: bool | None = None,
) -> Lab:
    """Load a tier.

    Args:
        tier: ``pocket``, ``laptop`` or ``paper``; the last two are fetched first.
        device: ``auto`` (cuda, else mps, else cpu) or one of them.
        dtype: ``float32`` (exact comparisons), ``bfloat16``, ``float16``, ``float64``.
        folder: checkpoints from elsewhere; by default data/checkpoints/TIER.
        model: another target, by Hub id or local folder, for which ``folder`` holds
            the drafters.
        replay: see :class:`Lab`.
    """
    chosen = get_tier(tier).of_model(model)
    if model and not folder:
        raise LabError(
            f"{model} needs drafters of its own: train them with xpress-lab train "
            f"--tier {tier} --model {model} --out FOLDER, and name them by --weights."
        )
    where = Path(folder) if folder else chosen.folder()
    if folder and not any(any(where.glob(f"*/{name}")) for name in KNOWN_BY):
        raise LabError(  # all arms would be the shipped ones, without a word
            f"No checkpoint in {where}: it should hold folders such as xpress/ with "
            f"{TENSORS}, as xpress-lab train --out {where} writes them."
        )
    return Lab(chosen, where, pick_device(device), pick_dtype(dtype), replay)
