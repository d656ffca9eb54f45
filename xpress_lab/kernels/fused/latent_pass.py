"""The latent pass: gather, mix and SwiGLU of a slot in one program, all in r-space."""

import torch
import triton
import triton.language as tl

UNITS = 32  # SwiGLU units handled at a time


def latent(head, prepared: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
    """See :func:`xpress_lab.kernels.plain.latent`."""
    rows, slots, rank = prepared.shape
    out = torch.empty_like(prepared, memory_format=torch.contiguous_format)
    _latent[(rows, slots)](
        head.table,
        previous.contiguous(),
        prepared.contiguous(),
        head.mixer,
        head.gate_up,
        head.down,
        out,
        rank,
        head.down.shape[1],
        SLOTS=slots,
        RANK=triton.next_power_of_2(rank),
        UNITS=UNITS,
    )
    return out


@triton.jit
def _latent(
    table,
    previous,
    prepared,
    mixer,
    gate_up,
    down,
    out,
    rank,
    width,
    SLOTS: tl.constexpr,
    RANK: tl.constexpr,
    UNITS: tl.constexpr,
):
    row, slot = tl.program_id(0), tl.program_id(1)
    line = previous + row * (SLOTS + 1)
    here = (row * SLOTS + slot) * rank
    z = latent_of(
        table, line, prepared + here, mixer, gate_up, down, slot, rank, width,
        SLOTS, RANK, UNITS,
    )  # fmt: skip
    channel = tl.arange(0, RANK)
    tl.store(out + here + channel, z.to(out.dtype.element_ty), mask=channel < rank)


@triton.jit
def latent_of(
    table,
    line,
    prepared,
    mixer,
    gate_up,
    down,
    slot,
    rank,
    width,
    SLOTS: tl.constexpr,
    RANK: tl.constexpr,
    UNITS: tl.constexpr,
):
    """Of one slot, float32 ``[RANK]``; line and prepared begin at its row and place."""
    channel = tl.arange(0, RANK)
    real = channel < rank
    c = tl.load(prepared + channel, mask=real, other=0.0).to(tl.float32)
    for j in range(SLOTS + 1):  # the mixer is causal: a draft sees slots 0..slot + 1
        seen = real & (j <= slot + 1)
        token = tl.load(line + j)
        a = tl.load(table + token * rank + channel, mask=seen, other=0.0)
        weight = mixer + (slot * (SLOTS + 1) + j) * rank + channel
        c += a.to(tl.float32) * tl.load(weight, mask=seen, other=0.0).to(tl.float32)
    z = c
    for start in range(0, width, UNITS):
        unit = start + tl.arange(0, UNITS)
        inside = (unit < width)[:, None] & real[None, :]
        weight = gate_up + unit[:, None] * rank + channel[None, :]
        gate = tl.load(weight, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(weight + width * rank, mask=inside, other=0.0).to(tl.float32)
        gate = tl.sum(gate * c[None, :], axis=1)
        active = gate * tl.sigmoid(gate) * tl.sum(up * c[None, :], axis=1)
        weight = down + channel[None, :] * width + unit[:, None]
        back = tl.load(weight, mask=inside, other=0.0).to(tl.float32)
        z += tl.sum(back * active[:, None], axis=0)
    return z
