"""A link in a process of its own: answers side by side, errors of the other side, an end and the next start."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from app.cluster import process_link
from app.cluster.process_link import ProcessLink

CHILD = """
import os, sys, time
from app.cluster.process_link import serve_link
class Link:
    def exchange(self, sender, texts, wait_s):
        time.sleep(wait_s)
        if sender == "nobody":
            raise OSError("the coordinator does not answer")
        return [b"%d" % os.getpid(), *texts]
    def key(self):
        return "the key"
    def close(self):
        pass
serve_link(Link(), sys.stdin.buffer, sys.stdout.buffer)
"""


@pytest.fixture
def link() -> Iterator[ProcessLink]:
    made = ProcessLink([sys.executable, "-c", CHILD])
    yield made
    made.close()


def test_requests_are_answered_side_by_side(link: ProcessLink) -> None:
    link.exchange("r", [], 0.0)
    begun = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: link.exchange("r", [b"%d" % number], 1.0)[1], range(8)))
    assert found == [b"%d" % number for number in range(8)]
    assert time.monotonic() - begun < 8 * 1.0
    assert link.key() == "the key"


def test_an_error_of_the_other_side_is_one_here(link: ProcessLink) -> None:
    with pytest.raises(OSError, match="does not answer"):
        link.exchange("nobody", [], 0.0)
    assert link.exchange("r", [b"x"], 0.0)[1] == b"x"


def test_a_process_that_ends_fails_what_waits_and_is_started_again(
    link: ProcessLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_link, "RESTART_S", 0.0)
    pid = int(link.exchange("r", [], 0.0)[0])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(link.exchange, "r", [], 60.0)
        time.sleep(0.2)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(OSError, match="has ended"):
            waiting.result(10)
    assert int(link.exchange("r", [], 0.0)[0]) != pid


def test_an_answer_that_does_not_come_is_an_error(link: ProcessLink, monkeypatch: pytest.MonkeyPatch) -> None:
    link.exchange("r", [], 0.0)
    monkeypatch.setattr(process_link, "ANSWER_S", -0.4)
    with pytest.raises(OSError, match="does not answer"):
        link.exchange("r", [], 0.5)


def test_a_process_that_stands_still_is_killed_and_started_again(
    link: ProcessLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = int(link.exchange("r", [], 0.0)[0])
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(process_link, "RESTART_S", 0.0)
    monkeypatch.setattr(process_link, "ANSWER_S", 0.2)
    end = time.monotonic() + 20
    found = pid
    while found == pid and time.monotonic() < end:
        try:
            found = int(link.exchange("r", [], 3.0 if found != pid else 0.0)[0])
        except OSError:
            time.sleep(0.3)
            if not _runs(pid):
                monkeypatch.setattr(process_link, "ANSWER_S", 10.0)
    assert found != pid


def test_a_process_that_stands_still_while_it_is_written_to_is_killed(
    link: ProcessLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = int(link.exchange("r", [], 0.0)[0])
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(process_link, "ANSWER_S", 0.2)

    def ask() -> None:
        while _runs(pid):
            with suppress(OSError):
                link.exchange("r", [], 0.0)
            time.sleep(0.1)

    with ThreadPoolExecutor(2) as pool:
        try:
            long = pool.submit(link.exchange, "r", [bytes(1 << 20)], 0.0)  # more than a pipe takes
            time.sleep(0.2)
            pool.submit(ask).result(10)
            with pytest.raises(OSError, match=r"pipe|ended"):
                long.result(10)
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_one_late_answer_among_others_does_not_end_the_process(
    link: ProcessLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = int(link.exchange("r", [], 0.0)[0])
    monkeypatch.setattr(process_link, "SILENCES", 1)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(link.exchange, "r", [], 1.5)
        for _ in range(5):
            link.exchange("r", [], 0.0)
            time.sleep(0.1)
        slow.result(20)
    assert int(link.exchange("r", [], 0.0)[0]) == pid


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_closed_link_answers_nothing(link: ProcessLink) -> None:
    link.exchange("r", [], 0.0)
    link.close()
    with pytest.raises(OSError, match="closed"):
        link.exchange("r", [], 0.0)
