"""The contenders of the client's benchmark answer alike, and each is compared with its peers."""

from __future__ import annotations

import pytest

from benchmarks import client
from gathernd import Client
from tests.http.conftest import server, start
from tests.http.server import Server

__all__ = ["server", "start"]


@pytest.mark.slow
def test_every_contender_looks_the_rows_up_and_has_figures(server: Server) -> None:
    with Client(server.url) as service:
        service.put("items", client.table())
    names = [*client.SYNC, *client.ASYNC]
    names.remove("redis-py MGET")
    lines = client.report(dict.fromkeys(names, server.port), ["tritonclient"], 1, 0.05).splitlines()
    assert lines[0].split() == ["lookups/s", "client", "cpu,", "µs", "×", "tritonclient"]
    rates, ratios = {}, {}
    for name, line in zip(names, lines[1:], strict=True):
        assert line.startswith(f"{name} ")
        rate, cpu, ratio = line[20:].split()
        rates[name], ratios[name] = float(rate.replace(",", "")), float(ratio)
        assert rates[name] > 0
        assert float(cpu.replace(",", "")) > 0
    # Both are printed rounded, rates to a whole number, ratios to two digits.
    base = rates["tritonclient"]
    for name in names:
        low, high = (rates[name] - 0.5) / (base + 0.5), (rates[name] + 0.5) / max(base - 0.5, 0.5)
        assert low - 0.006 < ratios[name] < high + 0.006
    assert ratios["tritonclient"] == 1


def test_the_requests_of_the_floors_are_the_clients_own() -> None:
    from gathernd import _endpoints

    _, body, header = client.raw_request()
    made = _endpoints.gather(
        "gathernd", "items", client.picked(), 0, "onnx-13", "auto", "error", None, None, False, False
    )
    assert b"".join(made.body) == body
    assert made.headers["content-type"] == header["Content-Type"]
