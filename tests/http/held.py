"""Servers whose gathers, or whose compiler, wait until a test lets them go on: `with held(server): ...`.

They are started with `command=faulty("held")` or `faulty("counting")`, and wait while there is a file in their folder.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx

from tests.http.faulty_app import HOLD
from tests.http.server import Server


def faulty(how: str) -> tuple[str, ...]:
    """The command of a server that misbehaves (see `tests.http.faulty_app`)."""
    return (sys.executable, "-m", "tests.http.faulty_app", how)


def held(server: Server) -> AbstractContextManager[None]:
    """Have all gathers of the server wait until the end of the block."""
    return held_in(server.log.parent)


@contextmanager
def held_in(folder: Path) -> Iterator[None]:
    """Have the server of this folder wait until the end of the block, whether it has started or not."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / HOLD
    file.touch()
    try:
        yield
    finally:
        file.unlink()


def until(reached: Callable[[], object], seconds: float = 60, what: str = "") -> None:
    """Wait until a state is reached; `what` says which."""
    end = monotonic() + seconds
    while not reached():
        assert monotonic() < end, f"not within {seconds} s: {what}"
        sleep(0.01)


def ended(client: httpx.Client, answer: httpx.Response) -> dict[str, Any]:
    """The import that `answer` has begun, once it has ended."""
    assert answer.status_code == 202, answer.text
    found: dict[str, Any] = {"state": "running"}

    def is_over() -> bool:
        found.update(client.get(answer.headers["location"]).json())
        return bool(found["state"] != "running")

    until(is_over)
    return found


def metric(server: Server, name: str) -> float:
    """The number of the metric `name`, with its labels as they are written; 0 where nothing was counted."""
    lines = server.shared_client().get("/metrics").text.splitlines()
    found = [line.rpartition(" ")[2] for line in lines if line.rpartition(" ")[0] == name]
    return float(found[0]) if found else 0.0


def wait_for_queue(server: Server, size: int) -> None:
    """Until so many requests run or wait for the thread."""
    until(lambda: metric(server, "gathernd_queue_depth") == size)


def refuses(port: int) -> bool:
    """Whether nobody listens on a port of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except ConnectionRefusedError:
        return True
    return False
