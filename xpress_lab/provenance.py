"""How a result was made: command, commit, machine, versions."""

import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

PACKAGES = ("torch", "transformers", "numpy", "pandas", "xpress-lab")


def how_made() -> dict[str, str]:
    """What every result says of its making."""
    return {
        "command": command(),
        "commit": git_commit(),
        "machine": machine(),
        "versions": versions(),
    }


def git_commit() -> str:
    """Short commit of this clone, ``+`` appended if tracked files differ from it."""
    root = Path(__file__).parents[1]

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        commit = git("rev-parse", "--short=10", "HEAD")
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "*.py")
    except OSError:  # no git here
        return "unknown"
    return (commit or "unknown") + ("+" if changed else "")


def versions() -> str:
    """Versions of what the numbers depend on, as one short line."""
    found = [f"python {platform.python_version()}"]
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def machine() -> str:
    """Processor, cores and threads in words, without host names or paths."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        lines = info.read_text(encoding="utf-8").splitlines()
        named = [line for line in lines if line.startswith("model name")]
        if named:
            model = f"{named[0].split(':', 1)[1].strip()} x{len(named)}"
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{model}{gpu}, {platform.system()}, {torch.get_num_threads()} threads"


def command() -> str:
    """The command line that is running; of absolute paths, the last name alone."""
    program = Path(sys.argv[0]).name
    program = "python -m xpress_lab" if program == "__main__.py" else program
    words = [Path(w).name if Path(w).is_absolute() else w for w in sys.argv[1:]]
    return " ".join([program, *words])
