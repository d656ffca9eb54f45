"""Notebooks as files: whole, executed in order, small, tidy, built to one pattern.

That they run is tested elsewhere (`make test` runs each from top to bottom). The
enumerable example that they begin with is tested here too.
"""

import ast
import re
import shlex
from base64 import b64decode
from io import BytesIO

import nbformat
import numpy as np
import pytest
import torch
import typer
from PIL import Image

from xpress_lab import notebooks
from xpress_lab.cli import app
from xpress_lab.enumerable import (
    Joint,
    conditional,
    incoherent_mass,
    marginals,
    perfect_refiner,
    product_of_conditionals,
    product_of_marginals,
    total_variation,
    travel_joint,
)
from xpress_lab.jacobi import solve, solve_in_order
from xpress_lab.sampling import gumbel_noise

PATHS = sorted(notebooks.FOLDER.glob("*.ipynb"))
MOST_BYTES, MOST_BYTES_TOGETHER = 1_500_000, 8_000_000
LONGEST_LINE, MOST_LINES, MOST_LINES_OF_A_CHECK = 88, 15, 18
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
STANDARD = {"copy", "dataclasses", "inspect", "itertools", "pathlib", "sys"}
STANDARD |= {"tempfile", "textwrap"}
LISTED = {"matplotlib", "numpy", "pandas", "seaborn", "torch", "xpress_lab"}
ABSOLUTE = re.compile(r"(?<![\w.])/(home|root|work|tmp|Users|opt|mnt)/|[A-Z]:\\\\")

SPELT = {
    "dFlash",
    "xPress",
    "Markov",
    "DDTree",
    "DDTrees",
    "PRESTO",
    "EAGLE-3",
    "Jacobi",
}
TYPED = r"```.*?```|`[^`]*`|\]\([^)]*\)"
MISSPELT = r"(?<![\w.])(?:dflash|xpress|markov|ddtrees?|presto|eagle-3|jacobi)(?![\w-])"

each = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def read(path):
    notebook = nbformat.read(path, as_version=4)
    return notebook, [c for c in notebook.cells if c.cell_type == "code"]


def headings(notebook) -> list[str]:
    prose = [c.source for c in notebook.cells if c.cell_type == "markdown"]
    return re.findall(r"^#+ .*$", "\n".join(prose), flags=re.MULTILINE)


def test_those_that_others_lead_to_are_there():
    assert {
        "00_start_here",
        "01_marginals_vs_joint",
        "02_inside_the_refiner",
        "03_jacobi_convergence",
        "04_train_a_refiner",
        "05_lossless_verification",
        "08_trees_and_orthogonality",
        "09_scaling_up",
        "10_beyond_drafting",
    } <= {path.stem for path in PATHS}


# the file ------------------------------------------------------------------------


@each
def test_valid_and_free_of_what_a_run_leaves_behind(path):
    notebook, code = read(path)
    nbformat.validate(notebook)
    assert notebook.metadata == notebooks.METADATA  # so no metadata.widgets
    assert all(not cell.metadata for cell in notebook.cells)
    ids = [cell["id"] for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    assert notebook.nbformat == 4 and notebook.nbformat_minor >= 5


@each
def test_executed_from_top_to_bottom_without_complaints(path):
    _, code = read(path)
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    for cell in code:
        for output in cell.outputs:
            assert output.output_type != "error", cell.source
            assert output.get("name") != "stderr", output.text


@each
def test_widgets_have_a_picture_and_a_sentence(path):
    _, code = read(path)
    for output in (output for cell in code for output in cell.outputs):
        data = output.get("data", {})
        if WIDGET_VIEW in data:
            assert data["image/png"]
            assert re.match(r"[A-Z].*\.$", data["text/plain"], flags=re.DOTALL)


@each
def test_pictures_hold_nothing_but_the_picture(path):
    """A library's version or a date in a PNG would make each run look like a change."""
    _, code = read(path)
    for output in (output for cell in code for output in cell.outputs):
        if "image/png" in output.get("data", {}):
            with Image.open(BytesIO(b64decode(output["data"]["image/png"]))) as picture:
                assert set(picture.info) <= {"dpi", "Software"}
                assert picture.info.get("Software", "xpress-lab") == "xpress-lab"


@each
def test_methods_have_one_spelling(path):
    """As in :mod:`xpress_lab.viz.style`; in code spans they stand as typed."""
    notebook, _ = read(path)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            prose = re.sub(TYPED, " ", cell.source, flags=re.DOTALL)
            for word in re.findall(MISSPELT, prose, flags=re.IGNORECASE):
                assert word in SPELT, f"{word}: {cell.source[:80]}"


@each
def test_no_absolute_paths(path):
    found = ABSOLUTE.search(path.read_text(encoding="utf-8"))
    assert not found, found


def test_sizes():
    sizes = {path.stem: path.stat().st_size for path in PATHS}
    assert max(sizes.values()) <= MOST_BYTES, sizes
    assert sum(sizes.values()) <= MOST_BYTES_TOGETHER, sizes


# the code ------------------------------------------------------------------------


@each
def test_cells_are_short(path):
    _, code = read(path)
    for cell in code:
        lines = [line for line in cell.source.splitlines() if line.strip()]
        exercise = re.search(r"^\w+ = None\b", cell.source, flags=re.MULTILINE)
        most = MOST_LINES_OF_A_CHECK if exercise else MOST_LINES
        assert len(lines) <= most, f"{len(lines)} lines: {cell.source}"
        assert max(map(len, lines)) <= LONGEST_LINE, cell.source


@each
def test_imports_only_what_the_package_brings(path):
    _, code = read(path)
    for cell in code:
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.ImportFrom):
                modules = [node.module]
            elif isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            else:
                continue
            roots = {module.split(".")[0] for module in modules}
            assert roots <= STANDARD | LISTED, roots


# the pattern ---------------------------------------------------------------------


@each
def test_opening(path):
    notebook, code = read(path)
    first = notebook.cells[0].source
    assert first.startswith(f"# {path.stem[:2]} ")
    assert "**The question.**" in first and "**Needs.**" in first
    assert re.search(r"\*\*Time\.\*\*.*\bminutes?\b", first)
    assert "introduce(seed=" in code[0].source and "make lab" in code[0].source
    assert "torch" in code[0].outputs[0].text and "seed" in code[0].outputs[0].text


@each
def test_sections_end_with_summary_exercises_and_next(path):
    notebook, _ = read(path)
    assert [h for h in headings(notebook) if not re.match(r"#+ \d", h)] == [
        "## Summary",
        "## Exercises",
        "## Next",
    ]


@each
def test_readers_predict_and_claims_are_checked(path):
    notebook, code = read(path)
    prose = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    assert prose.count("**Predict") >= 4
    assert prose.count("**Claim") >= 4
    assert sum("assert " in cell.source for cell in code) >= 6


@each
def test_every_figure_is_followed_by_what_it_shows(path):
    notebook, _ = read(path)
    for place, cell in enumerate(notebook.cells):
        data = [o.get("data", {}) for o in cell.get("outputs", ())]
        if any("image/png" in one for one in data):
            after = notebook.cells[place + 1 :]
            prose = next(c.source for c in after if c.cell_type == "markdown")
            assert re.match(r"\*[^*].*\*(\n|$)", prose, flags=re.DOTALL), cell.source


@each
def test_three_exercises_wait_politely_and_have_solutions(path):
    notebook, code = read(path)
    sources = [cell.source for cell in notebook.cells]
    begins = next(i for i, s in enumerate(sources) if "## Exercises" in s)
    waiting = [c for c in notebook.cells[begins:] if c.cell_type == "code"]
    assert len(waiting) == 3
    for cell in waiting:
        assert re.search(r"^my_\w+ = None\b", cell.source, flags=re.MULTILINE)
        assert "assert" in cell.source or "print" in cell.source
        assert cell.outputs[0].text.startswith("Waiting for")
    tail = "\n".join(sources[begins:])
    assert all(f"**{number}.**" in tail for number in (1, 2, 3))
    assert "<details>" in tail and "</details>" in tail


@each
def test_commands_in_the_text_can_be_typed(path):
    """Each `xpress-lab ...` line names a command, and options that it has."""
    notebook, _ = read(path)
    prose = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    blocks = re.findall(r"```bash\n(.*?)```", prose, flags=re.DOTALL)
    for line in "".join(blocks).replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        words = words[words.index("xpress_lab") :] if "xpress_lab" in words else words
        if words and words[0] in ("xpress-lab", "xpress_lab"):
            command = typer.main.get_command(app).commands[words[1]]
            command.make_context(words[1], words[2:])  # raises for what it cannot read


@each
def test_links_lead_to_notebooks_that_exist(path):
    for name in re.findall(r"\]\((\w+\.ipynb)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / name).is_file(), name


# the command ---------------------------------------------------------------------


def test_tidy_drops_time_stamps_and_widget_state():
    notebook = nbformat.v4.new_notebook()
    cell = nbformat.v4.new_code_cell("1", metadata={"execution": {"t": "now"}})
    notebook.cells = [cell]
    notebook.metadata["widgets"] = {"state": {}}
    tidied = notebooks.tidy(notebook)
    assert tidied.metadata == notebooks.METADATA
    assert "execution" not in tidied.cells[0].metadata
    nbformat.validate(tidied)


def test_find_by_number_or_name():
    assert [path.stem for path in notebooks.find(["03"])] == ["03_jacobi_convergence"]
    assert notebooks.find([]) == PATHS
    with pytest.raises(SystemExit, match="No notebook begins with 99"):
        notebooks.find(["99"])


def test_introduce_says_what_runs_without_paths(capsys):
    threads = torch.get_num_threads()
    notebooks.introduce(seed=3)
    torch.set_num_threads(threads)
    said = capsys.readouterr().out
    assert "torch" in said and "seed 3" in said and "kernel:" in said
    assert not ABSOLUTE.search(said)
    assert torch.initial_seed() == 3


# the enumerable example ----------------------------------------------------------


def test_marginals_are_perfect_and_their_product_is_not():
    joint = travel_joint()
    product = product_of_marginals(joint)
    assert joint.table.sum() == pytest.approx(1) and product.sum() == pytest.approx(1)
    for exact, other in zip(
        marginals(joint), marginals(Joint(joint.words, product)), strict=True
    ):
        np.testing.assert_allclose(exact, other)
    # Traveller and city match by .55^2 + .45^2, verb and word by .4^2 + 2 x .6 x .3.
    assert incoherent_mass(joint) == pytest.approx(1 - 0.505 * 0.52)
    assert total_variation(joint.table, product) == pytest.approx(0.7374)


def test_the_likeliest_words_make_an_impossible_sentence():
    joint = travel_joint()
    best = tuple(int(law.argmax()) for law in marginals(joint))
    assert joint.text(best) == "Anna has in Paris"
    assert joint.table[best] == 0


def test_the_chain_rule_gives_the_joint_back():
    joint = travel_joint()
    np.testing.assert_allclose(product_of_conditionals(joint), joint.table)
    assert conditional(joint, ())[0] == pytest.approx(0.55)
    np.testing.assert_allclose(conditional(joint, (0, 1)), [0, 0.5, 0.5])
    impossible = conditional(joint, (0, 0, 1))  # "Anna is left"
    np.testing.assert_allclose(impossible, marginals(joint)[3])


def test_an_independent_joint_loses_nothing():
    law = np.multiply.outer([0.25, 0.75], [0.5, 0.5])
    joint = Joint((("a", "b"), ("c", "d")), law)
    assert incoherent_mass(joint) == 0
    np.testing.assert_allclose(product_of_marginals(joint), law)


@pytest.mark.parametrize("sampled", [False, True])
def test_passes_with_the_perfect_refiner_are_left_to_right_decoding(sampled):
    joint, rows = travel_joint(), 200
    base, refine = perfect_refiner(joint)
    base, start = base.expand(rows, -1, -1), torch.zeros(rows, dtype=torch.long)
    generator = torch.Generator().manual_seed(0)
    noise = gumbel_noise(base.shape, generator) if sampled else None
    parallel = solve(refine, base, start, start, noise=noise).tokens
    walked = solve_in_order(refine, base, start, start, noise=noise).tokens
    assert torch.equal(parallel, walked)
    assert all(joint.table[tuple(tokens)] > 0 for tokens in parallel.tolist())


def test_sampled_passes_follow_the_joint():
    joint, rows = travel_joint(), 20_000
    base, refine = perfect_refiner(joint)
    base, start = base.expand(rows, -1, -1), torch.zeros(rows, dtype=torch.long)
    noise = gumbel_noise(base.shape, torch.Generator().manual_seed(0))
    law = np.zeros_like(joint.table)
    drawn = solve(refine, base, start, start, noise=noise).tokens
    np.add.at(law, tuple(drawn.T.numpy()), 1 / rows)
    assert total_variation(law, joint.table) < 0.02
