"""Tests of times: tried again, since a busy host stops the machine, or a process of it, for seconds now and then."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from time import monotonic
from typing import ParamSpec

import pytest

TRIES = 4
LAST_BEGUN_S = 100.0
"""No further try is begun so many seconds after the first, well before pytest's own limit for a test."""
Parameters = ParamSpec("Parameters")


def tried_again(test: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Run the test up to TRIES times, and pass with the first try that passes.

    It is for tests that fail where a process does not run for a moment: what holds them to a time, or has to come while
    something else lasts. A defect in what they look for fails every try. A test of a race, which a defect fails now and
    then, must not be tried again: it waits for what it needs instead. All tries have the same fixtures.
    """

    @wraps(test)
    def tries(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        begun = monotonic()
        for left in reversed(range(TRIES)):
            try:
                test(*args, **kwargs)
            except (Exception, pytest.fail.Exception) as failure:
                if not left or monotonic() - begun > LAST_BEGUN_S:
                    raise
                sys.stdout.write(f"tried again after {type(failure).__name__}: {failure}\n")
            else:
                return

    return tries
