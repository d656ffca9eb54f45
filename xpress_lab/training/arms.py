"""The arms of the comparison: dflash alone, the Markov family, xpress.

As in the paper, a dFlash drafter is trained first, the *base*, and every arm goes on
from it with its own copy: dflash alone, the others together with a head. Same data,
same target, same recipe. dflash has no head and so takes quicker steps; it is given
more of them, to spend the same seconds.
"""

import copy
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from xpress_lab.borrowed import Borrowed
from xpress_lab.checkpoints import Arm, new_confidence, new_head
from xpress_lab.drafters.dflash import DFlashConfig, DFlashDrafter
from xpress_lab.presets import ArmRecipe
from xpress_lab.target import Target, default_taps
from xpress_lab.training.blocks import BlockBatch, make_blocks, sample_anchors
from xpress_lab.training.losses import afterwards_loss, arm_loss
from xpress_lab.training.states import StateStore
from xpress_lab.training.trainer import Fit, Monitor, Schedule, fit


def new_base(
    target: Target,
    recipe: ArmRecipe,
    seed: int,
    draft_ids: torch.Tensor | None = None,
) -> Arm:
    """A drafter of the recipe's size, started from the target's last layers."""
    torch.manual_seed(seed)
    drafter = DFlashDrafter(
        DFlashConfig(
            **target_sizes(target, recipe),
            num_hidden_layers=recipe.drafter_layers,
            mask_token_id=target.mask_token_id,
            block_size=recipe.block_size,
            tap_norm=recipe.tap_norm,
        )
    )
    start_from_target(drafter, target, recipe.norm_scale)
    return Arm("dflash", drafter.to(target.device), draft_ids=draft_ids)


def target_sizes(target: Target, recipe: ArmRecipe) -> dict:
    """Settings in which a new drafter follows its target, taps included."""
    config = target.config
    layers = config.num_hidden_layers
    return {
        "hidden_size": config.hidden_size,
        "intermediate_size": recipe.intermediate_size or config.intermediate_size,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": target.head_dim,
        "vocab_size": config.vocab_size,
        "num_target_layers": layers,
        "target_layer_ids": recipe.target_layer_ids or default_taps(layers, 3),
        "rope_theta": target.rope_theta,
    }


def new_arm(kind: str, base: Arm, recipe: ArmRecipe, seed: int) -> Arm:
    """A copy of the base drafter, with an untrained head unless ``kind`` is dflash,
    and an untrained confidence head if the recipe has a weight for one."""
    config = base.drafter.config
    torch.manual_seed(seed)
    drafter = copy.deepcopy(base.drafter).float().train().requires_grad_(True)
    head = new_head(kind, config, recipe.rank, recipe.mlp_ratio, base.draft_ids)
    arm = Arm(kind, drafter, head, base.draft_ids)
    if recipe.confidence_weight:
        arm.confidence = new_confidence(arm)
    for module in arm.modules():
        module.to(drafter.norm.weight.device)
    return arm


@torch.no_grad()
def start_from_target(
    drafter: DFlashDrafter, target: Target, norm_scale: float = 1.0
) -> None:
    """Begin as the target's own last layers, reading the last tap alone.

    ``fc`` passes the last tap through and the norms are the target's, so that the
    first drafter layer sees what the layer after that tap sees. The output is
    already in the space that the borrowed head reads; ``norm_scale`` below one makes
    it less sure of itself, which suits a model that guesses ahead.
    """
    decoder, size = target.model.get_decoder(), drafter.config.hidden_size
    late = decoder.layers[-len(drafter.layers) :]
    for layer, source in zip(drafter.layers, late, strict=True):
        state = {name: value.float() for name, value in source.state_dict().items()}
        keep_strongest(state, drafter.config.intermediate_size)
        if "self_attn.q_norm.weight" not in state:
            add_head_norms(state, drafter.config.head_dim)
        layer.load_state_dict(state)
    drafter.norm.weight.copy_(decoder.norm.weight * norm_scale)
    drafter.hidden_norm.weight.copy_(late[0].input_layernorm.weight)
    drafter.fc.weight.zero_()
    drafter.fc.weight[:, -size:] = torch.eye(size)


def keep_strongest(state: dict[str, torch.Tensor], width: int) -> None:
    """Thin a layer's SwiGLU to its ``width`` neurons with the largest weights."""
    gate, up, down = (f"mlp.{name}_proj.weight" for name in ("gate", "up", "down"))
    strength = state[gate].norm(dim=1) * state[up].norm(dim=1) * state[down].norm(dim=0)
    kept = strength.topk(width).indices.sort().values
    state[gate], state[up] = state[gate][kept], state[up][kept]
    state[down] = state[down][:, kept]


def add_head_norms(state: dict[str, torch.Tensor], head_dim: int) -> None:
    """Norm scales for queries and keys of a target that does not norm them.

    The scale is the size that the projection gives white input, per channel and over
    heads, so that attention starts about as sharp as the target's.
    """
    scale = state["input_layernorm.weight"]
    for name in ("q", "k"):
        power = (state[f"self_attn.{name}_proj.weight"] * scale).square().sum(dim=1)
        size = power.view(-1, head_dim).mean(dim=0).sqrt()
        state[f"self_attn.{name}_norm.weight"] = size


def train_arm(
    arm: Arm,
    store: StateStore,
    recipe: ArmRecipe,
    steps: int,
    folder: Path,
    seed: int = 0,
    monitor: Monitor | None = None,
    row: int = 0,
    on_step: Callable[[int, dict[str, float]], None] | None = None,
) -> Fit:
    """Fit a drafter and its head to the target's texts, in place.

    Other arguments as in :func:`xpress_lab.training.trainer.fit`.
    """
    borrowed = Borrowed(store.target, arm.draft_ids)

    def loss_of(generator: torch.Generator):
        blocks = draw_blocks(arm, borrowed, store, recipe, generator)
        with autocast(store, recipe):
            return arm_loss(arm, borrowed, blocks, recipe, generator)

    parts = nn.ModuleList(arm.modules())
    schedule = Schedule(
        steps, recipe.learning_rate, recipe.warmup, accumulate=recipe.accumulate
    )
    options = {"on_step": on_step, "monitor": monitor, "row": row}
    return fit(arm.kind, parts, loss_of, schedule, folder, seed, **options)


def train_confidence(
    arm: Arm, store: StateStore, recipe: ArmRecipe, folder: Path, seed: int = 0
) -> Fit:
    """Give a finished arm a confidence head, in place; nothing else of it moves.

    Its features are detached in any case (methods 3), so that it can as well be
    trained afterwards, on the drafts of the arm as it is used.
    """
    borrowed = Borrowed(store.target, arm.draft_ids)
    torch.manual_seed(seed)
    arm.confidence = new_confidence(arm)
    for module in arm.modules():
        module.to(store.target.device, torch.float32)

    def loss_of(generator: torch.Generator):
        blocks = draw_blocks(arm, borrowed, store, recipe, generator)
        with autocast(store, recipe):
            return afterwards_loss(arm, borrowed, blocks, recipe), {}

    steps = recipe.steps["confidence"]
    schedule = Schedule(steps, recipe.learning_rate, recipe.warmup)
    return fit("confidence", arm.confidence, loss_of, schedule, folder, seed)


def draw_blocks(
    arm: Arm,
    borrowed: Borrowed,
    store: StateStore,
    recipe: ArmRecipe,
    generator: torch.Generator,
) -> BlockBatch:
    """Blocks at random anchors of random texts."""
    rows, config = store.texts.draw(recipe.batch, generator), arm.drafter.config
    texts = store.texts.select(rows, recipe.pad_to)
    states = store.read(rows, recipe.pad_to)
    anchors, kept = sample_anchors(texts, recipe.anchors, generator)
    sizes = config.block_size, config.mask_token_id
    return make_blocks(borrowed, texts, states, anchors, kept, *sizes)


def autocast(store: StateStore, recipe: ArmRecipe) -> torch.autocast:
    """bfloat16 arithmetic, where the recipe asks for it."""
    device = store.target.device.type
    return torch.autocast(device, torch.bfloat16, enabled=recipe.bfloat16)
