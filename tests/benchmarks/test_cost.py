"""The service with what watches over requests switched off: it answers the same, and nothing was watched."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
import pytest

from benchmarks.cost import added_up, loss
from tests.http.raw import TINY
from tests.http.server import serving


@pytest.mark.parametrize(("how", "counted"), [("off", False), ("on", True)])
def test_what_is_switched_off_is_off_and_the_answer_is_the_same(
    how: str, counted: bool, warmed: Path, tmp_path: Path
) -> None:
    command = (sys.executable, "-m", "benchmarks.switched", how)
    with (
        serving(warmed, tmp_path, command=command) as server,
        httpx.Client(base_url=server.url, trust_env=False) as client,
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


def test_the_turns_of_each_kind_are_added_up() -> None:
    sums = added_up(["off 0.1 0.05 1000", "on 0.1 0.06 900", "on 0.1 0.06 900", "off 0.1 0.05 1000"])
    assert [sums["off"].rate(), sums["off"].each()] == pytest.approx([10_000, 50])
    assert [sums["on"].rate(), sums["on"].each()] == pytest.approx([9_000, 200 / 3])
