"""Interactive views that stay readable where no kernel runs.

Every widget draws with a function that also makes the static figure. It is shown as
one output with three faces: the live widget, a picture for pages without a kernel,
and a sentence for readers without pictures.
"""

import base64
import io
from collections.abc import Callable, Sequence
from functools import cache
from textwrap import shorten

import matplotlib.pyplot as plt
from IPython.display import display
from ipywidgets import (
    HTML,
    BoundedIntText,
    Dropdown,
    HBox,
    Image,
    IntSlider,
    Layout,
    Play,
    VBox,
    jslink,
)
from matplotlib.figure import Figure

from xpress_lab.decoding import Generation, Round
from xpress_lab.viz.jacobi_grid import (
    CHANGED,
    FROZEN,
    Words,
    classify,
    emitted_by,
    gain,
    jacobi_grid,
    right_so_far,
)
from xpress_lab.viz.style import DPI


def png(fig: Figure) -> bytes:
    """The figure as PNG bytes; the figure is closed."""
    buffer = io.BytesIO()
    fig.savefig(
        buffer, format="png", dpi=DPI, bbox_inches="tight", metadata={"Software": None}
    )
    plt.close(fig)
    return buffer.getvalue()


def show(box, picture: bytes, sentence: str) -> None:
    """Display a widget with its picture and its sentence as fallbacks."""
    bundle = box._repr_mimebundle_()
    bundle = bundle[0] if isinstance(bundle, tuple) else bundle
    faces = {
        "image/png": base64.b64encode(picture).decode("ascii"),
        "text/plain": sentence,
    }
    display({**bundle, **faces}, raw=True)


def step_sentence(round: Round, p: int) -> str:
    """What the grid shows at pass p, in words."""
    states, _ = classify(round.trace, round.accepted)
    right = right_so_far(round.trace[p], emitted_by(round))
    if p == 0:
        return f"The bare draft: its first {right} tokens are right."
    said = f"Pass {p} changed {states[p].count(CHANGED)} tokens"
    said += f" and found {states[p].count(FROZEN)} frozen; {right} are right so far."
    if p == len(round.trace) - 1:
        said += f" The target keeps {round.accepted}."
    return said


Draft = Callable[[str, float, int], Generation]  # prompt, temperature, seed


class JacobiStepper:
    """Choose a prompt, a temperature, a seed, a block and a pass; the grid follows.

    Args:
        draft: the text that answers a prompt, with traces. Asked when the choice of
            prompt, temperature or seed moves, once for each.
        prompts: what there is to choose from.
        words: text of a token id, a function or a sequence.
    """

    def __init__(
        self,
        draft: Draft,
        prompts: Sequence[str],
        words: Words,
        temperatures: Sequence[float] = (0.0, 0.5, 1.0),
    ):
        self.draft, self.words = cache(draft), words
        wide, narrow = Layout(width="420px"), Layout(width="160px")
        named = [(shorten(p, 48, placeholder=" ..."), p) for p in prompts]
        self.prompt = Dropdown(options=named, description="prompt", layout=wide)
        degrees = [(f"{t:g}", t) for t in temperatures]
        self.temperature = Dropdown(options=degrees, description="T", layout=narrow)
        self.seed = BoundedIntText(max=999, description="seed", layout=narrow)
        self.block = Dropdown(description="block")
        self.step = IntSlider(description="pass", min=0, max=1)
        self.play = Play(min=0, max=1, interval=900)
        self.picture = Image(format="png", layout=Layout(width="100%"))
        self.sentence = HTML()
        jslink((self.play, "value"), (self.step, "value"))
        for control in (self.prompt, self.temperature, self.seed):
            control.observe(lambda _: self._list_blocks(), "value")
        self.block.observe(lambda _: self._rewind(), "value")
        self.step.observe(lambda _: self._draw(), "value")
        asked = HBox([self.prompt, self.temperature, self.seed])
        moved = HBox([self.block, self.play, self.step])
        self.box = VBox([asked, moved, self.picture, self.sentence])
        self._list_blocks()

    @property
    def rounds(self) -> list[Round]:
        """Of the text that was asked for; greedy texts need no seed."""
        temperature = self.temperature.value
        seed = self.seed.value if temperature else 0
        return self.draft(self.prompt.value, temperature, seed).rounds

    @property
    def round(self) -> Round:
        return self.rounds[self.block.value]

    def show(self) -> None:
        """Display, with the whole grid as the picture for pages without a kernel."""
        fig = jacobi_grid(self.round, self.words)
        last = len(self.round.trace) - 1
        show(self.box, png(fig), step_sentence(self.round, last))

    def _list_blocks(self) -> None:
        rounds = self.rounds
        self.seed.disabled = not self.temperature.value
        names = [f"{i + 1}: {len(r.trace) - 1} passes" for i, r in enumerate(rounds)]
        best = max(range(len(rounds)), key=lambda i: gain(rounds[i]))
        self.block.options = list(zip(names, range(len(rounds)), strict=True))
        self.block.value = best
        self._rewind()

    def _rewind(self) -> None:
        self.step.max = self.play.max = len(self.round.trace) - 1
        self.step.value = 0
        self._draw()

    def _draw(self) -> None:
        fig = jacobi_grid(self.round, self.words, upto=self.step.value)
        self.picture.value = png(fig)
        self.sentence.value = step_sentence(self.round, self.step.value)
