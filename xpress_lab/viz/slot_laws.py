"""One slot of one block: what the drafter thought, the refiner, and the target."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from xpress_lab.benchmarks.slot_laws import SlotLaws, distance
from xpress_lab.errors import LabError
from xpress_lab.viz.jacobi_grid import Words, font_size, lookup, show_word
from xpress_lab.viz.style import INK, LOOKS, MUTED, tint

OWN = "#d9a441"  # the target's bars
SHOWN, LEAST = 8, 0.01  # tokens in a picture; the share that one of the laws gives them


def contenders(laws: SlotLaws, slot: int, step: int, most: int = SHOWN) -> list[int]:
    """The tokens that any of the three laws thinks likeliest, in the target's order,
    those without a hope left out."""
    three = torch.stack(_three(laws, slot, step))
    best, tokens = three.amax(0).topk(min(most, three.shape[1]))
    found = tokens[best >= LEAST].tolist()
    # What the target does not distinguish, the drafter may.
    return sorted(found, key=lambda t: (-round(float(three[2, t]), 2), -three[0, t]))


def slot_picture(laws: SlotLaws, words: Words, slot: int, step: int) -> Figure:
    """The block as the pass found and left it, and the three laws of one slot.

    Args:
        laws: from :func:`xpress_lab.benchmarks.slot_laws.slot_laws`.
        words: text of a token id, a function or a sequence.
        slot, step: slot and pass, both from 1.
    """
    check_place(laws, slot, step)
    word = lookup(words)
    tokens = contenders(laws, slot, step)
    height = 4.4  # the same for every slot, so that a widget does not jump
    fig = plt.figure(figsize=(10.5, height), layout="none")
    strip = fig.add_axes((0.1, 1 - 1.05 / height, 0.88, 0.85 / height))
    _strip(strip, laws, word, slot, step)
    bars = fig.add_axes((0.1, 0.45 / height, 0.52, 1 - 1.75 / height))
    _bars(bars, laws, word, slot, step, tokens)
    _legend(fig, laws, slot, step)
    return fig


def slot_sentence(laws: SlotLaws, words: Words, slot: int, step: int) -> str:
    """What the picture shows, in words."""
    word = lookup(words)
    best = [show_word(word(int(law.argmax()))) for law in _three(laws, slot, step)]
    before, after = _distances(laws, slot, step)
    return (
        f"Slot {slot}: the drafter's favourite is “{best[0]}”, after pass {step} it is "
        f"“{best[1]}”, and the target's is “{best[2]}”. Distance to the target's law: "
        f"{before:.2f} before, {after:.2f} after."
    )


def check_place(laws: SlotLaws, slot: int, step: int) -> None:
    """Refuse a slot or pass that the block does not have."""
    for name, value, last in (("slot", slot, laws.slots), ("pass", step, laws.passes)):
        if not 1 <= value <= last:
            raise LabError(f"There is no {name} {value}: choose 1 to {last}.")


def _three(laws: SlotLaws, slot: int, step: int):
    k, p = slot - 1, step - 1
    return laws.marginal[k], laws.refined[p, k], laws.target[p, k]


def _distances(laws: SlotLaws, slot: int, step: int) -> tuple[float, float]:
    marginal, refined, target = _three(laws, slot, step)
    return distance(marginal, target), distance(refined, target)


def _strip(ax: Axes, laws: SlotLaws, word, slot: int, step: int) -> None:
    """Two rows of tokens: what the pass read, and what it chose."""
    slots = laws.slots
    ax.set(xlim=(-0.02, slots + 0.02), ylim=(2.1, -0.75))
    ax.set_axis_off()
    anchor = show_word(word(laws.anchor))
    names = (f"pass {step - 1}" if step > 1 else "draft", f"pass {step}")
    for y, (name, row) in enumerate(zip(names, laws.trace[step - 1 :], strict=False)):
        ax.text(-0.15, y + 0.5, name, ha="right", va="center", fontsize=8.5)
        for k, token in enumerate(row):
            read = y == 0 and k < slot - 1
            own = y == 1 and k == slot - 1
            fill = tint(LOOKS["xpress"].colour, 0.25) if own else "white"
            fill = "#e4e4e4" if read else fill
            _cell(ax, k, y, show_word(word(token)), fill, read or own)
    ax.add_patch(
        Rectangle((slot - 1, 1), 1, 1, fill=False, edgecolor=INK, linewidth=1.8)
    )
    for k in range(slots):
        weight = "bold" if k == slot - 1 else "normal"
        ax.text(k + 0.5, -0.35, str(k + 1), ha="center", va="center", fontsize=8,
                color=MUTED, weight=weight)  # fmt: skip
    after = f"after “{anchor}”"
    ax.text(-0.15, -0.35, after, ha="right", va="center", fontsize=8, color=MUTED)


def _cell(ax: Axes, k: int, y: int, text: str, fill, strong: bool) -> None:
    edge = {"edgecolor": "#c4c4c4", "linewidth": 0.6}
    ax.add_patch(Rectangle((k, y), 1, 1, facecolor=fill, **edge))
    ax.text(
        k + 0.5,
        y + 0.5,
        text.replace("$", r"\$"),
        ha="center",
        va="center",
        fontsize=font_size(text) - 0.5,
        color=INK if strong else MUTED,
    )


def _bars(ax: Axes, laws, word, slot: int, step: int, tokens: Sequence[int]) -> None:
    """Three bars a token, in percent."""
    y, high = np.arange(len(tokens)), 0.26
    three = _three(laws, slot, step)
    for place, (law, (colour, hatch, _)) in enumerate(
        zip(three, looks(step), strict=True)
    ):
        share = [float(law[token]) for token in tokens]
        at = y + (place - 1) * high
        style = {"color": colour, "hatch": hatch, "edgecolor": "white"}
        ax.barh(at, share, high * 0.94, linewidth=0.4, **style)
        for bar, value in zip(at, share, strict=True):
            if value >= 0.005:
                ax.text(value + 0.008, bar, f"{value:.0%}", va="center", fontsize=7)
    chosen = laws.trace[step][slot - 1]
    ax.set_yticks(y, [show_word(word(t)).replace("$", r"\$") for t in tokens])
    for label, token in zip(ax.get_yticklabels(), tokens, strict=True):
        label.set_weight("bold" if token == chosen else "normal")
    ax.set(xlim=(0, 1.08), ylim=(max(len(tokens), 5) - 0.5, -0.5), xlabel="probability")
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    ax.grid(False, axis="y")


def looks(step: int) -> list[tuple[str, str, str]]:
    """Colour, hatch and name of the three laws, in drawing order."""
    bare, refined = LOOKS["dflash"], LOOKS["xpress"]
    return [
        (bare.colour, bare.hatch, "drafter's marginal: knows no draft"),
        (refined.colour, refined.hatch, f"refined, pass {step}: knows the grey drafts"),
        (OWN, "\\\\\\", "target: knows the grey drafts"),
    ]


def _legend(fig: Figure, laws: SlotLaws, slot: int, step: int) -> None:
    handles = [
        Rectangle((0, 0), 1, 1, facecolor=colour, hatch=hatch, edgecolor="white")
        for colour, hatch, _ in looks(step)
    ]
    names = [name for *_, name in looks(step)]
    top = 1 - 1.25 / fig.get_figheight()
    fig.legend(
        handles,
        names,
        loc="upper left",
        bbox_to_anchor=(0.635, top),
        fontsize=9.5,
        title=f"What may stand in slot {slot}",
        title_fontproperties={"weight": "bold", "size": 11},
        alignment="left",
    )
    before, after = _distances(laws, slot, step)
    fig.text(
        0.65,
        top - 1.2 / fig.get_figheight(),
        "Distance to the target's law, from 0 to 1:\n"
        f"marginal {before:.2f}, refined {after:.2f}\n\n"
        "In bold type: the token that the pass chose",
        va="top",
        fontsize=9.5,
        linespacing=1.6,
    )
