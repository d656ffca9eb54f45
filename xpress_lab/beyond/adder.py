"""A parallel digit adder: predictions that depend on each other, reconciled by passes.

Nothing here is speculative decoding. A small network reads two n-digit numbers and
predicts all digits of their sum at once, each from a *window* of a few columns. Where
every column that it sees below its own sums to 9, a carry from further down would go
straight through, and no window can tell: the digit's marginal is a coin toss between
two values, and neighbours toss the same coin independently. The refiner and the solver
of the drafting world settle it: an :class:`XPressHead` gives each digit the one to its
right, and Jacobi passes run until digits agree.

Numbers are written as slots of a block, least significant digit first, which is the
order in which carries run. Slot 0 stands for the = sign, slots 1..n for the columns and
slot n + 1 for the last carry, so B = n + 2.
"""

import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from xpress_lab.errors import LabError
from xpress_lab.jacobi import Solution, solve, solve_sequentially
from xpress_lab.refiners.xpress import XPressHead
from xpress_lab.training.trainer import Fit, Schedule, fit

BLANK = 10  # a column without digits; also the id of the = sign
UNIFORM = 0.1  # share of columns that sum to 9 if all digits are uniform


class Problems(NamedTuple):
    """N sums. a, b: ``[N, n]`` digits, least significant first. total: ``[N, n+1]``.

    reach: ``[N, n+1]`` how many columns below its own decide a digit's carry: one,
    and one more for every column on the way that sums to 9 (0 for the first digit).
    """

    a: torch.Tensor
    b: torch.Tensor
    total: torch.Tensor
    reach: torch.Tensor

    @property
    def longest(self) -> torch.Tensor:
        """``[N]`` the longest way that a carry, or its absence, has to be carried."""
        return self.reach.amax(dim=1)

    def select(self, rows) -> "Problems":
        return Problems(*(part[rows] for part in self))


def add(a: torch.Tensor, b: torch.Tensor) -> Problems:
    """The true sums of ``[N, n]`` digits, column by column as at school."""
    carry, reach = torch.zeros_like(a[:, 0]), torch.zeros_like(a[:, 0])
    digits, reaches = [], []
    for column in (a + b).unbind(1):
        digits.append((column + carry) % 10)
        reaches.append(reach)
        reach = torch.where(column == 9, reach + 1, 1)
        carry = (column + carry) // 10
    total = torch.stack([*digits, carry], dim=1)
    return Problems(a, b, total, torch.stack([*reaches, reach], dim=1))


def draw_problems(
    count: int, digits: int, generator: torch.Generator, nines: float | None = UNIFORM
) -> Problems:
    """Random sums; a column sums to 9 with probability ``nines``.

    All other pairs of digits are equally likely, so 0.1 makes the digits uniform.
    ``None`` draws a probability for each problem, so that chains of all lengths occur.
    """
    if nines is not None and not 0 <= nines <= 1:
        raise LabError(f"nines is a probability in 0..1, not {nines}.")
    shape = (count, digits)
    a = torch.randint(10, shape, generator=generator)
    other = (a + torch.randint(1, 10, shape, generator=generator)) % 10  # never a
    if nines is None:
        nines = torch.rand((count, 1), generator=generator)
    chosen = torch.rand(shape, generator=generator) < nines
    return add(a, 9 - torch.where(chosen, a, other))


class Adder(nn.Module):
    """Window network (the drafter's part) and refiner, for sums of n digits.

    Args:
        digits: n.
        window: columns that a digit is predicted from: its own and those below it.
        rank: r of the refiner.
        listens: whether the refiner is told other digits. One that is not is the
            one-pass rival: as many parameters and all inputs, but a single look.
    """

    def __init__(
        self,
        digits: int,
        window: int = 3,
        hidden_size: int = 64,
        rank: int = 48,
        listens: bool = True,
    ):
        super().__init__()
        if digits < 1 or not 1 <= window <= digits:
            raise LabError(
                f"An adder of {digits} digits cannot have a window of {window}: "
                f"use 1..{digits} columns."
            )
        self.digits, self.window, self.listens = digits, window, listens
        self.columns = nn.Embedding((BLANK + 1) ** 2, hidden_size)  # of digit pairs
        self.read = nn.Conv1d(hidden_size, hidden_size, window)
        self.think = nn.Linear(hidden_size, hidden_size)
        self.out = nn.Linear(hidden_size, 10)
        self.head = XPressHead(
            hidden_size, 10, digits + 2, rank, std=0.1, inputs=BLANK + 1
        )

    def hidden(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """``[N, n]`` digits to the states of all slots ``[N, B, H]``.

        Slot k sees columns k - window + 1 .. k; beyond either end are blanks.
        """
        blanks = BLANK * (BLANK + 2)  # the pair of two blanks
        pairs = F.pad((BLANK + 1) * a + b, (self.window, 1), value=blanks)
        states = self.read(self.columns(pairs).movedim(1, 2)).movedim(1, 2)
        return self.think(F.gelu(states))

    def base(self, hidden: torch.Tensor) -> torch.Tensor:
        """The digits' own logits ``[N, n+1, 10]``."""
        return self.out(F.gelu(hidden[:, 1:]))

    def previous(self, digits: torch.Tensor) -> torch.Tensor:
        """What each slot is told, ``[N, B]``: the digit to its right, if it listens."""
        told = F.pad(digits[:, :-1], (2, 0), value=BLANK)
        return told if self.listens else torch.full_like(told, BLANK)


def adder_loss(
    adder: Adder, problems: Problems, generator: torch.Generator
) -> tuple[torch.Tensor, dict[str, float]]:
    """Cross-entropy at the paper's three places (1, 0.6 and 0.3 are its weights).

    *Forced*: told the true digits. *Anchor*: the base alone. *Consistency*: told its
    own digits after 0 to 2 passes. A refiner that listens to nobody has only one look,
    which the first of these trains.
    """
    hidden = adder.hidden(problems.a, problems.b)
    base, prepared = adder.base(hidden), adder.head.prepare(hidden)

    def told(digits: torch.Tensor) -> torch.Tensor:
        return base + adder.head.bias(prepared, adder.previous(digits))

    def distance(logits: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.flatten(0, 1), problems.total.flatten())

    parts = {"forced": distance(told(problems.total)), "anchor": 0.6 * distance(base)}
    if adder.listens:
        own = base.detach().argmax(-1)
        with torch.no_grad():
            for _ in range(int(torch.randint(3, (1,), generator=generator))):
                own = told(own).argmax(-1)
        parts["consistency"] = 0.3 * distance(told(own))
    return sum(parts.values()), {name: part.item() for name, part in parts.items()}


def train_adder(
    adder: Adder, steps: int = 800, batch: int = 128, seed: int = 0, **options
) -> Fit:
    """Train in place on random sums with carry chains of all lengths.

    Args:
        options: passed on to :func:`xpress_lab.training.trainer.fit`.
    """

    def loss_of(generator: torch.Generator):
        problems = draw_problems(batch, adder.digits, generator, nines=None)
        return adder_loss(adder, problems, generator)

    schedule = Schedule(steps, learning_rate=3e-3, save_every=steps)
    with tempfile.TemporaryDirectory() as folder:
        return fit("adder", adder, loss_of, schedule, Path(folder), seed, **options)


class Reconciler:
    """A trained adder made ready to answer: its head folded, its gradients off.

    Answers are :class:`xpress_lab.jacobi.Solution` objects, digits in ``tokens``.
    """

    def __init__(self, adder: Adder):
        self.adder = adder.eval().requires_grad_(False)
        self.head = adder.head.fold()

    def parallel(
        self, problems: Problems, passes: int | None = None, keep_trace: bool = False
    ) -> Solution:
        """By Jacobi passes, all digits at once; ``passes=0`` is the base alone."""
        base, prepared, start = self._look(problems)

        def refine(previous: torch.Tensor, first: int) -> torch.Tensor:
            told = previous if self.adder.listens else torch.full_like(previous, BLANK)
            return base[:, first:] + self.head.bias(prepared, told, first)

        options = {"passes": passes, "lock": True, "keep_trace": keep_trace}
        return solve(refine, base, start, start, **options)

    def in_order(self, problems: Problems) -> Solution:
        """Digit by digit, the least significant first, as at school."""
        base, prepared, start = self._look(problems)

        def step(k: int, drafted: torch.Tensor, _):
            told = F.pad(drafted, (1, 0), value=BLANK)
            told = told if self.adder.listens else torch.full_like(told, BLANK)
            return base[:, k] + self.head.bias_after(prepared, told), None

        return solve_sequentially(step, base, start)

    def _look(self, problems: Problems):
        hidden = self.adder.hidden(problems.a, problems.b)
        start = torch.full_like(problems.a[:, 0], BLANK)
        return self.adder.base(hidden), self.head.prepare(hidden), start
