"""The log of changes: a line for each, and a sample of scatters that leaves none uncounted."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from app.telemetry import tensor_change_log
from app.telemetry.tensor_change_log import SCATTERED, Caller, Change, ChangeLog

CALLER = Caller("id-1", "alice", "127.0.0.1")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(tensor_change_log, "monotonic", lambda: now[0])
    return now


def fields(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.__dict__["fields"] for record in caplog.records]


def scatter(log: ChangeLog, name: str = "items", times: int = 1) -> None:
    for _ in range(times):
        log.write(Change(SCATTERED, name, 3, 64), CALLER)


def test_a_change_has_what_is_known_of_it_and_of_its_caller(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        ChangeLog().write(Change("tensor uploaded", "items", 3, 64), CALLER)
        ChangeLog().write(Change("alias removed", "now"), Caller("id-2", None, None))
    assert [record.getMessage() for record in caplog.records] == ["tensor uploaded", "alias removed"]
    assert fields(caplog) == [
        {"name": "items", "version": 3, "bytes": 64, "request_id": "id-1", "key": "alice", "client": "127.0.0.1"},
        {"name": "now", "request_id": "id-2"},
    ]


def test_scatters_of_a_tensor_have_at_most_one_line_a_second_and_are_all_counted(
    caplog: pytest.LogCaptureFixture, clock: list[float]
) -> None:
    log = ChangeLog()
    with caplog.at_level(logging.INFO):
        scatter(log, times=10)
        scatter(log, "others")
        clock[0] += 0.9
        scatter(log)
        log.sweep()
        assert [(line["name"], line.get("left_out")) for line in fields(caplog)] == [("items", None), ("others", None)]
        clock[0] += 0.2
        scatter(log, times=5)
        clock[0] += 1.0
        log.sweep()
        clock[0] += 0.5
        scatter(log)
        log.sweep(stopping=True)
    lines = [line for line in fields(caplog) if line["name"] == "items"]
    assert [line.get("left_out") for line in lines] == [None, 10, 4, 1]
    assert ["request_id" in line for line in lines] == [True, True, False, False]


def test_a_tensor_that_is_left_alone_is_forgotten(caplog: pytest.LogCaptureFixture, clock: list[float]) -> None:
    log = ChangeLog()
    with caplog.at_level(logging.INFO):
        for number in range(50):
            scatter(log, f"t{number}")
        clock[0] += 1.0
        log.sweep()
        scatter(log, "t0")
    assert len(caplog.records) == 51
    assert "left_out" not in fields(caplog)[-1]
