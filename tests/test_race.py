"""The race: recorded moments, a layout that holds still, pictures and the player."""

import itertools

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pytest

from xpress_lab.benchmarks.recording import Lane, record
from xpress_lab.errors import LabError
from xpress_lab.lab import load_lab
from xpress_lab.viz.race import COLUMNS, layout, moments_of, race, race_sentence
from xpress_lab.viz.race_player import FRAMES, RacePlayer

pytestmark = pytest.mark.usefixtures("house_style")


SLOW = Lane("ar", ("One", " two", " three", "."), (1, 1, 1, 1), (0.0, 1.0, 2.0, 3.0))
QUICK = Lane("xpress", ("One", " two three."), (1, 3), (0.0, 1.5))


def texts(fig) -> list[str]:
    return [text.get_text() for text in fig.axes[0].texts]


# recording -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded():
    prompt = "Ben lives in Oslo and works as a baker. Where does Ben live?"
    return record(load_lab("pocket", device="cpu"), prompt, repeats=1), prompt


def test_record_notes_every_piece_of_the_text(recorded):
    lanes, prompt = recorded
    lab = load_lab("pocket", device="cpu")
    assert [lane.method for lane in lanes] == ["ar", "dflash", "markov", "xpress"]
    for lane in lanes:
        text = lab.generate(prompt, lane.method)
        assert lane.counts == (1, *(r.emitted for r in text.rounds))
        assert lane.text == text.text
        assert lane.moments[0] == 0
        assert all(a < b for a, b in itertools.pairwise(lane.moments))
    assert len({lane.text for lane in lanes}) == 1


def test_record_keeps_the_quickest_of_its_runs(monkeypatch):
    from xpress_lab.benchmarks import recording

    ends = iter((3.0, 2.0, 5.0))
    run = lambda *_: Lane("ar", ("a", "b"), (1, 1), (0.0, next(ends)))  # noqa: E731
    monkeypatch.setattr(recording, "_run", run)
    (lane,) = record(load_lab("pocket", device="cpu"), "Hello.", ["ar"], repeats=3)
    assert lane.seconds == 2.0
    with pytest.raises(LabError, match="repeats must be 1 or more, not 0"):
        record(load_lab("pocket", device="cpu"), "Hello.", repeats=0)


@pytest.mark.parametrize(
    ("moment", "pieces", "tokens", "speed"),
    [(0, 1, 1, 0), (0.5, 1, 1, 0), (1.5, 2, 4, 2), (9, 2, 4, 2)],
)
def test_a_lane_at_a_moment(moment, pieces, tokens, speed):
    assert QUICK.pieces_at(moment) == pieces
    assert QUICK.tokens_at(moment) == tokens
    assert QUICK.speed_at(moment) == speed


def test_pieces_are_what_each_adds_to_the_text_before_it():
    from xpress_lab.benchmarks.recording import _in_words

    class Bytes:
        def decode(self, tokens, skip_special_tokens):
            assert skip_special_tokens
            return bytes(tokens).decode("utf-8", errors="replace")

    ids = list("aé!".encode())  # the second letter is spread over two tokens
    assert _in_words([ids[:2], ids[2:]], Bytes()) == ("a", "é!")


# the layout ----------------------------------------------------------------------


def test_layout_breaks_at_spaces_and_remembers_pieces():
    parts = layout(("one tw", "o three\n  four"), columns=7)
    assert parts == [(0, 0, "one tw", 0), (0, 6, "o", 1), (1, 0, "three", 1),
                     (2, 0, "  four", 1)]  # fmt: skip


def test_layout_cuts_long_words_and_never_leaves_its_columns():
    parts = layout(("x" * 19, " y"), columns=8)
    assert [part[2] for part in parts] == ["x" * 8, "x" * 8, "xxx", " y"]
    text = "an even longer text,  with gaps " * 9
    for line, column, part, _ in layout((text[:50], text[50:])):
        assert line >= 0 and column + len(part) <= COLUMNS


def test_words_do_not_move_while_the_text_grows():
    whole = {part[:3] for part in layout(SLOW.pieces)}
    assert whole == {(0, 0, "One"), (0, 3, " two"), (0, 7, " three"), (0, 13, ".")}


# pictures ------------------------------------------------------------------------


def test_race_shows_what_stands_there_and_what_that_makes_a_second():
    found = texts(race([SLOW, QUICK], 1.5))
    assert {"plain decoding", "xPress", "1.50 s", " two", " two three."} <= set(found)
    assert " three" not in found  # plain decoding is not that far
    assert {"2 tokens", "4 tokens", "1 tokens a second"} <= set(found)
    assert "✓ 2 tokens a second" in found


def test_only_the_newest_piece_of_an_unfinished_text_is_marked():
    fig = race([SLOW, QUICK], 1.5)
    strong = [t.get_text() for t in fig.axes[0].texts if t.get_family()[0].endswith(
        "Mono") and t.get_weight() == "bold"]  # fmt: skip
    assert strong == [" two"]


def test_a_strip_has_a_row_for_each_moment():
    found = texts(race([SLOW, QUICK]))
    assert moments_of([SLOW, QUICK]) == [0.75, 1.5, 3.0]
    assert [t for t in found if t.endswith(" s")] == ["0.75 s", "1.50 s", "3.00 s"]
    with pytest.raises(LabError, match="needs lanes"):
        race([])


def test_sentence():
    assert race_sentence([SLOW, QUICK], 2) == (
        "After 2.00 s plain decoding has 3 and xPress is done with 4 tokens."
    )


# the player ----------------------------------------------------------------------


def test_player_draws_what_its_clock_says():
    player = RacePlayer({"one": [SLOW, QUICK], "two": [QUICK]})
    assert player.clock.value == FRAMES / 4  # half way of the quickest
    before = player.picture.value
    player.clock.value = FRAMES
    assert player.picture.value != before and player.moment == 3.0
    assert player.sentence.value.startswith("After 3.00 s plain decoding is done")
    player.prompt.value = "two"
    assert player.clock.value == 0
    assert player.sentence.value == "After 0.00 s xPress has 1 tokens."
    assert not plt.get_fignums()
