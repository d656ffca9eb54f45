"""The refiner's inner loop, twice: plain torch, and Triton kernels of the same name."""
