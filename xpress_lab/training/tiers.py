"""Which workshop makes a tier."""

from pathlib import Path

from xpress_lab.errors import LabError
from xpress_lab.presets import PretrainedTarget, Tier
from xpress_lab.training.laptop_workshop import LaptopWorkshop
from xpress_lab.training.pocket_workshop import PocketWorkshop
from xpress_lab.training.workshop import Workshop


def open_workshop(
    tier: Tier,
    out: Path,
    benchmarks: Path | None = None,
    model: str | None = None,
    users: str | None = None,
) -> Workshop:
    """The workshop of a tier; states and logs go to ``out/work``.

    Args:
        out: the checkpoint folder.
        benchmarks: folder of benchmark prompts (pretrained targets only).
        model: another target, by Hub id or local folder.
        users: questions in a JSONL file or a data set (pretrained targets only).
    """
    pretrained = isinstance(tier.target, PretrainedTarget)
    if not pretrained and (benchmarks or users):
        raise LabError(
            f"Tier {tier.name} trains its own target on its own grammar: "
            "--prompts and --questions are for the laptop tier."
        )
    tier = tier.of_model(model)
    if not pretrained:
        return PocketWorkshop(tier, out, out / "work")
    return LaptopWorkshop(tier, out, out / "work", benchmarks, users)
