"""dFlash: a block-diffusion drafter that proposes a whole block in one pass.

The drafter reads the target's hidden states of the verified text ("context") and
a block of embeddings, the anchor's followed by mask tokens, and returns one hidden
state per slot. It owns no embedding table and no output head; it borrows the
target's.

Two block layouts exist and are not interchangeable (methods 1.2). *Fill-in*: slot j
predicts position anchor + j, slot 0 (the anchor itself) predicts nothing, so a block
of B yields B - 1 drafts. *Anchor-first*: slot j predicts position anchor + j + 1, so
all B slots draft. The network is the same; which slots are read is not.

Parameter names are those of the published z-lab checkpoints.
"""

from dataclasses import asdict, dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import nn

from xpress_lab.cache import KVCache
from xpress_lab.pretrained import Pretrained


@dataclass(frozen=True)
class DFlashConfig:
    """Sizes of a drafter; hidden size, heads and vocabulary follow the target.

    ``tap_norm`` normalises each tap before ``fc``; published drafters do not, so
    it is off unless a checkpoint says otherwise. ``sample_from_anchor`` says that the
    layout is anchor-first.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    num_target_layers: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    block_size: int = 16
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1_000_000.0
    tap_norm: bool = False
    sample_from_anchor: bool = False

    @property
    def first_slot(self) -> int:
        """The slot that predicts the token after the anchor."""
        return 0 if self.sample_from_anchor else 1

    @property
    def drafts(self) -> int:
        """Tokens that a block proposes: B - 1, or B in the anchor-first layout."""
        return self.block_size - self.first_slot


class RMSNorm(nn.Module):
    """Root-mean-square norm with a learned scale, over the last axis."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class SwiGLU(nn.Module):
    """down(silu(gate x) * up x), bias-free."""

    def __init__(self, size: int, width: int):
        super().__init__()
        self.gate_proj = nn.Linear(size, width, bias=False)
        self.up_proj = nn.Linear(size, width, bias=False)
        self.down_proj = nn.Linear(width, size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding on ``[N, heads, T, head_dim]``, half-split form."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def rotary_angles(
    positions: torch.Tensor, dim: int, theta: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin ``[N, 1, T, dim]`` for ``[N, T]``, computed anew and never stored."""
    index = torch.arange(0, dim, 2, device=positions.device).float()
    turns = positions[:, None, :, None].float() * theta ** (-index / dim)
    turns = torch.cat([turns, turns], dim=-1)
    return turns.cos().to(dtype), turns.sin().to(dtype)


class BlockAttention(nn.Module):
    """Block queries over context and block keys, without a causal mask."""

    def __init__(self, config: DFlashConfig):
        super().__init__()
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        size, head_dim = config.hidden_size, config.head_dim
        self.head_dim = head_dim
        self.grouped = heads != kv_heads
        self.q_proj = nn.Linear(size, heads * head_dim, bias=False)
        self.k_proj = nn.Linear(size, kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(size, kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(heads * head_dim, size, bias=False)
        self.q_norm = RMSNorm(head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(head_dim, config.rms_norm_eps)

    def forward(self, block, context, angles, mask, cache, layer):
        """``block`` ``[N, T, H]``, ``context`` ``[N, C, H]``; angles cover C + T."""
        cos, sin = angles
        slots = block.shape[1]
        both = torch.cat([context, block], dim=1)
        split = lambda x: x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # noqa: E731
        query = self.q_norm(split(self.q_proj(block)))
        key = rotate(self.k_norm(split(self.k_proj(both))), cos, sin)
        value = split(self.v_proj(both))
        query = rotate(query, cos[..., -slots:, :], sin[..., -slots:, :])
        if cache is not None:
            key, value = cache.update(key, value, layer)
        mixed = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, enable_gqa=self.grouped
        )
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class DrafterLayer(nn.Module):
    """Attention and SwiGLU with pre-norms; the context is normed once, elsewhere."""

    def __init__(self, config: DFlashConfig):
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = BlockAttention(config)
        self.mlp = SwiGLU(size, config.intermediate_size)
        self.input_layernorm = RMSNorm(size, eps)
        self.post_attention_layernorm = RMSNorm(size, eps)

    def forward(self, block, context, angles, mask, cache, layer):
        normed = self.input_layernorm(block)
        block = block + self.self_attn(normed, context, angles, mask, cache, layer)
        return block + self.mlp(self.post_attention_layernorm(block))


class Drafter(nn.Module):
    """What every drafter has: a config, layers, a final norm and so a dtype."""

    def angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin for ``[N, T]`` positions."""
        config = self.config
        return rotary_angles(
            positions, config.head_dim, config.rope_theta, self.norm.weight.dtype
        )

    def new_cache(
        self, rows: int, capacity: int, kind: type[KVCache] = KVCache
    ) -> KVCache:
        """An empty cache for this drafter's keys and values."""
        config, weight = self.config, self.norm.weight
        return kind(
            len(self.layers),
            rows,
            config.num_key_value_heads,
            capacity,
            config.head_dim,
            weight.device,
            weight.dtype,
        )


class DFlashDrafter(Drafter, Pretrained):
    """The drafter network: context projection, a few layers, a final norm."""

    architecture = "DFlashDraftModel"

    def __init__(self, config: DFlashConfig):
        super().__init__()
        self.config = config
        size = config.hidden_size
        self.fc = nn.Linear(len(config.target_layer_ids) * size, size, bias=False)
        self.hidden_norm = RMSNorm(size, config.rms_norm_eps)
        self.layers = nn.ModuleList(
            DrafterLayer(config) for _ in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(size, config.rms_norm_eps)

    def settings(self) -> dict:
        """The config, whose keys are published ones."""
        return asdict(self.config)

    @classmethod
    def of_settings(cls, settings: dict) -> Self:
        taps = tuple(settings.pop("target_layer_ids", ()))
        return cls(DFlashConfig(**settings, target_layer_ids=taps))

    def project(self, taps: torch.Tensor) -> torch.Tensor:
        """Target taps ``[N, C, n*H]`` to context ``[N, C, H]``, once for all layers."""
        if self.config.tap_norm:
            count = len(self.config.target_layer_ids)
            parts = taps.unflatten(-1, (count, -1))
            taps = F.rms_norm(parts, parts.shape[-1:], None, 1e-6).flatten(-2)
        return self.hidden_norm(self.fc(taps))

    def forward(
        self,
        block: torch.Tensor,
        context: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | None = None,
        cache: KVCache | None = None,
    ) -> torch.Tensor:
        """Hidden states of all slots, ``[N, T, H]``.

        Args:
            block: ``[N, T, H]`` embeddings: anchor, then masks (T = B), or several
                such blocks side by side in training.
            context: ``[N, C, H]`` from :meth:`project`; only tokens that the cache
                does not hold yet.
            positions: ``[N, C + T]``, context first.
            mask: ``[N, 1, T, keys]`` booleans, or ``None``: every slot sees all.
            cache: appended with context *and* block keys; the caller crops it.
        """
        angles = self.angles(positions)
        for index, layer in enumerate(self.layers):
            block = layer(block, context, angles, mask, cache, index)
        return self.norm(block)
