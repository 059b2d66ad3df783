"""Requests a second of the service, its floor and its peers, on the same work in the same run.

The work: `tiny json` is a gather of two items inline; the lookups are 256 int64 indices into a resident table of
200,000 x 64 float32, 64 KiB out; `inline 4 MB binary` is 1000 x 1000 float32 and 10,000 pairs. The floor takes and
gives as many bytes; `an hour's work` is FastAPI, pydantic and NumPy; Redis answers one MGET of 256 rows. Servers take
turns, and the best round of each counts. Every answer is compared before it counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from benchmarks import common, work
from benchmarks.peers.redis_server import mgets, redis_server
from benchmarks.peers.triton_server import MISSING, triton_server

Found = dict[str, dict[str, common.Figures]]
NAN = float("nan")


class Server(NamedTuple):
    """A running server, and what it is asked for each piece of work that it can do."""

    port: int
    requests: dict[str, common.Request]
    is_checked: bool = True


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--work", default="", help="only these, comma-separated")
    parser.add_argument("--triton", metavar="PYTHON", help="of an environment with nvidia-pytriton")


@contextmanager
def gathernd(rows: work.Array, requests: dict[str, common.Request]) -> Iterator[Server]:
    """The service, with the table resident."""
    with common.serving(common.gathernd_command) as port:
        work.upload(port, rows)
        yield Server(port, requests)


@contextmanager
def floor(requests: dict[str, common.Request], sizes: dict[str, int]) -> Iterator[Server]:
    """The endpoint that takes and gives as many bytes."""
    with common.serving(common.uvicorn_command(common.ENDPOINT), ready="/0") as port:
        asked = {name: common.Request(f"/{sizes[name]}", one.body, one.headers) for name, one in requests.items()}
        yield Server(port, asked, is_checked=False)


@contextmanager
def hour_of_work(requests: dict[str, common.Request]) -> Iterator[Server]:
    """The service that takes an hour to write; it has no resident tables."""
    with common.serving(common.uvicorn_command("benchmarks.peers.hour_of_work:app")) as port:
        yield Server(port, {name: one for name, one in requests.items() if name == "tiny json"})


@contextmanager
def triton(python: str, requests: dict[str, common.Request]) -> Iterator[Server]:
    """Triton with the same models."""
    with triton_server(python, "gathernd", "items") as port:
        yield Server(port, requests)


def drive(server: Server, name: str, asked: dict[str, work.Work], seconds: float, found: Found) -> None:
    """Measure each piece of work that a server can do. Raises RuntimeError for a wrong answer."""
    for kind, request in server.requests.items():
        answer = common.post(server.port, request)
        expected = asked[kind].output
        if server.is_checked and not np.array_equal(work.output_of(answer, request, expected), expected):
            raise RuntimeError(f"{name} answers {kind} wrongly")
        long = 2 if len(request.body) >= 1 << 20 else 1
        common.better(found[kind], name, common.wrk(server.port, request, seconds=seconds * long))


def run(options: argparse.Namespace) -> None:
    """Print a table for each piece of work."""
    rows = work.table()
    asked = work.all_work(rows)
    if options.work:
        asked = {name: asked[name] for name in options.work.split(",")}
    ours = {name: one.request for name, one in asked.items()}
    protocol = {name: one.protocol for name, one in asked.items()}
    sizes: dict[str, int] = {}
    found: Found = {name: {} for name in asked}
    with redis_server(rows if "lookup binary" in asked else rows[:0]) as redis:
        for _ in range(options.rounds):
            with gathernd(rows, ours) as server:
                sizes = {name: len(common.post(server.port, request)) for name, request in ours.items()}
                drive(server, "gathernd", asked, options.seconds, found)
                drive(server._replace(requests=protocol), "gathernd, protocol", asked, options.seconds, found)
            with floor(ours, sizes) as server:
                drive(server, "floor", asked, options.seconds, found)
            with hour_of_work(ours) as server:
                drive(server, "an hour's work", asked, options.seconds, found)
            if options.triton:
                with triton(options.triton, protocol) as server:
                    drive(server, "Triton", asked, options.seconds, found)
            if redis is not None and "lookup binary" in asked:
                rate, _ = mgets(redis, work.ROWS, work.PICK, options.seconds)
                common.better(found["lookup binary"], "Redis MGET", common.Figures(rate, NAN, NAN, 0, 0))
    if not options.triton:
        print(MISSING)
    for name, figures in found.items():
        print()
        print(common.table(name, figures, [one for one in figures if not one.startswith("gathernd")]), flush=True)
