"""The tiers: where their files are and how their models are sized and trained."""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from xpress_lab.errors import LabError

CHAINS = ("ar", "eagle", "dflash", "markov", "markov-gated", "markov-rnn", "xpress")
TREES = ("dflash+ddtree", "dflash+presto", "xpress+ddtree", "xpress+presto")
METHODS = CHAINS + TREES
SCHEDULED = -1.0  # in place of a confidence threshold: drafts are sent by a schedule
BLOCKS = tuple(name for name in CHAINS if name not in ("ar", "eagle"))  # can be cut
FAMILIES = ("math", "code", "chat")


@dataclass(frozen=True)
class TargetRecipe:
    """Size and training of the pocket target."""

    hidden_size: int = 160
    num_hidden_layers: int = 4
    num_attention_heads: int = 6
    num_key_value_heads: int = 2
    head_dim: int = 32
    intermediate_size: int = 448
    max_position_embeddings: int = 512
    examples: int = 36_000
    steps: int = 4_800
    batch: int = 16
    learning_rate: float = 2.5e-3
    prompt_weight: float = 0.1  # of the loss on prompt tokens; responses count 1


@dataclass(frozen=True)
class PretrainedTarget:
    """A target from elsewhere: a Hub id, or a local folder in transformers' layout."""

    name: str
    source: str = "hub"  # asked first; what the shipped drafters were trained on

    def folder(self) -> Path:
        """Where it lies, or will once it is fetched."""
        local = Path(self.name)
        if (local / "config.json").is_file():
            return local
        return model_cache() / self.name.replace("/", "--")


@dataclass(frozen=True)
class ResponseRecipe:
    """Texts that the target itself writes, on which drafters are trained."""

    prompts: int | None = 9_000  # answered at most, None for all there are
    greedy_share: float = 0.5
    temperature: float = 1.0  # of the other half
    max_new_tokens: int = 128
    batch: int = 128
    held_out: int = 72  # evaluation prompts a family, never trained on
    own_questions: int = 0  # of a pretrained target, asked by itself
    templates: int = 0
    users: int = 20_000  # at most, of a file or data set that the user names


@dataclass(frozen=True)
class ArmRecipe:
    """Size and training of a drafter and its head; losses as in methods 2.6."""

    block_size: int = 16
    target_layer_ids: tuple[int, ...] | None = (0, 1, 2)  # None: three, spread evenly
    drafter_layers: int = 2
    rank: int = 96
    mlp_ratio: int = 2
    tap_norm: bool = False
    intermediate_size: int | None = None  # of the drafter's MLPs; None: the target's
    norm_scale: float = 1.0  # on the target's final norm, at the start
    draft_vocabulary: int | None = None  # tokens that may be drafted, None for all
    bfloat16: bool = False  # autocast in training
    # dflash steps are quicker, having no head: more of them take the same seconds.
    steps: dict[str, int] = field(
        default_factory=lambda: {
            "base": 1_600,
            "eagle": 1_600,
            "dflash": 2_800,
            "markov": 1_800,
            "markov-gated": 1_800,
            "markov-rnn": 1_800,
            "xpress": 1_800,
            "confidence": 400,
        }
    )
    batch: int = 16
    anchors: int = 4  # blocks per text: many texts teach more than many blocks
    pad_to: int = 1  # texts to a multiple of this length: fewer shapes to prepare
    learning_rate: float = 3e-3
    warmup: float = 0.04
    accumulate: int = 1  # batches a step
    eagle_batch: int = 16  # texts a step of eagle, which is judged at every token
    chain: int = 7  # drafts a round of eagle
    unrolled: int = 4  # steps of eagle's training-time test
    gamma: float = 7.0  # decay of slot weights
    ce_weight: float = 0.1
    l1_weight: float = 0.9  # of the L1 distance, which is twice the TV distance
    anchor_weight: float = 0.6  # of the bare drafter's loss
    consistency_weight: float = 0.3
    consistency_passes: int = 3
    confidence_weight: float = 0.0  # 0: no confidence head (DSpark trains one with 1)


@dataclass(frozen=True)
class Tier:
    """A target with its drafters."""

    name: str
    target: TargetRecipe | PretrainedTarget = field(default_factory=TargetRecipe)
    responses: ResponseRecipe = field(default_factory=ResponseRecipe)
    arm: ArmRecipe = field(default_factory=ArmRecipe)
    seed: int = 0
    published: dict[str, str] = field(default_factory=dict)  # arms on the Hub, by kind

    def of_model(self, model: str | None) -> "Tier":
        """The same with another target, by Hub id or local folder; itself for None."""
        if model is None:
            return self
        if not isinstance(self.target, PretrainedTarget):
            raise LabError(
                f"Tier {self.name} has a target of its own making: --model is for "
                "the laptop tier."
            )
        return replace(self, target=PretrainedTarget(model))

    def folder(self, data: Path | None = None) -> Path:
        """Of the arms: shipped in data/, or fetched where others published them."""
        if self.published:
            return model_cache() / f"{self.name}-arms"
        return (data or data_folder()) / "checkpoints" / self.name

    def target_folder(self, checkpoints: Path) -> Path:
        """The target's folder: beside the arms, in the cache of fetched models, or
        the shipped one, where a folder holds arms that were trained for that."""
        if isinstance(self.target, PretrainedTarget):
            return self.target.folder()
        own = checkpoints / "target"
        return own if own.is_dir() else self.folder() / "target"


SMOLLM2 = PretrainedTarget("HuggingFaceTB/SmolLM2-135M-Instruct", source="index")
LAPTOP = Tier(
    "laptop",
    target=SMOLLM2,
    responses=ResponseRecipe(
        prompts=None,
        greedy_share=0.5,
        temperature=0.7,
        max_new_tokens=320,
        batch=192,
        own_questions=2_000,
        templates=1_500,
    ),
    arm=ArmRecipe(
        block_size=8,
        target_layer_ids=None,
        rank=128,
        intermediate_size=256,  # so that three arms stay under 28 MB
        tap_norm=True,
        norm_scale=0.4,
        draft_vocabulary=4_096,
        bfloat16=True,
        steps={
            "base": 6_000,
            "eagle": 3_000,
            "dflash": 6_000,
            "markov": 6_000,
            "markov-gated": 6_000,
            "markov-rnn": 6_000,
            "xpress": 6_000,
            "confidence": 400,
        },
        # A step's time goes into the texts, whatever the blocks that are cut of them,
        # and whatever head is trained: all arms get the same steps in the same time.
        batch=8,
        anchors=16,
        eagle_batch=4,
        pad_to=64,
        learning_rate=1.5e-3,
        gamma=4.0,
    ),
)
# The paper's own pair. Its arms are the authors'; the recipe is for training others in
# their place: sizes as published (methods 1.1, 2.1), losses and rate as in speculators'
# example (2.6). The released arms took 403,000 steps; of the base no count is known.
PAPER = Tier(
    "paper",
    target=PretrainedTarget("Qwen/Qwen3-8B"),
    responses=ResponseRecipe(
        prompts=None,
        greedy_share=0.0,
        temperature=0.7,
        max_new_tokens=2_048,
        batch=64,
        own_questions=20_000,
        templates=1_500,
    ),
    arm=ArmRecipe(
        block_size=16,
        target_layer_ids=(1, 9, 17, 25, 33),
        drafter_layers=5,
        rank=256,
        bfloat16=True,
        steps={
            "base": 403_000,
            "dflash": 403_000,
            "markov": 403_000,
            "markov-gated": 403_000,
            "markov-rnn": 403_000,
            "xpress": 403_000,
            "confidence": 4_000,
        },
        batch=1,
        anchors=400,
        pad_to=64,
        learning_rate=3e-4,
        gamma=4.0,
    ),
    published={
        "dflash": "z-lab/Qwen3-8B-DFlash-b16",
        "markov": "UIUC-SSAIL/Qwen3-8B-Markov-b16",
        "xpress": "UIUC-SSAIL/Qwen3-8B-XPress-b16",
    },
)
TIERS = {"pocket": Tier("pocket"), "laptop": LAPTOP, "paper": PAPER}


def get_tier(name: str) -> Tier:
    """A tier by name."""
    if name not in TIERS:
        raise LabError(f"Unknown tier {name!r}: available are {', '.join(TIERS)}.")
    return TIERS[name]


def model_cache() -> Path:
    """Where fetched models are kept: XPRESS_LAB_CACHE, or the user's cache folder."""
    named = os.environ.get("XPRESS_LAB_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "xpress-lab"


def data_folder() -> Path:
    """The repository's data/ folder, or the one that XPRESS_LAB_DATA names."""
    named = os.environ.get("XPRESS_LAB_DATA")
    folder = Path(named) if named else Path(__file__).parents[1] / "data"
    if not folder.is_dir():
        raise LabError(
            f"No data folder at {folder}: run from a clone of the repository "
            "(pip install -e .) or set XPRESS_LAB_DATA to its data/ folder."
        )
    return folder
