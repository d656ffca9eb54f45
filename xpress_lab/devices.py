"""Where tensors live: one function picks the device, one the dtype."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from xpress_lab.errors import LabError

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


def pick_device(name: str = "auto") -> torch.device:
    """Turn ``auto``, ``cpu``, ``cuda`` or ``mps`` into a device that exists here."""
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(kind for kind, here in available.items() if here))
    kind = name.split(":")[0]
    if kind not in available:
        raise LabError(f"Unknown device {name!r}: use auto, cpu, cuda or mps.")
    if not available[kind]:
        raise LabError(f"Device {name!r} is not available here: use --device cpu.")
    return torch.device(name)


def pick_dtype(name: str) -> torch.dtype:
    """Turn a dtype's name into the dtype, with the choices in the error."""
    if name not in DTYPES:
        raise LabError(f"Unknown dtype {name!r}: use one of {', '.join(DTYPES)}.")
    return DTYPES[name]


def memory(device: torch.device) -> int | None:
    """Bytes of memory that a device has in all; ``None`` where nobody says."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    if device.type == "mps":
        return torch.mps.recommended_max_memory()
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return None


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: models this small lose more to the co-ordination of
    several than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def synchronize(device: torch.device) -> None:
    """Wait for the device, so that a clock read after this call is honest; not where
    work is being recorded, which allows no waiting."""
    if device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
