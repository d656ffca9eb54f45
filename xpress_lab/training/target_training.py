"""Train the pocket target on the grammar's corpus, from nothing."""

from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import Qwen3Config, Qwen3ForCausalLM

from xpress_lab.presets import TargetRecipe
from xpress_lab.training.texts import TextSet
from xpress_lab.training.trainer import Fit, Schedule, fit


def new_target_model(recipe: TargetRecipe, tokenizer, seed: int) -> Qwen3ForCausalLM:
    """An untrained Qwen3 of the recipe's size, with tied embeddings."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden_size,
        num_hidden_layers=recipe.num_hidden_layers,
        num_attention_heads=recipe.num_attention_heads,
        num_key_value_heads=recipe.num_key_value_heads,
        head_dim=recipe.head_dim,
        intermediate_size=recipe.intermediate_size,
        max_position_embeddings=recipe.max_position_embeddings,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config)


def language_model_loss(model, batch: TextSet, prompt_weight: float) -> torch.Tensor:
    """Next-token cross-entropy; response tokens weigh 1, prompt tokens less.

    Without the weight on responses this small a model does not learn to copy names
    and numbers from its prompt.
    """
    logits = model(input_ids=batch.tokens[:, :-1], use_cache=False).logits
    each = F.cross_entropy(
        logits.flatten(0, 1), batch.tokens[:, 1:].flatten(), reduction="none"
    )
    weight = torch.where(batch.in_response(), 1.0, prompt_weight)
    place = torch.arange(batch.tokens.shape[1])
    weight = (weight * (place < batch.lengths[:, None]))[:, 1:].flatten()
    return (each * weight).sum() / weight.sum()


def train_target(
    model: Qwen3ForCausalLM,
    texts: TextSet,
    recipe: TargetRecipe,
    folder: Path,
    seed: int = 0,
) -> Fit:
    """Fit ``model`` to ``texts`` in place."""

    def loss_of(generator: torch.Generator):
        batch = texts.select(texts.draw(recipe.batch, generator))
        return language_model_loss(model, batch, recipe.prompt_weight), {}

    schedule = Schedule(recipe.steps, recipe.learning_rate, weight_decay=0.01)
    return fit("target", model, loss_of, schedule, folder, seed)
