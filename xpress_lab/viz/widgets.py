"""Interactive views that stay readable where no kernel runs.

Every widget draws with a function that also makes the static figure. It is shown as
one output with three faces: the live widget, a picture for pages without a kernel,
and a sentence for readers without pictures.
"""

import base64
import io
from collections.abc import Mapping

import matplotlib.pyplot as plt
from IPython.display import display
from ipywidgets import (
    HTML,
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


class JacobiStepper:
    """Choose a text, a block and a pass; the grid follows.

    Args:
        texts: generations with traces, by name.
        words: text of a token id, a function or a sequence.
    """

    def __init__(self, texts: Mapping[str, Generation], words: Words):
        self.texts, self.words = texts, words
        wide = Layout(width="340px")
        self.text = Dropdown(options=list(texts), description="prompt", layout=wide)
        self.block = Dropdown(description="block")
        self.step = IntSlider(description="pass", min=0, max=1)
        self.play = Play(min=0, max=1, interval=900)
        self.picture = Image(format="png", layout=Layout(width="100%"))
        self.sentence = HTML()
        jslink((self.play, "value"), (self.step, "value"))
        self.text.observe(lambda _: self._list_blocks(), "value")
        self.block.observe(lambda _: self._rewind(), "value")
        self.step.observe(lambda _: self._draw(), "value")
        chosen, moved = HBox([self.text, self.block]), HBox([self.play, self.step])
        self.box = VBox([chosen, moved, self.picture, self.sentence])
        self._list_blocks()

    @property
    def round(self) -> Round:
        return self.texts[self.text.value].rounds[self.block.value]

    def show(self) -> None:
        """Display, with the whole grid as the picture for pages without a kernel."""
        fig = jacobi_grid(self.round, self.words)
        last = len(self.round.trace) - 1
        show(self.box, png(fig), step_sentence(self.round, last))

    def _list_blocks(self) -> None:
        rounds = self.texts[self.text.value].rounds
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
