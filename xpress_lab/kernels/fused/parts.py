"""What several kernels do inside."""

import triton
import triton.language as tl


@triton.jit
def gumbel(key, place):
    """The numbers of :func:`xpress_lab.kernels.noise.gumbel` at these places."""
    exponential = -tl.log(tl.maximum(tl.rand(tl.load(key), place), 1e-20))
    return -tl.log(tl.maximum(exponential, 1e-20))


@triton.jit
def log_sum(x, axis: tl.constexpr):
    """log of the sum of exp(x); next to nothing where all of x is -inf."""
    peak = tl.maximum(tl.max(x, axis, keep_dims=True), -1e30)
    total = tl.sum(tl.exp(x - peak), axis, keep_dims=True)
    return tl.max(peak + tl.log(tl.maximum(total, 1e-30)), axis)
