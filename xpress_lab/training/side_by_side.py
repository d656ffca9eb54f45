"""Several arms at once, one process and one thread each.

Matrices of a pocket arm are too small for two threads to share with profit: two arms
on a core each are done a third sooner than one after the other on two. An arm's
weights do not depend on what is trained beside it.
"""

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import wait

import torch
from tqdm import tqdm


def side_by_side(train: Callable[[str, int], None], stages: Sequence[str]) -> None:
    """Call ``train(stage, row)`` for all stages at the same time.

    Args:
        train: picklable; ``row`` is its place among the progress bars.
    """
    context = multiprocessing.get_context("spawn")
    setup = {"initializer": _one_core, "initargs": (context.RLock(),)}
    with ProcessPoolExecutor(len(stages), context, **setup) as pool:
        jobs = [pool.submit(train, stage, row) for row, stage in enumerate(stages)]
        for job in jobs:
            job.result()


def _one_core(lock) -> None:
    torch.set_num_threads(1)
    tqdm.set_lock(lock)  # bars of several processes share one terminal
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Stop when whoever started this process is gone, however it went: a run that was
    killed and started again would else train every arm twice, into the same files."""
    wait([multiprocessing.parent_process().sentinel])
    os._exit(1)
