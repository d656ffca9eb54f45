"""The target: a transformers causal LM, seen as the loop needs it.

One class wraps any Llama- or Qwen-like model: forward passes over our own cache,
hidden states at the tapped layers only, and the embedding table and output head
that the drafter borrows.
"""

from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from xpress_lab.attention import grouped
from xpress_lab.cache import KVCache
from xpress_lab.errors import LabError

# transformers' names of model types that are built alike; other than that they may
# have biases, head norms or experts.
FAMILIES = ("llama", "mistral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3")


class TargetOutput(NamedTuple):
    """What one target call returns.

    logits: ``[N, T, V]`` (``[N, 1, V]`` with ``last_only``).
    taps: ``[N, T, n*H]``, the tapped layers' outputs side by side, or ``None``.
    """

    logits: torch.Tensor
    taps: torch.Tensor | None


class Target:
    """A frozen causal language model that verifies drafts.

    Args:
        model: a transformers causal LM of the Llama or Qwen families, whose layers
            all use full attention.
        tokenizer: its tokenizer, or ``None`` for work on token ids alone.
    """

    def __init__(self, model, tokenizer=None):
        refuse_unless_croppable(model.config)
        refuse_other_families(model.config)
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.config = model.config
        self.layers = model.get_decoder().layers
        self._watched: dict[int, torch.Tensor | None] = {}

    @classmethod
    def load(cls, folder: str | Path, device="cpu", dtype=torch.float32) -> "Target":
        """Read a target from a local folder in transformers' layout, never the net."""
        folder = Path(folder)
        if not (folder / "config.json").is_file():
            raise LabError(f"No target model in {folder}: config.json is missing.")
        try:
            model = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, local_files_only=True, use_safetensors=True
            )
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # transformers raises many kinds for a bad folder
            raise LabError(f"Cannot read the target in {folder}: {error}") from error
        return cls(model.to(device), tokenizer)

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a text, from the generation config: none, one or several."""
        ids = self.model.generation_config.eos_token_id
        return () if ids is None else tuple(ids) if isinstance(ids, list) else (ids,)

    @property
    def rope_theta(self) -> float:
        """Base of the rotary position embedding."""
        return float((self.config.rope_parameters or {}).get("rope_theta", 10_000.0))

    @property
    def head_dim(self) -> int:
        named = getattr(self.config, "head_dim", None)
        return named or self.config.hidden_size // self.config.num_attention_heads

    @property
    def pad_id(self) -> int:
        """Filler of short rows; attention never sees it, so any id will do."""
        pad = self.tokenizer.pad_token_id if self.tokenizer else None
        return pad if pad is not None else self.stop_ids[0] if self.stop_ids else 0

    @property
    def mask_token_id(self) -> int:
        """The id that stands for "to be drafted": the tokenizer's mask token, or the
        first row of the embedding that no token has (so do the published drafters for
        Qwen3), or else its last special token, which chat models never write."""
        if self.tokenizer.mask_token_id is not None:
            return self.tokenizer.mask_token_id
        if len(self.tokenizer) < self.vocab_size:
            return len(self.tokenizer)
        ordinary = {*self.stop_ids, *self.tokenizer.all_special_ids}
        spare = set(self.tokenizer.added_tokens_decoder) - ordinary
        if not spare:
            raise LabError("This tokenizer has no spare token to serve as a mask.")
        return max(spare)

    def new_cache(
        self, rows: int, capacity: int, kind: type[KVCache] = KVCache
    ) -> KVCache:
        """An empty cache for ``rows`` texts of at most ``capacity`` tokens."""
        config = self.config
        return kind(
            layers=config.num_hidden_layers,
            rows=rows,
            heads=config.num_key_value_heads or config.num_attention_heads,
            capacity=capacity,
            head_dim=self.head_dim,
            device=self.device,
            dtype=self.dtype,
        )

    def forward(
        self,
        tokens: torch.Tensor,
        cache: KVCache,
        tap_ids: tuple[int, ...] = (),
        *,
        last_only: bool = False,
        ends: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        visible: torch.Tensor | None = None,
    ) -> TargetOutput:
        """Run ``[N, T]`` new tokens after what the cache holds, and count them in.

        Args:
            tap_ids: layers whose *outputs* are wanted; () costs nothing.
            last_only: logits of the last position only (prefill).
            ends: ``[N]`` which new token is each row's last, where shorter rows are
                padded on the right; the caller crops the cache to what counts.
            positions: ``[N, T]``, by default each row's next ones.
            visible: ``[N, T, length + T]`` booleans, which cached and new tokens
                each token sees; by default all up to its own position.
        """
        hidden, taps = self.states(tokens, cache, tap_ids, positions, visible)
        if last_only:
            hidden = hidden[:, -1:] if ends is None else at_each(hidden, ends)
        return TargetOutput(self.head(hidden), taps)

    def states(
        self,
        tokens: torch.Tensor,
        cache: KVCache,
        tap_ids: tuple[int, ...] = (),
        positions: torch.Tensor | None = None,
        visible: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """:meth:`forward` short of the output head: ``[N, T, H]`` and the taps."""
        new = tokens.shape[1]
        if positions is None:
            starts = torch.tensor(cache.lengths, device=tokens.device)
            positions = starts[:, None] + torch.arange(new, device=tokens.device)
        if visible is None:
            keys = torch.arange(cache.length + new, device=tokens.device)
            visible = keys <= positions[:, :, None]
        self.watch(tap_ids)
        decoder = self.model.get_decoder()
        with grouped(decoder.config):
            hidden = decoder(
                input_ids=tokens,
                position_ids=positions,
                attention_mask=visible[:, None],
                cache=cache,
                use_cache=True,
            )[0]
        cache.advance(new)
        taps = None
        if tap_ids:
            taps = torch.cat([self._watched[i] for i in tap_ids], dim=-1)
        return hidden, taps

    def encode(self, prompt: str) -> list[int]:
        """A user's prompt in the chat template, ready for the answer.

        Targets that can think first are asked not to (methods 6.2); the templates of
        others do not read that setting.
        """
        if not prompt.strip():
            raise LabError("The prompt is empty: write a question or a request.")
        chat = [{"role": "user", "content": prompt}]
        return self.tokenizer.apply_chat_template(
            chat,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            enable_thinking=False,
        )

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Rows of the target's own embedding table, ``[..., H]``."""
        return self.model.get_input_embeddings()(tokens)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """The target's own output head: ``[..., H]`` to logits ``[..., V]``."""
        return self.model.get_output_embeddings()(hidden)

    def head_rows(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weight ``[D, H]`` and bias ``[D]`` of the output head for some ids."""
        head = self.model.get_output_embeddings()
        return head.weight[ids], None if head.bias is None else head.bias[ids]

    def watch(self, tap_ids: tuple[int, ...]) -> None:
        """Have the outputs of these layers remembered at each forward pass.

        A hook keeps a reference, nothing is copied; transformers counts the
        embedding as hidden state 0, so a tap is its ``hidden_states[id + 1]``.
        """
        for tap in tap_ids:
            if tap in self._watched:
                continue
            self._watched[tap] = None

            def remember(_module, _inputs, output, tap=tap):
                self._watched[tap] = output[0] if isinstance(output, tuple) else output

            self.layers[tap].register_forward_hook(remember)


def weight_bytes(folder: Path, dtype: torch.dtype) -> int:
    """What the weights of a target take, from its config alone; nothing is read."""
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except Exception as error:  # transformers raises many kinds for a bad config
        raise LabError(f"Cannot read the target in {folder}: {error}") from error
    return model.num_parameters() * dtype.itemsize


def at_each(states: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """One place a row: ``[N, T, H]`` and ``[N]`` to ``[N, 1, H]``."""
    return states[torch.arange(len(states), device=states.device), places][:, None]


def refuse_unless_croppable(config) -> None:
    """Raise for targets whose cache cannot be rolled back by a counter.

    Sliding-window and recurrent layers overwrite what a rejected draft would need
    to restore, so speculation on them would silently change the text.
    """
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    unnamed = getattr(config, "layer_types", None) is None
    if unnamed and getattr(config, "sliding_window", None):
        kinds.add("sliding_attention")  # Mistral and its like: every layer
    if kinds != {"full_attention"} or not hasattr(config, "num_attention_heads"):
        odd = ", ".join(sorted(kinds - {"full_attention"})) or "no attention heads"
        raise LabError(
            f"Target {config.model_type!r} has layers whose cache cannot roll back "
            f"({odd}); only full-attention models can verify drafts."
        )


def refuse_other_families(config) -> None:
    """Raise for models that are not built like Llama.

    This class reads their layers, final norm, rotary base and output head by name, and
    their logits are the head's alone: no scaling or capping comes after it.
    """
    if config.model_type not in FAMILIES:
        raise LabError(
            f"Target {config.model_type!r} is not of the Llama and Qwen families "
            f"({', '.join(FAMILIES)}): choose a target that is."
        )


def check_taps(tap_ids, num_layers: int) -> tuple[int, ...]:
    """Validate tapped layer ids: strictly increasing, in range, never the last.

    The last layer is refused because implementations disagree on whether its
    hidden state is taken before or after the final norm.
    """
    taps = tuple(tap_ids)
    if not all(isinstance(tap, int) for tap in taps):
        raise LabError(f"Tapped layers must be numbers, not {list(taps)}.")
    if not taps or list(taps) != sorted(set(taps)):
        raise LabError(f"Tapped layers must be strictly increasing, not {list(taps)}.")
    if taps[0] < 0 or taps[-1] > num_layers - 2:
        raise LabError(
            f"Tapped layers {list(taps)} must lie in 0..{num_layers - 2} "
            f"for a target of {num_layers} layers."
        )
    return taps


def default_taps(num_layers: int, count: int) -> tuple[int, ...]:
    """Layers to tap when a new drafter is trained, evenly spaced (methods 1.1); fewer
    than ``count`` where a target has too few.

    Never for loading: published checkpoints deviate from this formula.
    """
    if count == 1:
        return check_taps((num_layers // 2,), num_layers)
    gap = (num_layers - 4) / (count - 1)
    spread = {max(0, round(1 + i * gap)) for i in range(count)}
    return check_taps(sorted(spread), num_layers)
