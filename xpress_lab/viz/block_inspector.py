"""The block inspector: any slot of any block, before and after refinement."""

from collections.abc import Mapping
from html import escape

from ipywidgets import HTML, Dropdown, HBox, Image, IntSlider, Layout, VBox

from xpress_lab.benchmarks.slot_laws import SlotLaws, most_telling, slot_laws
from xpress_lab.block_method import BlockMethod
from xpress_lab.decoding import Generation
from xpress_lab.target import Target
from xpress_lab.viz.jacobi_grid import Words, gain
from xpress_lab.viz.slot_laws import slot_picture, slot_sentence
from xpress_lab.viz.widgets import png, show


class BlockInspector:
    """Choose a text, a block, a slot and a pass; the three laws follow.

    Args:
        target, method: what wrote the texts.
        texts: generations with traces, by name; blocks that were not refined are
            left out.
        words: text of a token id, a function or a sequence.
    """

    def __init__(
        self,
        target: Target,
        method: BlockMethod,
        texts: Mapping[str, Generation],
        words: Words,
    ):
        self.target, self.method = target, method
        self.texts, self.words = texts, words
        self._known: dict[tuple[str, int], SlotLaws] = {}
        wide = Layout(width="340px")
        self.text = Dropdown(options=list(texts), description="prompt", layout=wide)
        self.block = Dropdown(description="block")
        self.slot = IntSlider(description="slot", min=1, max=1)
        self.step = IntSlider(description="pass", min=1, max=1)
        self.picture = Image(format="png", layout=Layout(width="100%"))
        self.sentence = HTML()
        chosen, moved = HBox([self.text, self.block]), HBox([self.slot, self.step])
        self.box = VBox([chosen, moved, self.picture, self.sentence])
        self._quiet = False
        self.text.observe(lambda _: self._list_blocks(), "value")
        self.block.observe(lambda _: self._open(), "value")
        self.slot.observe(lambda _: self._draw(), "value")
        self.step.observe(lambda _: self._draw(), "value")
        self._list_blocks()

    @property
    def laws(self) -> SlotLaws:
        """Laws of the chosen block, computed when it is first looked at."""
        key = self.text.value, self.block.value
        if key not in self._known:
            text, number = self.texts[key[0]], key[1]
            self._known[key] = slot_laws(self.target, self.method, text, number)
        return self._known[key]

    def show(self) -> None:
        """Display, with the chosen slot as the picture without a kernel."""
        place = self.laws, self.words, self.slot.value, self.step.value
        show(self.box, png(slot_picture(*place)), slot_sentence(*place))

    def _list_blocks(self) -> None:
        rounds = self.texts[self.text.value].rounds
        refined = [i for i, r in enumerate(rounds) if len(r.trace) > 1]
        self._quiet = True
        self.block.options = [
            (f"{i + 1}: {rounds[i].accepted} drafts kept", i) for i in refined
        ]
        self.block.value = max(refined, key=lambda i: gain(rounds[i]))
        self._quiet = False
        self._open()

    def _open(self) -> None:
        """Begin where refining helped most."""
        if self._quiet:
            return
        self._quiet = True
        self.slot.max, self.step.max = self.laws.slots, self.laws.passes
        self.slot.value, self.step.value = most_telling(self.laws)
        self._quiet = False
        self._draw()

    def _draw(self) -> None:
        if self._quiet:
            return
        place = self.laws, self.words, self.slot.value, self.step.value
        self.picture.value = png(slot_picture(*place))
        said = slot_sentence(*place)
        self.sentence.value = escape(said, quote=False)  # words such as <end>
