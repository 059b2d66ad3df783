"""What each choice of the server's is worth: the service beside itself with one thing done otherwise, in one run.

python -m benchmarks.choices [--seconds 2] [--rounds 2] [--only NAME,NAME]

Both servers stay up and are driven in turns, so that a slow minute falls on both. For each piece of work the table has
the rate as it is served, and the rate with the alternative over it: below 1.00 the choice pays. `cpu` is the same for
the server's processor time a request, which noise hardly touches: above 1.00 the choice pays.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from typing import Any

from app import main as wiring
from app import start_server
from app.server import body_reader, inline_start, request_header_cache, serve, whole_answer
from app.server.http1_connection import Http1Connection
from app.server.http_exchange import HttpExchange
from app.service import Service
from app.settings import Settings
from app.wire import safetensors
from app.wire.json import gather_messages
from benchmarks import common, peers

configure = serve.configure


def configured(**options: Any) -> Callable[[], None]:
    """uvicorn with other options."""

    def change() -> None:
        def configure_otherwise(*arguments: Any) -> Any:
            made = configure(*arguments)
            for name, value in options.items():
                setattr(made, name, value)
            return made

        serve.configure = configure_otherwise  # type: ignore[assignment]

    return change


def changed(target: Any, name: str, value: Any) -> Callable[[], None]:
    """An attribute of a module or class with another value."""
    return lambda: setattr(target, name, value)


def a_task_each() -> None:
    """uvicorn's way to start a request: a task, which begins in the next turn of the loop."""

    def start(connection: Http1Connection, request: HttpExchange) -> None:
        connection.running = request
        if request.more_body:
            request.connection = connection
        connection._start_asgi_task(request, connection.app)

    inline_start.start = start  # type: ignore[assignment]


def two_messages() -> None:
    """ASGI's way to answer: a start and a body, and the header fields as a list of pairs."""
    HttpExchange.ready = lambda exchange: False


def a_write_each() -> None:
    """Each answer is written when it is made."""

    def enqueue(transport: Any, answer: Any, size: int) -> None:
        transport.writelines(answer)

    whole_answer.enqueue = enqueue  # type: ignore[attr-defined]


def collector(freeze: bool, *thresholds: int) -> Callable[[], None]:
    """The garbage collector otherwise; no threshold: off."""

    def change() -> None:
        if not freeze:
            gc.freeze = lambda: None
        if thresholds:
            gc.set_threshold(*thresholds)
        elif freeze:
            gc.disable()

    return change


CHOICES: dict[str, tuple[str, Callable[[], None]]] = {
    "loop: asyncio": ("the event loop", configured(loop="asyncio")),
    "protocol: uvicorn's httptools": ("no shortcut of ours: tasks, two messages", configured(http="httptools")),
    "protocol: uvicorn's h11": ("the parser in Python", configured(http="h11")),
    "no Date": ("uvicorn's setting date_header", configured(date_header=False)),
    "a task for each request": (a_task_each.__doc__ or "", a_task_each),
    "http.response in two messages": (two_messages.__doc__ or "", two_messages),
    "a write for each answer": (a_write_each.__doc__ or "", a_write_each),
    "pieces joined": ("one buffer for header and body", changed(whole_answer, "JOINED", 1 << 40)),
    "pieces never joined": ("two buffers, however small", changed(whole_answer, "JOINED", 0)),
    "every header parsed": ("no header kept", changed(request_header_cache, "LARGEST", 0)),
    "every form read": ("no safetensors header or query kept", changed(safetensors, "_REMEMBERED", -1)),
    "every template read": ("no small part of a JSON request kept", changed(gather_messages, "_TEMPLATE_BYTES", -1)),
    "every plan made": ("no plan kept", changed(Service, "_plans", property(lambda self: {}, lambda *_: None))),
    "bodies through the parser": (
        "no large body read into its place",
        changed(body_reader, "MIN_DIRECT_BYTES", 1 << 60),
    ),
    "freed memory given back": ("malloc as it comes", changed(serve, "keep_freed_memory", lambda _: False)),
    "gc: not frozen": ("thresholds as they come", collector(False)),
    "gc: threshold 10k": ("frozen", collector(True, 10_000, 10, 10)),
    "gc: threshold 100k": ("frozen", collector(True, 100_000, 10, 10)),
    "gc: off": ("frozen", collector(True)),
}


def serve_changed(name: str, port: int) -> None:
    """Be the server, with `name` done otherwise."""
    if name:
        CHOICES[name][1]()
    settings = Settings(host="127.0.0.1", port=port)
    start_server.serve(settings, wiring.create_app(settings))


def command(name: str) -> Callable[[int], list[str]]:
    """How to start the server with `name` done otherwise; "": nothing."""
    return lambda port: [sys.executable, "-m", "benchmarks.choices", "--serve", name, "--port", str(port)]


def work() -> dict[str, common.Request]:
    """What is asked: a tiny gather, a lookup of 256 rows (64 KiB out), and 4 MB in with 10,000 tuples."""
    return {name: request for name, way, request in peers.work() if way == "native" and name != "lookup json"}


def measure(port: int, request: common.Request, seconds: float) -> tuple[float, float]:
    """Requests a second, and microseconds of processor time a request. Raises RuntimeError where one failed."""
    before = common.processor_time(port)
    figures = common.wrk(port, request, seconds=seconds)
    if figures.errors:
        raise RuntimeError(f"{figures.errors} requests failed")
    return figures.rate, (common.processor_time(port) - before) / figures.requests * 1e6


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default=",".join(CHOICES))
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve_changed(options.serve, options.port)
        return
    requests = work()
    print(common.machine_line())
    print(f"{'':30}" + "".join(f"{name:>22}" for name in requests))
    print(f"{'instead':30}" + f"{'rate':>14}{'cpu':>8}" * len(requests))
    with ExitStack() as stack:
        cache = {"GATHERND_CACHE_DIR": str(Settings().cache_dir)}
        usual = stack.enter_context(common.serving(command(""), environ=cache, limit=120))
        peers.upload(usual)
        seen: dict[str, list[tuple[float, float]]] = {name: [] for name in requests}
        for choice in options.only.split(","):
            line = f"{choice:30}"
            with common.serving(command(choice), environ=cache, limit=120) as other:
                peers.upload(other)
                for name, request in requests.items():
                    rates, costs = [], []
                    for _ in range(options.rounds):
                        here, there = (measure(port, request, options.seconds) for port in (usual, other))
                        seen[name].append(here)
                        rates.append(there[0] / here[0])
                        costs.append(there[1] / here[1])
                    line += f"{median(rates):14.2f}{median(costs):8.2f}"
            print(line, flush=True)
    ours = {
        name: (median(rate for rate, _ in found), median(cost for _, cost in found)) for name, found in seen.items()
    }
    print(f"{'as served: /s, µs':30}" + "".join(f"{rate:14,.0f}{cost:8.1f}" for rate, cost in ours.values()))


if __name__ == "__main__":
    main()
