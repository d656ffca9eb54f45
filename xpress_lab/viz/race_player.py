"""The race as a widget: play a recorded run, slowed down to a pace one can follow."""

from collections.abc import Mapping, Sequence

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

from xpress_lab.benchmarks.recording import Lane
from xpress_lab.viz.race import moments_of, race, race_sentence
from xpress_lab.viz.widgets import png, show

FRAMES, INTERVAL = 60, 300  # pictures a race, milliseconds each


class RacePlayer:
    """Choose a prompt, play or move the clock; the texts grow.

    Args:
        races: lanes by name of the prompt, from
            :func:`xpress_lab.benchmarks.recording.record`.
    """

    def __init__(self, races: Mapping[str, Sequence[Lane]]):
        self.races = races
        wide = Layout(width="380px")
        self.prompt = Dropdown(options=list(races), description="prompt", layout=wide)
        self.clock = IntSlider(
            description="clock", min=0, max=FRAMES, readout=False, layout=wide
        )
        self.play = Play(min=0, max=FRAMES, interval=INTERVAL)
        self.picture = Image(format="png", layout=Layout(width="100%"))
        self.sentence = HTML()
        jslink((self.play, "value"), (self.clock, "value"))
        self.play.value = self.clock.value = self._halfway()
        self.prompt.observe(lambda _: self._rewind(), "value")
        self.clock.observe(lambda _: self._draw(), "value")
        moved = HBox([self.play, self.clock])
        self.box = VBox([self.prompt, moved, self.picture, self.sentence])
        self._draw()

    @property
    def lanes(self) -> Sequence[Lane]:
        return self.races[self.prompt.value]

    @property
    def moment(self) -> float:
        """Seconds on the clock; the last frame is the last text's end."""
        end = max(lane.seconds for lane in self.lanes)
        return end * self.clock.value / FRAMES

    def show(self) -> None:
        """Display, with a strip of moments as the picture without a kernel."""
        strip, halfway = race(self.lanes), moments_of(self.lanes)[1]
        show(self.box, png(strip), race_sentence(self.lanes, halfway))

    def _halfway(self) -> int:
        """The frame at which the quickest has half of its time behind it."""
        first, *_, last = moments_of(self.lanes)
        return round(FRAMES * first / last)

    def _rewind(self) -> None:
        self.clock.value = 0
        self._draw()

    def _draw(self) -> None:
        self.picture.value = png(race(self.lanes, self.moment))
        self.sentence.value = race_sentence(self.lanes, self.moment)
