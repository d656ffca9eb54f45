"""Files appear whole or not at all, and a refusal of the system is one sentence."""

from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import save_file

from xpress_lab.errors import LabError
from xpress_lab.files import WEIGHTS, write_checkpoint, write_text, write_whole

resource = pytest.importorskip("resource", reason="no limits on files here")
MANY = torch.ones(2**20)  # 4 MB
WRITERS = {
    "safetensors": lambda path: save_file({"a": MANY}, path),
    "torch": lambda path: torch.save({"a": MANY}, path),
    "text": lambda path: path.write_text("a" * 2**22, encoding="utf-8"),
}


@contextmanager
def small_files_only():
    """Stands in for a full disk: writing past the first megabyte fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_told_and_leaves_what_was_there(tmp_path, name):
    path = tmp_path / "file"
    write_text(path, "old")
    with small_files_only(), pytest.raises(LabError, match="Cannot write .*file"):
        write_whole(path, WRITERS[name])
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_text("utf-8") == "old"
    write_whole(path, WRITERS[name])
    assert path.stat().st_size >= 2**22


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    write_text(tmp_path / "taken", "")
    with pytest.raises(LabError, match=f"Cannot write .*{WEIGHTS}"):
        write_checkpoint(tmp_path / "taken", {"a": torch.ones(2)}, {})
    write_checkpoint(tmp_path / "new" / "deep", {"a": torch.ones(2)}, {})
    assert (tmp_path / "new" / "deep" / "config.json").is_file()
