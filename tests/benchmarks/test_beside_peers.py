"""How contenders are measured beside each other."""

from __future__ import annotations

from functools import partial
from itertools import groupby

from app.dispatch.measured_rates import new_event_loop
from benchmarks.beside_peers import Contender, take_turns


def test_every_second_round_goes_backwards() -> None:
    called: list[str] = []
    calls: list[tuple[str, Contender]] = [(name, partial(called.append, name)) for name in "abc"]
    loop = new_event_loop()
    times = take_turns(calls, loop, 1e-4, 3)
    loop.close()
    assert [name for name, _ in groupby(called)] == [*"abcbabc"]  # the last of a round begins the next one
    assert set(times) == {*"abc"}
