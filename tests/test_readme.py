"""What the README says was found is what the shipped files say."""

import re
from pathlib import Path

import pandas as pd
import pytest

from xpress_lab.benchmarks.peers import speed_over
from xpress_lab.benchmarks.rows import read_frame
from xpress_lab.benchmarks.tables import means
from xpress_lab.presets import data_folder

ROOT = Path(__file__).parents[1]
ARMS = {"dFlash": "dflash", "Markov": "markov", "xPress, K = 6": "xpress K=6"}


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    """Cells by method: tau greedy, tau at T = 1, gain, speed over generate."""
    folder = data_folder() / "results" / "laptop"
    table = means(read_frame(folder / "tau.csv")).set_index(["arm", "temperature"])
    speeds = speed_over(pd.read_csv(folder / "speed.csv"))["mean"]
    cells = {}
    for name, arm in ARMS.items():
        greedy, sampled = table.loc[(arm, 0.0)], table.loc[(arm, 1.0)]
        gain = f"+{100 * (greedy['gain'] - 1):.0f} %" if arm != "dflash" else "–"
        speed = f"{speeds['ours: ' + arm.split()[0]]:.2f}x"
        taus = [
            f"{at['tau']:.2f} [{at['tau_low']:.2f}, {at['tau_high']:.2f}]"
            for at in (greedy, sampled)
        ]
        cells[name] = [*taus, gain, speed]
    return cells


@pytest.mark.parametrize("name", ["README.md", "README.ko.md"])
def test_findings_are_those_of_the_shipped_rows(name, found):
    text = (ROOT / name).read_text("utf-8")
    for method, cells in found.items():
        (line,) = re.findall(rf"^\| {re.escape(method)} \|(.+)\|$", text, re.MULTILINE)
        assert [cell.strip() for cell in line.split("|")] == cells
