"""Result files: whole after any interruption, of one make, unharmed by a look."""

from dataclasses import replace

import pytest

from xpress_lab import LabError, load_lab
from xpress_lab.benchmarks import runner, throughput
from xpress_lab.benchmarks.prompts import prompt_folder, read_prompts
from xpress_lab.benchmarks.result_files import (
    append_rows,
    check_same,
    read_rows,
    rows_to_resume,
)
from xpress_lab.benchmarks.rows import read_frame
from xpress_lab.benchmarks.runner import Bench, RunArm, run_bench
from xpress_lab.benchmarks.throughput import Load, run_throughput

COLUMNS = ("name", "count")
ROW = {"name": "a", "count": "1"}


@pytest.mark.parametrize("left", ["", "na", "name,count", "name,count\n", None])
def test_a_header_comes_first_whatever_a_crash_left(tmp_path, left):
    """mktemp leaves an empty file; a crash may leave a header or a part of one."""
    path = tmp_path / "new" / "rows.csv"
    if left is not None:
        path.parent.mkdir()
        path.write_text(left, encoding="utf-8")
    assert rows_to_resume(path, COLUMNS) == []
    append_rows(path, [ROW], COLUMNS)
    append_rows(path, [ROW], COLUMNS)
    assert path.read_text("utf-8") == "name,count\na,1\na,1\n"
    assert read_rows(path) == rows_to_resume(path, COLUMNS) == [ROW, ROW]


def test_reading_leaves_a_file_as_it_is(tmp_path):
    """A run may be writing it: taking its half line off would spoil the other half."""
    path = tmp_path / "rows.csv"
    path.write_text("name,count\na,1\nb,", encoding="utf-8")
    assert read_rows(path) == [ROW]
    assert path.read_text("utf-8").endswith("\nb,")
    assert rows_to_resume(path, COLUMNS) == [ROW]
    assert path.read_text("utf-8").endswith("a,1\n")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("notes without an end", "something else than results"),
        ("notes\n", "something else than results"),
        ("name\na\n", r"other columns .*\(count\)"),
        ("count,name\n1,a\n", "their order"),
    ],
)
def test_other_files_are_refused_and_left_alone(tmp_path, text, says):
    path = tmp_path / "notes.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(LabError, match=says):
        rows_to_resume(path, COLUMNS)
    assert path.read_text("utf-8") == text


def test_what_is_no_text_or_cannot_be_written_is_told(tmp_path):
    path = tmp_path / "picture.png"
    path.write_bytes(b"\x89PNG\xff\n")
    with pytest.raises(LabError, match="no table of results"):
        read_rows(path)
    with pytest.raises(LabError, match="Cannot write"):
        append_rows(path / "rows.csv", [ROW], COLUMNS)
    with pytest.raises(LabError, match="Cannot write"):
        append_rows(tmp_path, [ROW], COLUMNS)


def test_one_file_is_of_one_make():
    made = {"tier": "pocket", "batch_size": 1}
    rows = [{"tier": "pocket", "batch_size": "1"}]
    check_same(rows, made, None, tuple(made))
    check_same([], made, None, tuple(made))
    for name, other in (("tier", "laptop"), ("batch_size", 4)):
        said = f"rows of {name} {rows[0][name]}, this run is of {name} {other}"
        with pytest.raises(LabError, match=said):
            check_same(rows, made | {name: other}, None, tuple(made))


# --- the two runners ----------------------------------------------------------


@pytest.fixture(scope="module")
def prompts():
    return {"chat": read_prompts(prompt_folder("pocket"), "chat", 1)}


@pytest.fixture(scope="module")
def labs():
    kinds = ("float32", "bfloat16")
    return {kind: load_lab("pocket", device="cpu", dtype=kind) for kind in kinds}


def forbidden(*_, **__):
    raise AssertionError("a model ran")


def test_a_run_in_another_dtype_does_not_pass_old_rows_off_as_its_own(
    labs, prompts, tmp_path, monkeypatch
):
    path, bench = tmp_path / "rows.csv", Bench((RunArm("ar"),), prompts)
    bench = replace(bench, max_new_tokens=4)
    run_bench(labs["float32"], bench, path)
    monkeypatch.setattr(runner, "decode", forbidden)
    with pytest.raises(LabError, match="dtype float32, this run is of dtype bfloat16"):
        run_bench(labs["bfloat16"], bench, path)
    with pytest.raises(LabError, match="batch_size 1, this run is of batch_size 2"):
        run_bench(labs["float32"], replace(bench, batch_size=2), path)
    with pytest.raises(LabError, match="max_new_tokens 4, this run .* 8"):
        run_bench(labs["float32"], replace(bench, max_new_tokens=8), path)
    others = {"chat": ["Where does Ann live ?"]}
    with pytest.raises(LabError, match="another prompt 0 of chat"):
        run_bench(labs["float32"], replace(bench, prompts=others), path)
    assert set(read_frame(path)["dtype"]) == {"float32"}


def test_batches_in_another_dtype_neither(labs, prompts, tmp_path, monkeypatch):
    path = tmp_path / "batches.csv"
    texts = tuple(prompts["chat"])
    load = Load((RunArm("ar"),), texts, (1,), turns=1, max_new_tokens=4)
    run_throughput(labs["float32"], load, path)
    monkeypatch.setattr(throughput, "decode_batch", forbidden)
    with pytest.raises(LabError, match="dtype float32, this run is of dtype bfloat16"):
        run_throughput(labs["bfloat16"], load, path)
