"""The files that build an environment agree with one another.

Nothing is installed here: a mistake shows up in milliseconds instead of at the
end of a reader's long download.  Each checker returns a list of problems, empty
when all is well, so that it can also be shown a file which is wrong.
"""

import os
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from rattler import MatchSpec
from rattler.exceptions import InvalidMatchSpecError

ROOT = Path(__file__).resolve().parents[1]
LOCK = "requirements.lock"


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads(read("pyproject.toml"))["project"]


@pytest.fixture(scope="module")
def environment() -> dict:
    return yaml.safe_load(read("environment.yml"))


# --- checkers -----------------------------------------------------------------


def conda_problems(lines: list[str]) -> list[str]:
    """Conda lines must parse, and name no build: builds exist on one platform."""
    problems = []
    for line in lines:
        try:
            spec = MatchSpec(line)
        except InvalidMatchSpecError as error:
            problems.append(f"{line}: {error}")
            continue
        if spec.build is not None or spec.build_number is not None:
            problems.append(f"{line}: names a build")
    return problems


def pip_section_problems(lines: list[str], extras: dict) -> list[str]:
    """The pip section holds the lock and this project, and no list of its own."""
    problems = []
    if f"-c {LOCK}" not in lines:
        problems.append(f"does not constrain with {LOCK}")
    installs = [line for line in lines if line != f"-c {LOCK}"]
    if len(installs) != 1:
        problems.append(f"expected one editable install, found {installs}")
    for line in installs:
        match = re.fullmatch(r"-e \.\[([\w,-]+)\]", line)
        if match is None:
            problems.append(f"{line}: packages belong in pyproject.toml")
            continue
        unknown = set(match[1].split(",")) - set(extras)
        problems += [f"no extra called {name}" for name in sorted(unknown)]
    return problems


def lock_entries(text: str) -> list[str]:
    lines = (line.split(" #")[0].strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def lock_problems(text: str) -> list[str]:
    """A lock for every platform: `name==version` lines and nothing else."""
    problems, seen = [], set()
    for line in lock_entries(text):
        try:
            entry = Requirement(line)
        except InvalidRequirement:
            problems.append(f"{line}: not a requirement")
            continue
        name = canonicalize_name(entry.name)
        pins = list(entry.specifier)
        if entry.url or entry.marker or entry.extras:
            problems.append(f"{line}: more than name and version")
        elif len(pins) != 1 or pins[0].operator != "==" or "*" in pins[0].version:
            problems.append(f"{line}: not one exact version")
        elif Version(pins[0].version).local:
            problems.append(f"{line}: local version")
        if name.startswith(("nvidia-", "cuda-")):
            problems.append(f"{line}: exists only beside a GPU")
        if name in seen:
            problems.append(f"{line}: pinned twice")
        seen.add(name)
    return problems


def pins_of(text: str) -> dict[str, list[str]]:
    pins: dict[str, list[str]] = {}
    for line in lock_entries(text):
        name, _, version = line.partition("==")
        pins.setdefault(canonicalize_name(name), []).append(version)
    return pins


def pin_problems(requirements: list[Requirement], text: str) -> list[str]:
    """Every declared dependency has one pin, and its own bounds allow that pin."""
    problems, pins = [], pins_of(text)
    for wanted in requirements:
        found = pins.get(canonicalize_name(wanted.name), [])
        if len(found) != 1:
            problems.append(f"{wanted.name}: {len(found)} pins")
        elif not wanted.specifier.contains(found[0]):
            problems.append(f"{wanted}: pinned to {found[0]}")
    return problems


def declared(project: dict) -> list[Requirement]:
    """Dependencies of the package and of all extras, without the package itself."""
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    found = [Requirement(line) for group in groups for line in group]
    return [entry for entry in found if entry.name != project["name"]]


def exact_pins(requirements: list[Requirement]) -> list[str]:
    return [
        str(entry)
        for entry in requirements
        if any(pin.operator in ("==", "===") for pin in entry.specifier)
    ]


def ci_command(script: str) -> str:
    """The last command of the script, which is the one it exists for."""
    lines = (line.strip() for line in script.splitlines())
    return [line for line in lines if line and not line.startswith("#")][-1]


def readme_commands(text: str) -> list[str]:
    """Lines of fenced blocks, without prompt and comment."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, flags=re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    return [line.split("#")[0].strip().removeprefix("$ ") for line in lines]


# --- environment.yml ----------------------------------------------------------


def test_conda_lines_are_portable(environment):
    lines = [line for line in environment["dependencies"] if isinstance(line, str)]
    assert {"python", "pip"} <= {re.split(r"[ =<>]", line)[0] for line in lines}
    assert conda_problems(lines) == []


@pytest.mark.parametrize("line", ["python=3.11=h955ad1f_0", "python==", "!!"])
def test_bad_conda_lines_are_noticed(line):
    assert conda_problems([line])


def test_conda_python_fits_the_project_and_the_lock(environment, project):
    (python,) = [d for d in environment["dependencies"] if str(d).startswith("python")]
    version = python.split("=")[-1]
    assert SpecifierSet(project["requires-python"]).contains(version)
    assert f"Python {version} " in read(LOCK).splitlines()[0]


def test_conda_pip_section_defers_to_pyproject(environment, project):
    (section,) = [d["pip"] for d in environment["dependencies"] if isinstance(d, dict)]
    assert pip_section_problems(section, project["optional-dependencies"]) == []


@pytest.mark.parametrize(
    "section",
    [
        ["-e .[dev]"],
        [f"-c {LOCK}", "-e .[everything]"],
        [f"-c {LOCK}", "-e .[dev]", "numpy"],
        [f"-c {LOCK}"],
    ],
)
def test_bad_pip_sections_are_noticed(section):
    assert pip_section_problems(section, {"dev": []})


# --- pyproject.toml and requirements.lock -------------------------------------


def test_pyproject_gives_bounds_and_never_exact_versions(project):
    requirements = declared(project)
    assert {"torch", "pytest", "jupyterlab"} <= {entry.name for entry in requirements}
    assert exact_pins(requirements) == []
    assert all(entry.specifier for entry in requirements), "a bound is missing"
    assert exact_pins([Requirement("numpy==2.4.6")])


def test_dev_extra_includes_the_notebooks(project):
    assert "xpress-lab[notebooks]" in project["optional-dependencies"]["dev"]


def test_command_line_entry_point_is_declared(project):
    assert project["scripts"] == {"xpress-lab": "xpress_lab.cli:app"}


def test_lock_is_portable():
    assert len(lock_entries(read(LOCK))) > 50
    assert lock_problems(read(LOCK)) == []


@pytest.mark.parametrize(
    "line",
    [
        "torch==2.13.0+cpu",
        "torch @ file:///wheels/torch.whl",
        "torch @ https://example.org/torch.whl",
        "--extra-index-url https://example.org/simple",
        "-e .",
        "./wheels/torch.whl",
        "nvidia-cublas-cu12==12.8.4.1",
        "numpy>=2.0",
        "numpy==2.*",
        "numpy==2.4.6 --hash=sha256:00",
        "numpy==2.4.6\nNumPy==2.4.6",
    ],
)
def test_bad_lock_lines_are_noticed(line):
    assert lock_problems(line)


def test_every_declared_dependency_is_locked_within_its_bounds(project):
    assert pin_problems(declared(project), read(LOCK)) == []


@pytest.mark.parametrize(
    "lock", ["", "numpy==1.26.4", "numpy==2.4.6\nnumpy==2.4.6", "numpydoc==2.4.6"]
)
def test_bad_pins_are_noticed(lock):
    assert pin_problems([Requirement("numpy>=2.0")], lock)


def test_torch_is_the_release_that_results_were_made_with():
    assert pins_of(read(LOCK))["torch"] == ["2.13.0"]


# --- Makefile, CI, README -----------------------------------------------------


def test_makefile_installs_through_the_lock_and_renews_with_it():
    makefile = read("Makefile")
    assert f"pip install -c {LOCK} -e '.[dev]'" in makefile
    (rule,) = re.findall(r"^\$\(INSTALLED\):(.*)$", makefile, flags=re.M)
    assert {"pyproject.toml", LOCK} <= set(rule.split())


def test_ci_is_executable_and_runs_the_tests():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert "set -euo pipefail" in read(".ci/run")
    assert ci_command(read(".ci/run")) == "make test"


def test_readme_and_ci_run_the_same_command():
    if not (ROOT / "README.md").exists():
        pytest.skip("no README.md yet")
    assert ci_command(read(".ci/run")) in readme_commands(read("README.md"))


def test_commands_are_found_in_text():
    readme = "Run make test:\n```bash\n$ make test   # minutes\nmake lab\n```\npytest\n"
    assert readme_commands(readme) == ["make test", "make lab"]
    assert ci_command("#!/bin/bash\nset -e\nmake test  \n# done\n") == "make test"
