"""What is told and counted of a gather by each of the two functions, against plain Python."""

from __future__ import annotations

import re
from bisect import bisect_left

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.telemetry.increments import (
    CELLS,
    HEADER_TEMPLATE,
    HEADER_TEMPLATE_AT,
    LOOKUPS,
    MEASURED,
    RECEIVED,
    REQUESTS,
    ROUTES,
    SENT,
    TIMES,
    add,
    answer,
)
from app.telemetry.metric_definitions import BUCKETS
from app.telemetry.request_id import numbered_id

pytestmark = pytest.mark.usefixtures("every_codec")

LINES = re.compile(
    rb"x-request-id: (\S+)\r\n"
    rb"server-timing: parse;dur=(0\.\d{3}), queue;dur=(0\.\d{3}), kernel;dur=(0\.\d{3}), encode;dur=(0\.\d{3})\r\n"
)
WIDTH = len(BUCKETS) + 6  # buckets, the sum, four stages
# A stage may take no time that the clock can tell, or longer than any bucket; about half are short as a whole.
SHORT = st.lists(st.floats(0, 3e-4), min_size=4, max_size=4)
SPANS = SHORT | st.lists(st.floats(0, 20) | st.sampled_from([0.0, *BUCKETS]), min_size=4, max_size=4)
START = st.floats(0, 1e7)


class Cells:
    """Cells in memory, each with one beside it on either side that nobody is to touch."""

    def __init__(self, *, looked_up: bool = True) -> None:
        self.times = np.zeros(WIDTH + 2)
        self.others = np.zeros((CELLS, 3))
        self.addresses = np.array([self.others[cell, 1:].ctypes.data for cell in range(CELLS)], np.int64)
        self.addresses[TIMES] = self.times[1:].ctypes.data
        if not looked_up:
            self.addresses[LOOKUPS] = 0

    @property
    def kind(self) -> int:
        return self.addresses.ctypes.data

    def counted(self) -> list[float]:
        assert self.times[0] == self.times[-1] == 0
        assert not self.others[:, [0, 2]].any()
        assert self.others[TIMES, 1] == 0
        return [*self.times[1:-1], *self.others[[REQUESTS, ROUTES, MEASURED, RECEIVED, SENT, LOOKUPS], 1]]


def times_of(start: float, spans: list[float]) -> list[float]:
    found = [start]
    for span in spans:
        found.append(found[-1] + span)
    return found


def expected(gathers: list[tuple[list[float], int, int]], *, looked_up: bool = True) -> list[float]:
    times, others = [0.0] * WIDTH, [0.0] * 6
    for (start, parsed, kernel, done, over), received, sent in gathers:
        times[bisect_left(BUCKETS, over - start)] += 1
        timings = (over - start, parsed - start, kernel - parsed, done - kernel, over - done)
        for at, number in enumerate(timings, len(BUCKETS) + 1):
            times[at] += number
        for at, number in enumerate((1, 1, done - kernel, received, sent, int(looked_up))):
            others[at] += number
    return times + others


@given(
    st.lists(st.tuples(START, SPANS, st.integers(0, 2**40), st.integers(0, 2**40)), max_size=5),
    st.booleans(),
)
def test_gathers_are_added_up_as_python_would(
    drawn: list[tuple[float, list[float], int, int]], looked_up: bool
) -> None:
    gathers = [(times_of(start, spans), received, sent) for start, spans, received, sent in drawn]
    cells = Cells(looked_up=looked_up)
    for (start, parsed, kernel, done, over), received, sent in gathers:
        add.run(cells.kind, start, parsed, kernel, done, over, received, sent)
    assert cells.counted() == expected(gathers, looked_up=looked_up)


@given(st.integers(0, 2**40 - 1), START, SPANS)
def test_an_answer_tells_its_id_and_whole_microseconds_or_nothing(
    number: int, start: float, spans: list[float]
) -> None:
    cells = Cells()
    at = start, parsed, kernel, done, over = times_of(start, spans)
    before = bytes(HEADER_TEMPLATE)
    was_counted = answer.run(HEADER_TEMPLATE_AT, cells.kind, number, start, parsed, kernel, done, over, 3, 4)
    is_compiled = answer.run is not answer.plain  # else others tell and count
    assert was_counted == (is_compiled and at[-1] - at[0] < 1e-3)
    if not was_counted:
        assert bytes(HEADER_TEMPLATE) == before
        assert not any(cells.counted())
        return
    assert cells.counted() == expected([(at, 3, 4)])
    match = LINES.fullmatch(HEADER_TEMPLATE)
    assert match is not None
    assert match[1].decode() == numbered_id(number)
    for text, begin, end in zip(match.groups()[1:], at, at[1:], strict=False):
        assert text == b"0.%03d" % int((end - begin) * 1e6)
