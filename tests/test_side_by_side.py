"""Arms that train at once: each in a process of its own, none of which is left over."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from xpress_lab.errors import LabError
from xpress_lab.training.side_by_side import side_by_side

LONG = 120  # seconds, far more than a test waits


def write_pid(folder: Path, stage: str, row: int) -> None:
    (folder / stage).write_text(f"{os.getpid()} {row}", "utf-8")


def write_pid_and_sleep(folder: Path, stage: str, row: int) -> None:
    write_pid(folder, stage, row)
    time.sleep(LONG)


def fail(stage: str, row: int) -> None:
    raise LabError(f"{stage} failed.")


def running(pid: int) -> bool:
    """Whether a process computes; one that ended and waits to be noticed does not."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text("utf-8").split()[2]
    except FileNotFoundError:
        return False


def until(true, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.1)
    return true()


def test_stages_run_in_other_processes_and_have_rows(tmp_path):
    side_by_side(partial(write_pid, tmp_path), ["dflash", "xpress"])
    found = [(tmp_path / s).read_text("utf-8").split() for s in ("dflash", "xpress")]
    pids, rows = zip(*found, strict=True)
    assert rows == ("0", "1") and str(os.getpid()) not in pids


def test_a_failure_comes_through():
    with pytest.raises(LabError, match="dflash failed"):
        side_by_side(fail, ["dflash"])


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are looked up there")
def test_none_outlives_a_run_that_was_killed(tmp_path):
    """Even by a signal that leaves no time to tidy up."""
    script = (
        "from functools import partial; from pathlib import Path;"
        "from test_side_by_side import write_pid_and_sleep;"
        "from xpress_lab.training.side_by_side import side_by_side;"
        f"side_by_side(partial(write_pid_and_sleep, Path({str(tmp_path)!r})), ['a'])"
    )
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    here = Path(__file__).parent
    run = subprocess.Popen([sys.executable, "-c", script], cwd=here, **quiet)
    try:
        assert until((tmp_path / "a").is_file, 60)
        pid = int((tmp_path / "a").read_text("utf-8").split()[0])
        assert running(pid)
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    gone = until(lambda: not running(pid), 10)
    if not gone:
        os.kill(pid, signal.SIGKILL)
    assert gone
