"""Drain, rolling restart and kill -9 of a worker, over gRPC and over HTTP: do requests fail, and how long do they take?

python -m benchmarks.grpc_restarts [--times 5]

A service with two workers is asked over gRPC and over HTTP at once. Eight callers each, with a connection of their
own, ask for a 2x2 gather 25 times a second and compare the answers. Each event comes several times: SIGHUP, after which
the workers are replaced one by one; SIGKILL of a worker, which is then replaced; and SIGTERM with a drain delay of a
second, in which callers look at the health every half a second, as a balancer does, and go once it says no.

What got no answer is asked again at most twice, 20 ms apart: over gRPC UNAVAILABLE, and CANCELLED, which gRPC's core
sends for calls that come just as it stops. What is printed: requests that were under way or begun between an event and
its end, those asked again, those that failed for good, quantiles of their times in ms with the repetitions, and how
long it took until both workers took connections again, or the service had ended. The first lines are of two seconds
without an event, the last ones say why requests were asked again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio
import numpy as np
import uvloop

from benchmarks import common, peers
from benchmarks.grpc import INFER, messages

CALLERS: Final = 8
PACE_S: Final = 0.04
MOST_REPEATS: Final = 2
REPEAT_S: Final = 0.02
CALM_S: Final = 2.0
DRAIN_DELAY_S: Final = 1
LOOK_S: Final = 0.5
LIMIT_S: Final = 60.0
ASKED_AGAIN: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
HEALTH: Final = "/grpc.health.v1.Health/Check"


class Unanswered(Exception):
    """A request got no answer, and may be asked again."""


class Seen(NamedTuple):
    """A request: when it began, how long it took with its repetitions, why it was asked again each time, and what it
    failed by in the end.
    """

    begun: float
    took: float
    reasons: tuple[str, ...]
    failure: str


class Event(NamedTuple):
    """When an event came, and when what followed from it had ended."""

    begun: float
    ended: float


Ask = Callable[[], Awaitable[bool]]


class Service:
    """The service with two workers, its log, and what its processes are."""

    def __init__(self, folder: Path) -> None:
        command = [common.gathernd_command(0)[0], "serve", "--host", "127.0.0.1", "--port", "0", "--grpc-port", "0"]
        command += ["--workers", "2", "--drain-delay", str(DRAIN_DELAY_S)]
        self._log = folder / "log"
        environ = {
            **os.environ,
            "GATHERND_STORE_DIR": str(folder / "store"),
            "GATHERND_CACHE_DIR": str(folder.parent / "cache"),
        }
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
        self.port = int(self._found(r"ready on \S+:(\d+),"))
        self.grpc_port = int(self._found(r"gRPC on [^ ]*:(\d+)"))

    def _found(self, pattern: str) -> str:
        end = perf_counter() + 4 * LIMIT_S
        while perf_counter() < end and self.process.poll() is None:
            if found := re.search(pattern, self._log.read_text()):
                return found[1]
            sleep(0.05)
        raise RuntimeError(f"the service does not start:\n{self._log.read_text()[-2000:]}")

    def said(self, text: str) -> int:
        """How often its log says this."""
        return self._log.read_text().count(text)

    def workers(self) -> list[int]:
        """The process ids of its workers, the youngest last."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(child) for child in children.split()]


@contextmanager
def serving(folder: Path) -> Iterator[Service]:
    """A service that runs, ended politely if it has not ended already."""
    service = Service(folder)
    try:
        yield service
    finally:
        if service.process.poll() is None:
            service.process.terminate()
        service.process.wait(30)


class HttpCaller:
    """Asks over one kept connection, made anew where the service has closed it."""

    def __init__(self, port: int) -> None:
        (request,) = (one for name, way, one in peers.work() if way == "native" and name == "tiny json")
        fields = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
        head = f"POST {request.path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{fields}content-length: {len(request.body)}\r\n\r\n"
        self._port = port
        self._request = head.encode() + request.body
        self._right: bytes | None = None
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def __call__(self) -> bool:
        """Whether the answer is right, which the first one is. Raises Unanswered."""
        try:
            if self._connection is None:
                self._connection = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._connection
            writer.write(self._request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = re.search(rb"content-length: (\d+)", head)
            body = await reader.readexactly(int(length[1]) if length else 0)
        except (OSError, asyncio.IncompleteReadError) as error:
            self.close()
            raise Unanswered(type(error).__name__) from None
        if b"connection: close" in head:
            self.close()
        if self._right is None:
            self._right = body
        return head.startswith(b"http/1.1 200") and body == self._right

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None


class GrpcCaller:
    """Asks on one channel, which makes its connection anew by itself."""

    def __init__(self, port: int) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options)
        self._call: Any = self.channel.unary_unary(INFER)
        self._message = messages("gathernd", "")["tiny"]
        self._right: bytes | None = None

    async def __call__(self) -> bool:
        """The same."""
        try:
            answer: bytes = await self._call(self._message, timeout=LIMIT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() in ASKED_AGAIN:
                raise Unanswered(error.code().name) from None
            raise
        if self._right is None:
            self._right = answer
        return answer == self._right


class Load:
    """Callers that ask at a steady pace until they are told to go; `seen` has what they asked."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self._gone = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, ask: Ask) -> None:
        """One more caller."""
        late = len(self._tasks) * PACE_S / CALLERS
        self._tasks.append(asyncio.create_task(self._run(ask, late)))

    async def stop(self) -> None:
        """Let all of them finish what they ask."""
        self._gone.set()
        await asyncio.gather(*self._tasks)

    async def _run(self, ask: Ask, late: float) -> None:
        due = perf_counter() + late
        while not self._gone.is_set():
            await asyncio.sleep(max(0.0, due - perf_counter()))
            begun = perf_counter()
            reasons, failure = await asked(ask)
            self.seen.append(Seen(begun, perf_counter() - begun, reasons, failure))
            due = max(due + PACE_S, begun)


async def asked(ask: Ask) -> tuple[tuple[str, ...], str]:
    """Ask until there is an answer; why it was asked again each time, and what it failed by for good."""
    reasons: list[str] = []
    while True:
        try:
            return tuple(reasons), "" if await ask() else "a wrong answer"
        except Unanswered as error:
            if len(reasons) == MOST_REPEATS:
                return tuple(reasons), f"unanswered: {error}"
            reasons.append(str(error))
        except grpc.aio.AioRpcError as error:
            return tuple(reasons), f"{error.code().name}: {error.details()}"
        await asyncio.sleep(REPEAT_S)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for it. Raises TimeoutError after LIMIT_S."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110  (of another process, which sets no event here)
            await asyncio.sleep(0.01)


async def calm(service: Service, loads: dict[str, Load]) -> None:
    """Nothing happens."""
    await asyncio.sleep(CALM_S)


async def rolling_restart(service: Service, loads: dict[str, Load]) -> None:
    """The workers are replaced one by one."""
    ended = service.said("the restart has ended")
    service.process.send_signal(signal.SIGHUP)
    await until(lambda: service.said("the restart has ended") > ended)


async def killed_worker(service: Service, loads: dict[str, Load]) -> None:
    """One worker is killed, the eldest first, and replaced."""
    taken = service.said("takes connections")
    os.kill(service.workers()[0], signal.SIGKILL)
    await until(lambda: service.said("takes connections") > taken)


async def drained(service: Service, loads: dict[str, Load]) -> None:
    """The service is asked to end; its callers go when its health says so."""

    async def leave_http() -> None:
        await asyncio.sleep(LOOK_S)
        while await asyncio.to_thread(common.get_status, service.port, "/readyz") == 200:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        await loads["HTTP"].stop()

    async def leave_grpc() -> None:
        await asyncio.sleep(LOOK_S)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{service.grpc_port}") as channel:
            check: Any = channel.unary_unary(HEALTH)
            with suppress(grpc.aio.AioRpcError):
                while await check(b"") == b"\x08\x01":  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)
        await loads["gRPC"].stop()

    service.process.terminate()
    await asyncio.gather(leave_http(), leave_grpc())
    await until(lambda: service.process.poll() is not None)
    if service.process.returncode:
        raise RuntimeError(f"the service ended with {service.process.returncode}")


async def under_load(
    service: Service, happen: Callable[[Service, dict[str, Load]], Awaitable[None]], times: int
) -> tuple[dict[str, list[Seen]], list[Event]]:
    """Let it happen so many times under load: what each protocol's callers asked, and when it happened."""
    with ExitStack() as opened:
        loads = {"gRPC": Load(), "HTTP": Load()}
        callers = [GrpcCaller(service.grpc_port) for _ in range(CALLERS)]
        for caller in callers:
            loads["gRPC"].add(caller)
            over_http = HttpCaller(service.port)
            opened.callback(over_http.close)
            loads["HTTP"].add(over_http)
        events = []
        for _ in range(times):
            await asyncio.sleep(1)
            begun = perf_counter()
            await happen(service, loads)
            events.append(Event(begun, perf_counter()))
        for load in loads.values():
            await load.stop()
        for caller in callers:
            await caller.channel.close()
    return {name: load.seen for name, load in loads.items()}, events


def line(name: str, seen: list[Seen], events: list[Event]) -> str:
    """What became of the requests beside the events."""

    def is_beside(one: Seen) -> bool:
        return any(one.begun < event.ended and one.begun + one.took > event.begun for event in events)

    beside = [one for one in seen if is_beside(one)]
    times = np.array([one.took for one in beside]) * 1e3
    p50, p99 = np.quantile(times, (0.5, 0.99))
    repeated, failed = sum(bool(one.reasons) for one in beside), sum(bool(one.failure) for one in beside)
    took = [event.ended - event.begun for event in events]
    return (
        f"{name:24}{len(events):6}{len(beside):10,}{repeated:8}{failed:8}{p50:9.2f}{p99:9.2f}{times.max():9.2f}"
        f"   {np.median(took):5.1f} .. {max(took):.1f} s"
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    times = parser.parse_args().times
    print(common.machine_line())
    print(f"{'':24}{'events':>6}{'requests':>10}{'again':>8}{'failed':>8}{'p50':>9}{'p99':>9}{'most':>9}   over after")
    failures: set[str] = set()
    reasons: Counter[str] = Counter()
    found: dict[str, tuple[list[Seen], list[Event]]] = {}

    def note(title: str, seen: dict[str, list[Seen]], events: list[Event]) -> None:
        for protocol, all_seen in seen.items():
            before = found.setdefault(f"{title}, {protocol}", ([], []))
            before[0].extend(all_seen)
            before[1].extend(events)
            failures.update(f"{protocol}: {one.failure}" for one in all_seen if one.failure)
            reasons.update(f"{title}, {protocol}: {reason}" for one in all_seen for reason in one.reasons)

    with tempfile.TemporaryDirectory(prefix="gathernd-bench-") as folder:
        first = Path(folder) / "first"
        first.mkdir()
        with serving(first) as service:
            note("nothing", *uvloop.run(under_load(service, calm, 1)))
            note("SIGHUP", *uvloop.run(under_load(service, rolling_restart, times)))
            note("SIGKILL of a worker", *uvloop.run(under_load(service, killed_worker, times)))
        for number in range(times):
            another = Path(folder) / str(number)
            another.mkdir()
            with serving(another) as service:
                note("SIGTERM", *uvloop.run(under_load(service, drained, 1)))
    for title, (all_seen, events) in found.items():
        print(line(title, all_seen, events))
    for reason, count in sorted(reasons.items()):
        print(f"asked again: {reason}, {count} times")
    for failure in sorted(failures):
        print(f"failed: {failure}")


if __name__ == "__main__":
    main()
