"""Memory that a burst of large requests has freed: a service that is idle gives it back to the system."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
from safetensors.numpy import save

from tests.http.conftest import Start
from tests.http.held import until
from tests.http.raw import TINY
from tests.http.server import Server

MIB = 1 << 20
BINARY = {"content-type": "application/x-safetensors"}


def memory(server: Server, name: str) -> int:
    """Bytes of all processes of the service, by a name of /proc/[pid]/status."""
    texts = [Path(f"/proc/{pid}/status").read_text() for pid in (server.process.pid, *server.workers())]
    return sum(int(text.partition(f"{name}:")[2].split()[0]) << 10 for text in texts)


def bodies() -> list[tuple[str, bytes]]:
    """Binary requests of 1 to 40 MiB and one of JSON, with as much to come back."""
    large = []
    for size in (1, 8, 40):
        rows = np.arange(size * 256)[:, None]
        large.append((BINARY["content-type"], save({"data": np.ones((len(rows), 4096), np.uint8), "indices": rows})))
    data = {"dtype": "float32", "shape": [50_000, 8], "values": [0.5] * 400_000}
    indices = {"dtype": "int64", "shape": [50_000, 1], "values": list(range(50_000))}
    text = json.dumps({"data": data, "indices": indices}).encode()
    return [*large, ("application/json", text)]


def send(server: Server, requests: Sequence[tuple[str, bytes]]) -> None:
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
        for kind, body in requests:
            answer = client.post("/gathernd", content=body, headers={"content-type": kind})
            assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("flags", [(), pytest.param(("--workers", "2"), marks=pytest.mark.slow)])
def test_an_idle_service_gives_back_what_a_burst_has_freed(start: Start, flags: tuple[str, ...]) -> None:
    with start("--memory-budget", "1GiB", "--queue-timeout", "60", *flags) as server:
        send(server, [("application/json", TINY)] * 20)
        before = memory(server, "VmRSS")
        burst = bodies()
        with ThreadPoolExecutor(3) as threads:
            list(threads.map(lambda _: send(server, burst), range(3)))
        assert memory(server, "VmHWM") > before + 80 * MIB
        until(lambda: memory(server, "VmRSS") <= 1.2 * before, 120)
        send(server, burst)
