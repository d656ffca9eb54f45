"""The parallel adder: sums are sums, windows are windows, passes are the walk.

* ``reach`` says what it should: columns further down cannot change a digit.
* The base sees its window alone, the refiner only digits to the right.
* Jacobi passes end at the digit-by-digit answer, slots 1..p being final after p.
* Trained for a moment, passes repair what no window can know.
"""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from xpress_lab.beyond.adder import (
    BLANK,
    Adder,
    Reconciler,
    add,
    adder_loss,
    draw_problems,
    train_adder,
)
from xpress_lab.beyond.measuring import (
    by_chain,
    exact_after,
    milliseconds,
    passes_needed,
)
from xpress_lab.errors import LabError
from xpress_lab.jacobi import Solution
from xpress_lab.viz import sums
from xpress_lab.viz.style import LOOKS

DIGITS = 6
pairs = st.integers(1, 12).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(0, 9), min_size=n, max_size=n)] * 2)
)

quick = settings(deadline=None, max_examples=40, derandomize=True)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def value(digits: list[int]) -> int:
    return sum(digit * 10**place for place, digit in enumerate(digits))


@pytest.fixture
def problems():
    return draw_problems(40, DIGITS, seeded(), nines=0.5)


@pytest.fixture(params=[True, False], ids=["listens", "does not"])
def strong(request) -> Adder:
    """Untrained, with weights large enough that every input matters."""
    torch.manual_seed(0)
    adder = Adder(DIGITS, window=2, hidden_size=12, rank=8, listens=request.param)
    adder = adder.double()
    for parameter in adder.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return adder


# the problems -----------------------------------------------------------------


@quick
@given(pairs)
def test_sums_are_sums(pair):
    a, b = pair
    found = add(torch.tensor([a]), torch.tensor([b]))
    assert value(found.total[0].tolist()) == value(a) + value(b)
    for k, reach in enumerate(found.reach[0].tolist()):
        below = [x + y for x, y in zip(a[:k], b[:k], strict=True)][::-1]
        nines = next((i for i, s in enumerate(below) if s != 9), len(below))
        assert reach == min(nines + 1, k)


@quick
@given(pairs, st.randoms(use_true_random=False))
def test_columns_beyond_its_reach_cannot_change_a_digit(pair, random):
    a, b = pair
    found = add(torch.tensor([a]), torch.tensor([b]))
    for k, reach in enumerate(found.reach[0].tolist()):
        other = [random.randrange(10) for _ in a[: k - reach]] + a[k - reach :]
        again = add(torch.tensor([other]), torch.tensor([b]))
        assert again.total[0, k] == found.total[0, k]


def test_the_last_column_within_reach_decides():
    nines = torch.full((1, 5), 9)
    one, none = torch.zeros(1, 5).long(), torch.zeros(1, 5).long()
    one[0, 0] = 1
    carried, still = add(nines, one), add(nines, none)
    assert carried.total[0].tolist() == [0, 0, 0, 0, 0, 1]
    assert still.total[0].tolist() == [9, 9, 9, 9, 9, 0]
    assert carried.reach[0].tolist() == [0, 1, 2, 3, 4, 5]
    assert carried.longest.item() == 5


def test_columns_sum_to_nine_as_often_as_asked():
    for nines in (0.0, 0.3, 1.0):
        drawn = draw_problems(4000, 5, seeded(), nines)
        share = ((drawn.a + drawn.b) == 9).float().mean().item()
        assert share == pytest.approx(nines, abs=0.02)
    uniform = draw_problems(40_000, 5, seeded(1))
    counts = torch.bincount((10 * uniform.a + uniform.b).flatten(), minlength=100)
    assert counts.min() > 0.9 * 2000 and counts.max() < 1.1 * 2000
    mixed = draw_problems(4000, 12, seeded(), None)
    assert set(range(1, 13)) <= set(mixed.longest.tolist())
    with pytest.raises(LabError, match=r"probability in 0..1, not 1.5"):
        draw_problems(1, 3, seeded(), 1.5)


# the network ------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 3, DIGITS])
def test_the_base_sees_its_window_alone(problems, window):
    torch.manual_seed(0)
    adder = Adder(DIGITS, window, hidden_size=12, rank=4).double()
    before = adder.base(adder.hidden(problems.a, problems.b))
    for column in range(DIGITS):
        a = problems.a.clone()
        a[:, column] = (a[:, column] + 5) % 10
        after = adder.base(adder.hidden(a, problems.b))
        moved = (after != before).any(2).all(0).tolist()
        assert moved == [0 <= k - column < window for k in range(DIGITS + 1)]


def test_the_refiner_hears_digits_to_the_right_alone(strong, problems):
    hidden = strong.hidden(problems.a, problems.b)
    before = strong.head(hidden, strong.previous(problems.total))
    for place in range(DIGITS + 1):
        digits = problems.total.clone()
        digits[:, place] = (digits[:, place] + 5) % 10
        after = strong.head(hidden, strong.previous(digits))
        moved = (after != before).any(2).all(0).tolist()
        heard = range(place + 1, DIGITS + 1) if strong.listens else ()
        assert moved == [k in heard for k in range(DIGITS + 1)]


def test_passes_end_at_the_walk(strong, problems):
    solver = Reconciler(strong)
    found = solver.parallel(problems, keep_trace=True)
    walked = solver.in_order(problems)
    assert torch.equal(found.tokens, walked.tokens)
    assert_close(found.scores, walked.scores)
    for p, digits in enumerate(found.trace):
        assert torch.equal(digits[:, :p], walked.tokens[:, :p])
        again = solver.parallel(problems, passes=p).tokens
        assert torch.equal(again, digits)
    assert walked.passes == DIGITS + 1
    if strong.listens:
        assert found.passes > 2
    else:
        assert found.passes == 2  # one look, and one to notice


def test_the_solver_evaluates_what_is_trained(strong, problems):
    """The folded head, told the digits of the pass before, and the base as seed."""
    hidden = strong.hidden(problems.a, problems.b)
    base = strong.base(hidden)
    solver = Reconciler(strong)
    assert torch.equal(solver.parallel(problems, 0).tokens, base.argmax(-1))
    once = base + strong.head(hidden, strong.previous(base.argmax(-1)))
    assert_close(solver.parallel(problems, 1).scores, once)


def test_the_loss_has_its_terms_in_their_places(strong, problems):
    total, parts = adder_loss(strong, problems, seeded())
    hidden = strong.hidden(problems.a, problems.b)
    base = strong.base(hidden)
    own, told, drawn = base.argmax(-1), [], []
    for digits in (problems.total, own):
        told.append(base + strong.head(hidden, strong.previous(digits)))
    distance = lambda x: torch.nn.functional.cross_entropy(  # noqa: E731
        x.flatten(0, 1), problems.total.flatten()
    )
    assert parts["forced"] == pytest.approx(distance(told[0]).item())
    assert parts["anchor"] == pytest.approx(0.6 * distance(base).item())
    assert total.item() == pytest.approx(sum(parts.values()))
    if not strong.listens:
        assert set(parts) == {"forced", "anchor"}
        return
    expected = []
    for _ in range(3):
        logits = base + strong.head(hidden, strong.previous(own))
        expected.append(0.3 * distance(logits).item())
        own = logits.argmax(-1)
    for seed in range(40):
        part = adder_loss(strong, problems, seeded(seed))[1]["consistency"]
        near = [part == pytest.approx(value, rel=1e-9) for value in expected]
        assert any(near)
        drawn.append(near.index(True))
    assert set(drawn) == {0, 1, 2}
    total.backward()
    assert all(p.grad.abs().max() > 0 for p in strong.parameters())


@pytest.fixture(scope="module")
def trained() -> Reconciler:
    torch.manual_seed(0)
    adder = Adder(DIGITS, window=2, hidden_size=48, rank=24)
    fitted = train_adder(adder, steps=200, batch=128)
    assert len(fitted.log) == 200
    return Reconciler(adder)


def test_passes_repair_what_no_window_can_know(trained):
    hard = draw_problems(300, DIGITS, seeded(9), nines=0.5)
    exact = exact_after(trained.parallel(hard, keep_trace=True), hard)
    share = exact.float().mean(dim=1)
    assert share[-1] > share[0] + 0.3
    beyond = hard.longest >= 2  # of the window, that is
    assert exact[0, beyond].float().mean() < 0.7 < exact[-1, beyond].float().mean()


def test_a_window_that_cannot_be_is_refused():
    for digits, window in ((4, 0), (4, 5), (0, 1)):
        with pytest.raises(LabError, match=f"adder of {digits} digits.*{window}"):
            Adder(digits, window)


# measuring and drawing ---------------------------------------------------------


@pytest.fixture
def by_hand():
    """19 + 1 and 10 + 10; the first takes two passes, the second none."""
    problems = add(torch.tensor([[9, 1], [0, 1]]), torch.tensor([[1, 0], [0, 1]]))
    rows = [[[9, 1, 9], [0, 2, 0]], [[0, 1, 0], [0, 2, 0]], [[0, 2, 0], [0, 2, 0]]]
    trace = [torch.tensor(row) for row in rows]
    return problems, Solution(trace[-1], None, 2, True, trace)


def test_what_is_exact_after_how_many_passes(by_hand):
    problems, solution = by_hand
    exact = exact_after(solution, problems)
    assert exact.tolist() == [[False, True], [False, True], [True, True], [True, True]]
    assert passes_needed(solution).tolist() == [2, 0]
    assert problems.longest.tolist() == [1, 1]
    assert by_chain(exact, problems)[1].tolist() == [0.5, 0.5, 1, 1]


def test_a_seed_that_is_final_needs_no_pass(by_hand):
    problems, solution = by_hand
    solution.trace = solution.trace[-1:]
    assert passes_needed(solution).tolist() == [0, 0]
    assert exact_after(solution, problems).all()


def test_ways_are_timed_and_counted(trained):
    batches = [draw_problems(2, DIGITS, seeded(i), 0.5) for i in range(2)]
    table = milliseconds(trained, batches, repeats=1).set_index("way")
    assert (table["milliseconds"] > 0).all()
    counts = table["evaluations"]
    assert counts["window alone"] == 0 and counts["digit by digit"] == DIGITS + 1
    made = [trained.parallel(batch).passes for batch in batches]
    assert counts["Jacobi passes"] == sum(made) / 2


def test_the_time_of_a_way_is_the_least_of_each_batch(trained, monkeypatch):
    """Two batches, of which the first takes 9, 5, 7 s by each way, the second 1 s."""
    batches, clock = [draw_problems(1, DIGITS, seeded(i), 0.5) for i in range(2)], [0.0]
    took = [3.0, 3.0, 9.0, 1.0, 5.0, 1.0, 7.0, 1.0]  # a warm-up turn, then three
    ticks = []
    for seconds in took:
        for _ in range(3):  # ways
            ticks += [clock[0], clock[0] + seconds]
            clock[0] += seconds
    monkeypatch.setattr("time.process_time", iter(ticks).__next__)
    table = milliseconds(trained, batches, repeats=3)
    assert table["milliseconds"].tolist() == [3000.0] * 3


def test_the_rival_has_a_look_of_its_own():
    for part in ("label", "colour", "marker", "line"):
        assert getattr(sums.RIVAL, part) not in {
            getattr(look, part) for look in LOOKS.values()
        }


def test_figures_show_the_digits(by_hand):
    problems, solution = by_hand
    (ax,) = sums.sum_grid(problems, solution).axes
    digits = [t.get_text() for t in ax.texts if t.get_text().isdigit()]
    assert len(digits) == 2 * 2 + 3 * 3
    assert digits[-3:] == ["0", "2", "0"]
    row = [t for t in ax.texts if t.get_text() == "9"]
    assert row[-1].get_position()[0] < row[-2].get_position()[0]  # highest on the left
    crosses = [line for line in ax.lines if line.get_color() == sums.NO]
    assert len(crosses) == 3 + 1
    plt.close("all")


@pytest.mark.usefixtures("house_style")
def test_reach_bars_are_shares_and_say_what_the_window_misses(problems):
    (ax,) = sums.reach_bars({"half": problems}, window=3).axes
    assert sum(bar.get_height() for bar in ax.patches) == pytest.approx(1)
    blind = (problems.reach >= 3).float().mean().item()
    assert f"{blind:.1%} beyond" in ax.get_title("left")
    hatched = [bar.get_height() for bar in ax.patches if bar.get_hatch()]
    assert sum(hatched) == pytest.approx(blind)
    plt.close("all")


def test_figures_of_chains_and_times():
    table = pd.DataFrame({1: [0.5, 1.0], 3: [0.0, 0.25]})
    fig = sums.chain_map(table, window=2)
    assert {"50", "100", "0", "25"} == {t.get_text() for t in fig.axes[0].texts}
    (step,) = fig.axes[0].lines
    assert step.get_ydata().tolist() == [-0.5, 1.5]
    fig = sums.chain_lines({"a": table.loc[0], "b": table.loc[1]})
    assert [line.get_label() for line in fig.axes[0].lines] == ["a", "b"]
    times = pd.DataFrame(
        {"way": ["x", "y", "z"], "milliseconds": [1.0, 2, 3], "evaluations": [0, 2, 7]}
    )
    fig = sums.time_bars({"easy": times, "hard": times})
    assert "3.00 ms, 7 in series" in {t.get_text() for t in fig.axes[1].texts}
    plt.close("all")


def test_blank_is_no_digit(strong, problems):
    told = strong.previous(problems.total)
    assert told.shape == (40, DIGITS + 2)
    assert (told[:, :2] == BLANK).all()
    if strong.listens:
        assert torch.equal(told[:, 2:], problems.total[:, :-1])
