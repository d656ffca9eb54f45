"""Stage times of the loop."""

import time
from collections import defaultdict

import torch

from xpress_lab.devices import synchronize


class Stopwatch:
    """Adds the time since the last lap to a named stage, in seconds.

    Laps wait for the device on cuda and mps, where work is only queued; on a CPU
    there is nothing to wait for.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.seconds: dict[str, float] = defaultdict(float)
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        synchronize(self.device)
        now = time.perf_counter()
        self.seconds[stage] += now - self._last
        self._last = now
