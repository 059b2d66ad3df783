"""The service with what watches over requests switched off: it answers the same, and nothing was watched."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
import pytest

from benchmarks.cost import judged, loss
from tests.conftest import slow_but_for
from tests.http.raw import TINY
from tests.http.server import serving


@pytest.mark.parametrize(("how", "counted"), slow_but_for((("off", False),), (("off", False), ("on", True))))
def test_what_is_switched_off_is_off_and_the_answer_is_the_same(
    how: str, counted: bool, warmed: Path, tmp_path: Path
) -> None:
    command = (sys.executable, "-m", "benchmarks.switched", how)
    with (
        serving(warmed, tmp_path, command=command) as server,
        httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client,
    ):
        for _ in range(3):
            answer = client.post("/gathernd", content=TINY)
            assert answer.json()["output"]["values"] == [8]
        assert ("x-request-id" in answer.headers) == ("server-timing" in answer.headers) == counted
        foreign = client.post("/gathernd", content=TINY, headers={"host": "foreign.example"})
        assert foreign.status_code == (403 if counted else 200)
        assert ('path="/gathernd"' in client.get("/metrics").text) == counted


def test_a_loss_is_in_percent_of_what_there_was() -> None:
    assert loss(95, 100) == pytest.approx(5)
    assert loss(110, 100) == pytest.approx(-10)


def test_turns_are_compared_by_fours_and_a_slow_time_weighs_on_both() -> None:
    four = ["off 0.1 0.05 1000", "on 0.1 0.06 900", "on 0.1 0.06 900", "off 0.1 0.05 1000"]
    slow = ["off 0.1 0.1 500", "on 0.1 0.12 450", "on 0.1 0.12 450", "off 0.1 0.1 500"]
    cut_short = ["on 0.1 0.06 400", "off 0.1 0.05 1000"]  # a benchmark begins anywhere
    start = judged([*cut_short, *four, *four, *slow, *four[:3]])
    assert start.rate_lost == pytest.approx(10)
    assert start.time_lost == pytest.approx((1 - 50 / (200 / 3)) * 100)
    assert [start.rates["off"], start.times["off"]] == pytest.approx([10_000, 50])


def test_one_four_that_went_wrong_does_not_count() -> None:
    four = ["off 0.1 0.05 1000", "on 0.1 0.05 950", "on 0.1 0.05 950", "off 0.1 0.05 1000"]
    wrong = ["off 0.1 0.05 1000", "on 0.1 0.05 100", "on 0.1 0.05 950", "off 0.1 0.05 1000"]
    assert judged([*four, *wrong, *four]).rate_lost == pytest.approx(5)
    stalled = ["off 0.1 0.05 1000", "on 0.1 0 0", "on 0.1 0.05 950", "off 0.1 0.05 1000"]
    assert judged([*four, *stalled]).rate_lost == pytest.approx(5)
    with pytest.raises(RuntimeError, match="not run long enough"):
        judged(four[1:])
