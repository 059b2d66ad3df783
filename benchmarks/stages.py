"""What a small request costs in the service itself, stage by stage, in microseconds.

python -m benchmarks.stages [--seconds 0.5]

The stages of `POST /gathernd` with the specification's first example in JSON, each timed alone, in process and on a
warm cache: `headers` makes the request's context and checks Host and Origin, `parse` turns the body into a call, `plan`
validates it and chooses a route, `run` gathers, `encode` writes the body of the answer, `send` its header and bytes.
`whole` is a request through the data plane from its scope to its bytes; what it takes beyond the stages is the way
between them. uvicorn's part and the socket's are not in it: compare `benchmarks.http_json`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from pydantic import ByteSize

from app.api.asgi_request import RequestContext
from app.formats.json.read_request import read_request
from app.formats.json.write_answer import write_answer
from app.main import Application, create_app
from app.operators.registry import OPERATORS
from app.services.gathers import Gathers
from app.settings import Settings
from app.tensors.gather_call import Call
from app.tensors.tensor import Tensor
from app.warmup import warm
from benchmarks import common

BODY = (
    b'{"data":{"dtype":"int32","shape":[2,2],"values":[0,1,2,3]},'
    b'"indices":{"dtype":"int64","shape":[2,2],"values":[0,0,1,1]}}'
)


class Sink:
    """Stands for the server's side: takes the answer and forgets it."""

    refusal = route_match = None
    received = len(BODY)
    sent = 0
    answer = b""

    def whole_body(self) -> bytes:
        """The body."""
        return BODY

    def ready(self) -> bool:
        """It always is."""
        return True

    def respond(self, status: int, fields: bytes, pieces: Sequence[bytes], size: int) -> None:
        """Join the answer as the server does."""
        self.answer = b"".join((fields, *pieces))


def scope(sink: Sink) -> MutableMapping[str, Any]:
    """The scope of one request, as the server makes it."""
    headers = [
        (b"host", b"127.0.0.1:8080"),
        (b"content-type", b"application/json"),
        (b"content-length", str(len(BODY)).encode()),
    ]
    return {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/gathernd",
        "raw_path": b"/gathernd",
        "query_string": b"",
        "headers": headers,
        "extensions": {"gathernd": sink},
    }


async def receive() -> MutableMapping[str, Any]:
    """Nothing is received this way: the sink has it all."""
    raise AssertionError


async def send(message: MutableMapping[str, Any]) -> None:
    """Nothing is sent this way: the sink takes it all."""
    raise AssertionError(message)


def best(work: Callable[[], object], seconds: float) -> float:
    """Microseconds of `work` in the best of many short runs."""
    least, until = float("inf"), perf_counter() + seconds
    while perf_counter() < until:
        started = perf_counter()
        for _ in range(200):
            work()
        least = min(least, (perf_counter() - started) / 200)
    return least * 1e6


async def timings(app: Application, seconds: float) -> dict[str, float]:
    """Microseconds by stage."""
    sink, service = Sink(), app.service
    given = scope(sink)

    def exchange() -> RequestContext:
        made = RequestContext(given, receive, send, app.admission, app.deadline, app.metrics)
        app.host_check.check(made.headers)
        return made

    one = exchange()
    signature = OPERATORS["gathernd"].signature
    call, encoding = read_request(BODY, b"", signature, service.limits)
    assert isinstance(call.data, Tensor)
    data = call.data
    answer = await service.run(call, one)
    text = write_answer(answer, encoding)
    gathers = service.runners[Call]
    assert isinstance(gathers, Gathers)
    planned = gathers.planner.plan(call, data, service.chooser)

    def finish(coroutine: Any) -> None:
        try:
            coroutine.send(None)
        except StopIteration:
            return
        raise AssertionError("a small request never waits")

    return {
        "headers": best(exchange, seconds),
        "parse": best(lambda: read_request(BODY, b"", signature, service.limits), seconds),
        "plan": best(lambda: gathers.planner.plan(call, data, service.chooser), seconds),
        "run": best(lambda: gathers.run_at_once(planned, data, call.indices, one), seconds),
        "encode": best(lambda: write_answer(answer, encoding), seconds),
        "send": best(lambda: finish(one.send(200, b"application/json", text)), seconds),
        "whole": best(lambda: finish(app(scope(sink), receive, send)), seconds),
    }


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gathernd-bench-") as folder:
        cache = Path(os.environ.get("GATHERND_CACHE_DIR", f"{folder}/cache"))
        settings = Settings(store_dir=Path(folder) / "store", cache_dir=cache, memory_budget=ByteSize(2**28))
        # `warm` alone would leave what reads JSON to be compiled aside, and the plain functions would be timed.
        subprocess.run([sys.executable, "-m", "app.cli", "warm", "--cache-dir", str(cache)], check=True)
        app = create_app(settings)
        warm(settings.cache_dir, lambda _: None)
        app.readiness.done("kernels")
        found = asyncio.run(timings(app, options.seconds))
    print(common.machine_line())
    for name, microseconds in found.items():
        print(f"{name:8} {microseconds:7.2f} us")
    print(f"{'between':8} {2 * found['whole'] - sum(found.values()):7.2f} us")


if __name__ == "__main__":
    main()
