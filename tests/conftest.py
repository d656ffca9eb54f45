"""Fixtures shared by the tests: targets that are slow to build more than once."""

import pytest
import toys


@pytest.fixture(scope="session")
def target():
    """A random float64 Qwen3 with a tied head."""
    return toys.tiny_target(tied=True)


@pytest.fixture(scope="session")
def untied_target():
    return toys.tiny_target(tied=False)


@pytest.fixture(scope="session")
def greedy_text(target):
    """The tied target's greedy continuation of ``toys.PROMPT``, by transformers."""
    return toys.generate(target, toys.PROMPT, 170)
