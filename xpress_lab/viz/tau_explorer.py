"""The tau explorer: any arms of the shipped results beside each other."""

from collections.abc import Sequence

import pandas as pd
from ipywidgets import (
    HTML,
    Dropdown,
    HBox,
    Image,
    Layout,
    SelectionSlider,
    SelectMultiple,
    VBox,
)

from xpress_lab.benchmarks.shipped import on_shared_texts
from xpress_lab.benchmarks.tables import POOLED, labelled, method_label, summary
from xpress_lab.errors import LabError
from xpress_lab.viz.acceptance import tau_bars
from xpress_lab.viz.style import in_order, label_of, passes_of
from xpress_lab.viz.widgets import png, show

FIXED = "fixed"  # the runner's word for passes to the fixed point
EVERY = "every one"  # a choice among benchmarks and among temperatures


def compare(
    rows: pd.DataFrame, arms: Sequence[str], benchmark: str | None = None
) -> pd.DataFrame:
    """Summary lines of some arms on the texts that all of them have.

    Args:
        rows: of one tier, such as :func:`xpress_lab.benchmarks.shipped.shipped_rows`
            gives; temperatures that lack one of the arms drop out.
        benchmark: one of them, ``None`` for each and all together.
    """
    if not arms:
        raise LabError("No method is chosen: choose at least one.")
    shared = on_shared_texts(rows, arms)
    if benchmark:
        shared = shared[shared["benchmark"] == benchmark]
    if shared.empty:
        raise LabError(
            f"No text was drafted by all of {', '.join(arms)}: leave one of them out."
        )
    lines = summary(shared)
    return lines if not benchmark else lines[lines["benchmark"] == benchmark]


def tau_sentence(lines: pd.DataFrame) -> str:
    """What bars of these lines show, in words: all benchmarks together, or the one."""
    names = list(lines["benchmark"].unique())
    name = POOLED if POOLED in names else names[0]
    said = []
    for temperature, at in lines[lines["benchmark"] == name].groupby("temperature"):
        taus = at.set_index("arm")["tau"]
        each = ", ".join(f"{label_of(a)} {taus[a]:.2f}" for a in in_order(taus.index))
        said.append(f"T = {temperature:g}, {at['texts'].iloc[0]} texts: {each}")
    where = "all benchmarks" if name == POOLED else name
    return f"Tau on {where}. " + "; ".join(said) + "."


class TauExplorer:
    """Choose benchmark, temperature, methods and K; the bars follow.

    Args:
        rows: from :func:`xpress_lab.benchmarks.shipped.shipped_rows`.
        tier: the one that is shown first.
    """

    def __init__(self, rows: pd.DataFrame, tier: str | None = None):
        whole = rows["confidence"] == 0  # what a confidence cut is no method of its own
        self.rows = labelled(rows[whole & (rows["method"] != "ar")])
        tiers = list(self.rows["tier"].unique())
        first = tier or tiers[0]
        self.tier = Dropdown(options=tiers, value=first, description="tier")
        self.benchmark = Dropdown(description="benchmark")
        self.temperature = Dropdown(description="T")
        self.methods = SelectMultiple(description="methods", rows=6)
        self.passes = SelectionSlider(options=[""], description="K of xPress")
        # At its own size: one panel must not be blown up to the width of two.
        own = Layout(max_width="100%", align_self="flex-start")
        self.picture = Image(format="png", layout=own)
        self.sentence = HTML()
        left = VBox([self.tier, self.benchmark, self.temperature, self.passes])
        self.box = VBox([HBox([left, self.methods]), self.picture, self.sentence])
        self._quiet = False
        self.tier.observe(lambda _: self._open(), "value")
        self.temperature.observe(lambda _: self._list_arms(), "value")
        for control in (self.benchmark, self.methods, self.passes):
            control.observe(lambda _: self._draw(), "value")
        self._open()

    @property
    def chosen(self) -> pd.DataFrame:
        """Rows of the chosen tier and temperature."""
        rows = self.rows[self.rows["tier"] == self.tier.value]
        if self.temperature.value != EVERY:
            rows = rows[rows["temperature"] == self.temperature.value]
        return rows

    @property
    def arms(self) -> list[str]:
        """Chosen methods, with the chosen K where there is one to choose."""
        own = set(self.chosen["arm"])
        arms = [self._with_passes(name) for name in self.methods.value]
        return in_order(arm for arm in arms if arm in own)

    def show(self) -> None:
        """Display, with the bars as the picture without a kernel."""
        lines = self.lines()
        show(self.box, png(tau_bars(lines, self.arms)), tau_sentence(lines))

    def lines(self) -> pd.DataFrame:
        """What the controls ask for; LabError where no text has it all."""
        name = self.benchmark.value
        return compare(self.chosen, self.arms, None if name == EVERY else name)

    def _with_passes(self, name: str) -> str:
        return method_label("xpress", self.passes.value) if name == "xpress" else name

    def _open(self) -> None:
        """A tier: its benchmarks and temperatures."""
        self._quiet = True
        rows = self.rows[self.rows["tier"] == self.tier.value]
        self.benchmark.options = [EVERY, *rows["benchmark"].unique()]
        temperatures = [(f"{t:g}", t) for t in sorted(rows["temperature"].unique())]
        self.temperature.options = [(EVERY, EVERY), *temperatures]
        self.benchmark.value = self.temperature.value = EVERY
        self._quiet = False
        self._list_arms()

    def _list_arms(self) -> None:
        """The methods and numbers of passes that were measured here."""
        if self._quiet:
            return
        self._quiet = True
        before, passes = set(self.methods.value), self.passes.value
        arms = in_order(self.chosen["arm"])
        plain = [arm for arm in arms if not arm.startswith("xpress ")]
        options = [(label_of(arm), arm) for arm in in_order([*plain, "xpress"])]
        self.methods.options = options
        names = [name for _, name in options]
        usual = before & set(names) or {"dflash", "markov", "xpress"} & set(names)
        self.methods.value = [name for name in names if name in usual]
        counts = [passes_of(arm) for arm in arms if arm.startswith("xpress ")]
        steps = [FIXED if k is None else str(k) for k in dict.fromkeys(counts)]
        self.passes.options = steps
        self.passes.value = next(k for k in (passes, "6", steps[0]) if k in steps)
        self._quiet = False
        self._draw()

    def _draw(self) -> None:
        if self._quiet:
            return
        try:
            lines = self.lines()
        except LabError as error:
            self.sentence.value = str(error)
        else:
            self.picture.value = png(tau_bars(lines, self.arms))
            self.sentence.value = tau_sentence(lines)
