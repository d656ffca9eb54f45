"""The house keeps its floors: imports run downward, devices are picked in one place."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "xpress_lab"
FLOORS = (
    ("errors", "provenance"),
    ("devices", "files", "spoken"),
    (
        "argmax",
        "attention",
        "cache",
        "packed",
        "presets",
        "products",
        "sampling",
        "stopwatch",
        "pocket",
    ),  # fmt: skip
    ("enumerable", "graphs", "pretrained"),
    ("kernels", "screening"),
    ("target", "drafters", "refiners"),
    ("borrowed", "jacobi", "trees"),
    ("draft_laws", "checkpoints", "candidates", "scheduling"),
    ("verification",),
    ("fetching", "ngram"),
    ("methods",),
    ("block_method",),
    ("replayed", "tree_methods", "eagle_method"),
    ("decoding", "statistics", "exactness"),
    ("batching", "tree_exactness"),
    ("lab", "hosted", "recorded"),
    ("benchmarks",),
    ("training",),
    ("beyond",),
    ("viz",),
    ("report", "evaluation", "doctor", "notebooks"),
    ("book",),
    ("cli",),
    ("__main__",),
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
MODULES = sorted(PACKAGE.rglob("*.py"))


def room(module: str) -> str:
    return module.removeprefix("xpress_lab.").split(".")[0]


def package_imports(source: str) -> set[str]:
    """Rooms of this package that a module's source imports."""
    rooms = set()
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        rooms |= {room(name) for name in names if name.startswith("xpress_lab.")}
    return rooms


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_run_downward(path):
    own = path.relative_to(PACKAGE).with_suffix("").parts[0]
    if own == "__init__":
        return  # the front door re-exports
    for other in package_imports(path.read_text(encoding="utf-8")) - {own}:
        assert FLOOR_OF[other] < FLOOR_OF[own], f"{own} imports {other}, not below it"


def test_the_floor_check_sees_an_upward_import():
    assert package_imports("from xpress_lab.viz.style import x") == {"viz"}
    assert FLOOR_OF["viz"] > FLOOR_OF["decoding"]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_device_is_hard_wired(path):
    source = path.read_text(encoding="utf-8")
    assert not re.search(r"\.cuda\(\)|device=[\"']cuda", source)
    assert not re.search(r"weights_only\s*=\s*False", source)


def test_modules_stay_short():
    for path in MODULES:
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines <= 350, f"{path.name} has {lines} lines"
