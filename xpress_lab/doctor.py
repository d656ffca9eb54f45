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
            target = tier.target_folder(tier.folder())
            present = (target / "config.json").is_file()
        except LabError as error:
            missing.append(str(error))
            continue
        how = "present" if present else f"absent: xpress-lab fetch {tier.name}"
        tiers.append(f"{tier.name} ({how})")
        if not present and tier.name == "pocket":
            missing.append("weights of tier pocket: xpress-lab train --tier pocket")
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
