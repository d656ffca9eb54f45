"""Triton kernels: a refiner pass without a trip to memory between its steps.

Same names and arguments as :mod:`xpress_lab.kernels.plain`. Importing this package
needs Triton, so nothing imports it but :func:`xpress_lab.kernels.runner.kernels_for`
and tests. With TRITON_INTERPRET=1 in the environment the kernels run on a CPU, slowly.
"""

from xpress_lab.kernels.fused.candidates import settle, shortlist
from xpress_lab.kernels.fused.latent_pass import latent
from xpress_lab.kernels.fused.reading import choose, read_out, scores

__all__ = ["choose", "latent", "read_out", "scores", "settle", "shortlist"]
