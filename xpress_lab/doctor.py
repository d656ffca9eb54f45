"""What this machine has, for `xpress-lab doctor` and bug reports."""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import torch

from xpress_lab.devices import pick_device
from xpress_lab.errors import LabError
from xpress_lab.presets import TIERS
from xpress_lab.provenance import git_commit, machine, versions

OPTIONAL = {
    "jupyterlab": "pip install -e .[notebooks]",
    "ipywidgets": "pip install -e .[notebooks]",
    "nbmake": "pip install -e .[dev]",
}


def findings() -> dict[str, str | list[str]]:
    """Versions, device, threads, tiers present; ``missing`` lists what to do."""
    missing = [
        f"{name}: {remedy}" for name, remedy in OPTIONAL.items() if not find_spec(name)
    ]
    tiers = []
    for tier in TIERS.values():
        try:
            present = (tier.folder() / "target" / "model.safetensors").is_file()
        except LabError as error:
            missing.append(str(error))
            continue
        tiers.append(f"{tier.name} ({'present' if present else 'absent'})")
        if not present:
            missing.append(
                f"weights of tier {tier.name}: xpress-lab train --tier {tier.name}"
            )
    try:
        lab = version("xpress-lab")
    except PackageNotFoundError:
        lab = "not installed"
        missing.append("xpress-lab itself: pip install -e .")
    return {
        "xpress-lab": f"{lab}, commit {git_commit()}",
        "versions": versions(),
        "machine": machine(),
        "device": str(pick_device()),
        "cuda": torch.version.cuda or "no",
        "mps": "yes" if torch.backends.mps.is_available() else "no",
        "tiers": ", ".join(tiers),
        "missing": missing,
    }
