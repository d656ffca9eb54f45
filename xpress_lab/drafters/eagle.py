"""EAGLE-3: an autoregressive drafter of one layer that runs on its own states.

Where dFlash drafts a block in one pass, this one drafts token by token. Column i
joins the hidden state of position i with the token at i + 1 and predicts the token at
i + 2. For verified tokens the hidden state is the target's (tapped layers, projected);
past them the drafter is fed its own output (methods 5).
"""

from dataclasses import asdict, dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import nn

from xpress_lab.cache import KVCache
from xpress_lab.drafters.dflash import Drafter, RMSNorm, SwiGLU, rotate
from xpress_lab.pretrained import Pretrained


@dataclass(frozen=True)
class EagleConfig:
    """Sizes; hidden size, heads and vocabulary follow the target."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    num_target_layers: int
    target_layer_ids: tuple[int, ...]
    chain: int = 7  # tokens drafted a round
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0


class EagleAttention(nn.Module):
    """Queries, keys and values from token embedding and hidden state side by side."""

    def __init__(self, config: EagleConfig):
        super().__init__()
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        size, head_dim = config.hidden_size, config.head_dim
        self.head_dim, self.repeats = head_dim, heads // kv_heads
        self.q_proj = nn.Linear(2 * size, heads * head_dim, bias=False)
        self.k_proj = nn.Linear(2 * size, kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(2 * size, kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(heads * head_dim, size, bias=False)
        self.q_norm = RMSNorm(head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(head_dim, config.rms_norm_eps)

    def project(self, joined: torch.Tensor, angles):
        """``[N, T, 2H]`` to query, key, value ``[N, heads, T, head_dim]``, rotated."""
        split = lambda x: x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # noqa: E731
        query = rotate(self.q_norm(split(self.q_proj(joined))), *angles)
        key = rotate(self.k_norm(split(self.k_proj(joined))), *angles)
        return query, key, split(self.v_proj(joined))

    def forward(self, joined, angles, mask, cache: KVCache) -> torch.Tensor:
        query, key, value = self.project(joined, angles)
        key, value = cache.update(key, value, 0)
        mixed = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, enable_gqa=self.repeats > 1
        )
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class EagleLayer(nn.Module):
    """Norms, attention over both inputs, SwiGLU; the residual carries the hidden."""

    def __init__(self, config: EagleConfig):
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(size, eps)  # of the token embedding
        self.hidden_norm = RMSNorm(size, eps)
        self.self_attn = EagleAttention(config)
        self.post_attention_layernorm = RMSNorm(size, eps)
        self.mlp = SwiGLU(size, config.intermediate_size)

    def join(self, embedded: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """``[N, T, H]`` twice to ``[N, T, 2H]``, each normed by itself."""
        parts = [self.input_layernorm(embedded), self.hidden_norm(hidden)]
        return torch.cat(parts, dim=-1)

    def after(self, hidden: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """Residuals and MLP behind the attention."""
        hidden = hidden + mixed
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class EagleDrafter(Drafter, Pretrained):
    """Projection of the taps, one layer, a final norm; table and head are borrowed."""

    architecture = "Qwen3Eagle3Model"  # DeepSpec's name

    def __init__(self, config: EagleConfig):
        super().__init__()
        self.config = config
        size = config.hidden_size
        self.fc = nn.Linear(len(config.target_layer_ids) * size, size, bias=False)
        self.layers = nn.ModuleList([EagleLayer(config)])
        self.norm = RMSNorm(size, config.rms_norm_eps)

    def settings(self) -> dict:
        """The config, whose keys are published ones but for ``chain``."""
        return asdict(self.config) | {"num_hidden_layers": 1}

    @classmethod
    def of_settings(cls, settings: dict) -> Self:
        if settings.pop("num_hidden_layers", 1) != 1:
            raise ValueError("an EAGLE-3 drafter has 1 layer")
        taps = tuple(settings.pop("target_layer_ids", ()))
        return cls(EagleConfig(**settings, target_layer_ids=taps))

    def project(self, taps: torch.Tensor) -> torch.Tensor:
        """Target taps ``[N, C, n*H]`` to hidden states ``[N, C, H]``."""
        return self.fc(taps)

    def forward(
        self,
        embedded: torch.Tensor,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        cache: KVCache,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """States of T columns, ``[N, T, H]``, before the final norm.

        Args:
            embedded: ``[N, T, H]`` of the tokens one place on.
            hidden: ``[N, T, H]`` projected taps, or own states of the step before.
            positions: ``[N, T]`` of the hidden states.
            cache: appended with the columns' keys; the caller counts and crops.
            mask: ``[N, 1, T, keys]`` booleans, ``None`` for one column that sees all.
        """
        (layer,) = self.layers
        angles = self.angles(positions)
        joined = layer.join(embedded, hidden)
        return layer.after(hidden, layer.self_attn(joined, angles, mask, cache))
