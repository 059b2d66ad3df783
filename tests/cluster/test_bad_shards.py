"""A replica that answers slowly, wrongly or not at all: the other one's rows are answered, and nothing is left open."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Awaitable, Callable
from math import inf
from time import perf_counter
from typing import Any, cast

import numpy as np
import pytest

from app.cluster.router.fetch_rows import RowFetcher, TableReads
from app.cluster.router.range_requests import Output, as_rows, row_requests
from app.cluster.router.replica_choice import SAVED_HEDGES
from app.cluster.router.shard_connection import LEAST_BYTES
from app.cluster.router.sharded_tensors import ShardedResident
from app.cluster.router.shards import MAX_CONNECTIONS, Shards
from app.cluster.shard_map import Replica, RowRange, ShardedTable, ShardedVersion, ShardMap
from app.dispatch.request_thread_pool import ClientGone
from app.errors import GatherError
from app.formats.safetensors.header import write_header
from app.memory.budget import UNCOUNTED
from app.telemetry.served_request import ServedRequest
from app.tensors.dtypes import DTYPES, DType
from tests.served import served
from tests.told_memory import ToldMemory

FLOAT, STRING = DTYPES["float32"], DTYPES["string"]
Respond = Callable[["Shard", int], None]


class Shard(asyncio.Protocol):
    """A shard that does `respond` with each request, told how many rows it asks for."""

    respond: Respond
    asked = 0
    open = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        type(self).open += 1

    def connection_lost(self, error: Exception | None) -> None:
        type(self).open -= 1

    def data_received(self, data: bytes) -> None:
        type(self).asked += 1
        length = int(data.split(b"content-length: ")[1].split(b"\r")[0])
        type(self).respond(self, (length - 8 - int.from_bytes(data[-length:][:8], "little")) // 8)

    def answer(self, body: bytes, status: str = "200 OK", *fields: str) -> None:
        lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *fields, "", ""]
        self.transport.write("\r\n".join(lines).encode() + body)


def rows_of(count: int, value: float = 1, width: int = 2) -> bytes:
    made: bytes = write_header("output", FLOAT, (count, width), 4 * width * count)
    return made + np.full(width * count, value, np.float32).tobytes()


def strings_of(count: int) -> bytes:
    """So many rows of two strings, as JSON."""
    framed = b"".join(b"\1\0\0\0x" for _ in range(2 * count))
    return json.dumps({"output": {"dtype": "string", "base64": b64encode(framed).decode()}}).encode()


def good(self: Shard, count: int) -> None:
    self.answer(rows_of(count))


def good_strings(self: Shard, count: int) -> None:
    self.answer(strings_of(count))


def silent(self: Shard, count: int) -> None:
    pass


def drips(self: Shard, count: int) -> None:
    """A byte now and then, so that there is always some progress."""
    body = rows_of(count)
    pieces = [
        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body),
        *(body[at : at + 1] for at in range(len(body))),
    ]

    def drip() -> None:
        if pieces and not self.transport.is_closing():
            self.transport.write(pieces.pop(0))
            asyncio.get_running_loop().call_later(0.05, drip)

    drip()


def resets(self: Shard, count: int) -> None:
    self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n" + rows_of(count)[:40])
    asyncio.get_running_loop().call_later(0.01, self.transport.abort)


class Cluster:
    """Row 0 to 9 of a table in one range, on a bad shard and on a good one, and what fetches rows from them."""

    def __init__(self, late_after: float, dtype: DType, addresses: list[str]) -> None:
        ranges = (RowRange(0, 10, "t@1", tuple(map(Replica, addresses))),)
        version = ShardedVersion(1, "c", dtype, (10, 2), ranges)
        self.known = ShardMap(1, {"t": ShardedTable((version,), 1)})
        self.version = version
        self.bad = addresses[0]
        self.shards = Shards()
        self.fetcher = RowFetcher(self.shards, self.known, late_after)
        self.charged = 0

    async def fetch(self, seconds: float = 20.0, request: ServedRequest | None = None) -> Any:
        """The rows 3 and 5."""
        dtype = self.version.dtype
        out = np.zeros(4, np.uint32)
        rows = None if dtype is STRING else as_rows(out, 8)
        output = Output(dtype, rows, 2, ToldMemory(self._charge), 1 << 20)
        requests = row_requests(self.version, np.array([3, 5]), (self.version.rows,), output, (2,))
        now = perf_counter()
        wanted = [TableReads(ShardedResident(self.known, "t", self.version), requests)]
        lost = await self.fetcher.fetch(wanted, request or served(None, now, now + seconds))
        assert lost == []
        if dtype is STRING:
            return output.strings(2, (2, 2))
        return out.view(np.float32)

    def _charge(self, size: int) -> None:
        self.charged += size


def run(
    work: Callable[[Cluster, type[Shard]], Awaitable[None]],
    respond: Respond,
    late_after: float = 1.0,
    dtype: DType = FLOAT,
    other: Respond | None = None,
) -> None:
    """Have `work` done with a cluster whose bad shard does `respond`, and whose good one answers or does `other`.

    All connections are closed in the end.
    """

    class Bad(Shard):
        pass

    class Good(Shard):
        pass

    Bad.respond, Good.respond = respond, other or (good_strings if dtype is STRING else good)

    async def all_of_it() -> None:
        loop = asyncio.get_running_loop()
        servers = [await loop.create_server(kind, "127.0.0.1", 0) for kind in (Bad, Good)]
        cluster = Cluster(late_after, dtype, [f"127.0.0.1:{one.sockets[0].getsockname()[1]}" for one in servers])
        await work(cluster, Bad)
        known = cluster.shards.known()
        cluster.shards.close()
        end = perf_counter() + 5
        while (Bad.open or Good.open or any(one.open for one in known)) and perf_counter() < end:  # noqa: ASYNC110  (nothing tells)
            await asyncio.sleep(0.01)
        assert [(one.open, one.in_flight, len(one.waiting), one.idle) for one in known] == [(0, 0, 0, [])] * len(known)
        assert (Bad.open, Good.open) == (0, 0)
        for server in servers:
            server.close()

    asyncio.run(all_of_it())


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  (nothing tells)
            await asyncio.sleep(0.01)


def says(body: bytes, status: str = "200 OK", *fields: str) -> Respond:
    return lambda self, _: self.answer(body, status, *fields)


BAD: dict[str, Respond] = {
    "an error with status 200": says(b'{"code": "internal"}'),
    "a row less": lambda self, count: self.answer(rows_of(count - 1, 2)),
    "a code that is none": says(b'{"code": ["x"]}', "500 Oops"),
    "a long code": says(b'{"code": "%b"}' % (b"x\n" * 9000), "500 Oops"),
    "JSON that is none": says(b"[", "503 No"),
    "a time of 5000 digits": says(b"{}", "503 No", "retry-after: " + "9" * 5000),
    "reset in the middle": resets,
    "a redirect": says(b"", "302 Found", "location: http://127.0.0.1:1/"),
}


@pytest.mark.parametrize("respond", BAD.values(), ids=BAD)
def test_the_other_replica_is_asked(respond: Respond, caplog: pytest.LogCaptureFixture) -> None:
    async def work(cluster: Cluster, bad: type[Shard]) -> None:
        for _ in range(8):
            assert (await cluster.fetch() == 1).all()
        assert bad.asked
        assert bad.asked < 4, "it is asked last for a while"

    run(work, respond)
    assert max(len(record.getMessage()) for record in caplog.records) < 300
    assert "Traceback" not in caplog.text


BAD_STRINGS: dict[str, Respond] = {
    "rows in another format": good,
    "an error with status 200": says(b'{"code": "internal"}'),
    "no JSON": says(b"{"),
    "no base64": says(b'{"output": {"base64": "?"}}'),
    "a row less": lambda self, count: self.answer(strings_of(count - 1)),
    "a string that is cut off": says(b'{"output": {"base64": "%b"}}' % b64encode(b"\1\0\0\0x" * 3 + b"\2\0\0\0x")),
    "a string of 4 GB": says(b'{"output": {"base64": "%b"}}' % b64encode(b"\xff" * 20)),
}


@pytest.mark.parametrize("respond", BAD_STRINGS.values(), ids=BAD_STRINGS)
def test_the_other_replica_is_asked_for_strings(respond: Respond) -> None:
    async def work(cluster: Cluster, bad: type[Shard]) -> None:
        for _ in range(8):
            found = await cluster.fetch()
            assert found.octets.tobytes() == b"\1\0\0\0x" * 4
        assert bad.asked

    run(work, respond, dtype=STRING)


def test_a_connection_that_the_shard_has_closed_as_idle_is_no_failure() -> None:
    def closes(self: Shard, count: int) -> None:
        good(self, count)
        asyncio.get_running_loop().call_later(0.01, self.transport.close)

    async def work(cluster: Cluster, bad: type[Shard]) -> None:
        for pause in (0.0, 0.0099, 0.01, 0.0101, 0.05, 0.0):
            await cluster.fetch()
            await asyncio.sleep(pause)
        assert [set(one.outcomes) for one in cluster.shards.known()] == [{"ok"}] * 2

    run(work, closes, other=closes)


def test_an_answer_that_is_too_long_takes_no_memory() -> None:
    async def work(cluster: Cluster, bad: type[Shard]) -> None:
        for _ in range(4):
            await cluster.fetch()
        assert bad.asked
        assert cluster.charged < 4000

    run(work, says(b"", "200 OK", f"content-length: {1 << 40}"), dtype=STRING)


@pytest.fixture
def without_hedges(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read waits for its shard as long as it may."""
    monkeypatch.setattr("app.cluster.router.replica_choice.FIRST_P95", inf)


@pytest.mark.usefixtures("without_hedges")
@pytest.mark.parametrize("respond", [drips, silent])
def test_one_that_drips_or_is_silent_is_late(respond: Respond) -> None:
    async def work(cluster: Cluster, bad: type[Shard]) -> None:
        for _ in range(4):
            assert (await cluster.fetch() == 1).all()
        assert bad.asked == 1, "it is waited for once"

    run(work, respond, late_after=0.3)


def test_a_large_answer_that_goes_on_is_not_late() -> None:
    width = LEAST_BYTES // 2

    def slow(self: Shard, count: int) -> None:
        body = rows_of(count, 3, width)
        self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body))
        for number, at in enumerate(range(0, len(body), LEAST_BYTES)):
            asyncio.get_running_loop().call_later(0.1 * number, self.transport.write, body[at : at + LEAST_BYTES])

    async def work(cluster: Cluster, bad: type[Shard]) -> None:
        version = cluster.version
        out = np.zeros(4 * width, np.uint32)
        output = Output(FLOAT, as_rows(out, 4 * width), width, UNCOUNTED, 1 << 20)
        requests = row_requests(version, np.array([3, 5, 7, 8]), (version.rows,), output, (width,))
        only = RowRange(0, 10, "t@1", (Replica(cluster.bad),))
        known = ShardMap(1, {"t": ShardedTable((ShardedVersion(1, "c", FLOAT, (10, width), (only,)),), 1)})
        now = perf_counter()
        wanted = [TableReads(ShardedResident(known, "t", known.tables["t"].current), requests)]
        assert await cluster.fetcher.fetch(wanted, served(None, now, now + 20)) == []
        assert bad.asked == 1
        assert (out.view(np.float32) == 3).all()

    run(work, slow, late_after=0.35)


@pytest.mark.usefixtures("without_hedges")
def test_a_deadline_shorter_than_the_patience_leaves_the_other_replica_its_time() -> None:
    async def work(cluster: Cluster, bad: type[Shard]) -> None:
        for _ in range(6):
            assert (await cluster.fetch(0.4) == 1).all()
        assert bad.asked

    run(work, silent, late_after=30.0)


def test_the_deadline_ends_the_rounds() -> None:
    async def work(cluster: Cluster, bad: type[Shard]) -> None:
        with pytest.raises(GatherError, match="deadline_exceeded"):
            await cluster.fetch(0.1)

    run(work, silent, late_after=30.0, other=silent)


@pytest.mark.usefixtures("without_hedges")
def test_one_that_is_silent_when_nobody_waits_any_more_is_found_out(caplog: pytest.LogCaptureFixture) -> None:
    """Clients that give up before it is late would else find it silent again and again."""

    async def work(cluster: Cluster, bad: type[Shard]) -> None:
        while "skipping" not in caplog.text:
            now = perf_counter()
            asking = asyncio.create_task(cluster.fetch(20, served(None, now, now + 20)))
            await asyncio.wait([asking], timeout=0.15)
            asking.cancel()
            await asyncio.wait([asking])
        assert bad.asked < 12

    run(work, silent, late_after=30.0)


def test_what_a_silent_one_is_asked_for_the_other_one_is_asked_too(caplog: pytest.LogCaptureFixture) -> None:
    async def work(cluster: Cluster, bad: type[Shard]) -> None:
        while "skipping" not in caplog.text:
            assert (await cluster.fetch() == 1).all()
        assert bad.asked <= SAVED_HEDGES, "no read waits until it is late"

    run(work, silent, late_after=60.0)


def test_one_that_was_passed_over_is_asked_again_and_taken_back(caplog: pytest.LogCaptureFixture) -> None:
    def refuses_three(self: Shard, count: int) -> None:
        if type(self).asked <= 3:
            self.transport.abort()
        else:
            good(self, count)

    async def work(cluster: Cluster, bad: type[Shard]) -> None:
        caplog.set_level("INFO")
        while "responds again" not in caplog.text:
            assert (await cluster.fetch() == 1).all()
            await asyncio.sleep(0.01)
        assert caplog.text.count("skipping") == 1
        asked = bad.asked
        for _ in range(4):
            await cluster.fetch()
        assert bad.asked > asked, "it has its turns again"

    run(work, refuses_three)


@pytest.mark.parametrize("first_fails", [True, False])
def test_of_a_hedged_read_one_may_fail(first_fails: bool) -> None:
    """The first one breaks off once the second one is asked, or the second one refuses and the first one answers."""
    event = list[Callable[[], None]]()

    def first(self: Shard, count: int) -> None:
        event.append(self.transport.abort if first_fails else lambda: good(self, count))

    def second(self: Shard, count: int) -> None:
        if first_fails or not event:
            asyncio.get_running_loop().call_later(0.1, good, self, count)
        else:
            self.answer(b'{"code": "overloaded"}', "503 Busy")
        for happens in event:
            happens()
        event.clear()

    async def work(cluster: Cluster, bad: type[Shard]) -> None:
        while not bad.asked:
            assert (await cluster.fetch() == 1).all()

    run(work, first, late_after=60.0, other=second)


def test_requests_that_are_given_up_leave_nothing() -> None:
    class Caller:
        disconnected = False
        on_disconnect: Callable[[], None] | None = None

    async def work(cluster: Cluster, bad: type[Shard]) -> None:
        shard = cluster.shards.get(cluster.bad)
        asking = []
        callers = []
        for number in range(3 * MAX_CONNECTIONS):
            now = perf_counter()
            request = served(None, now, now + (0.5 if number % 3 == 0 else 20))
            request.caller = caller = Caller()
            callers.append(caller)
            asking.append(asyncio.create_task(cluster.fetch(20, request)))
        await until(lambda: shard.open == MAX_CONNECTIONS)
        for number, caller in enumerate(callers):
            if number % 3 == 1 and caller.on_disconnect is not None:
                caller.on_disconnect()
            elif number % 3 == 2:
                asking[number].cancel()
        ends = await asyncio.gather(*asking, return_exceptions=True)
        kinds = {type(end) for end in ends if isinstance(end, BaseException)}
        assert kinds <= {ClientGone, asyncio.CancelledError, GatherError}
        await until(lambda: (shard.in_flight, len(shard.waiting)) == (0, 0) and shard.open == len(shard.idle))

    run(work, silent, late_after=30.0)


def test_an_ask_that_waits_gets_the_place_of_a_connection_that_ended() -> None:
    """Though other connections to the shard are open, and silent."""

    def answers_the_last(self: Shard, count: int) -> None:
        if type(self).asked == 1:
            asyncio.get_running_loop().call_later(0.2, self.transport.abort)
        elif type(self).asked > MAX_CONNECTIONS:
            self.answer(rows_of(count))

    async def work(cluster: Cluster, bad: type[Shard]) -> None:
        only = RowRange(0, 10, "t@1", (Replica(cluster.bad),))
        cluster.version = ShardedVersion(1, "c", FLOAT, (10, 2), (only,))
        cluster.known = ShardMap(1, {"t": ShardedTable((cluster.version,), 1)})
        asking = [asyncio.create_task(cluster.fetch()) for _ in range(MAX_CONNECTIONS + 1)]
        done, _ = await asyncio.wait(asking, timeout=25, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) >= 1
        for one in asking:
            one.cancel()
        await asyncio.wait(asking)

    run(work, answers_the_last, late_after=30.0)


def connect_never(address: str) -> None:
    """Have connections to an address take a minute."""
    loop = asyncio.get_running_loop()
    create, port = loop.create_connection, int(address.rpartition(":")[2])

    async def never(protocol: Any, host: str, at: int, **options: Any) -> Any:
        if at == port:
            await asyncio.sleep(60)
        return await create(protocol, host, at, **options)

    loop.create_connection = never  # type: ignore[assignment]


def test_a_machine_that_answers_nothing_does_not_keep_its_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.cluster.router.shards.CONNECT_S", 0.2)

    async def work(cluster: Cluster, bad: type[Shard]) -> None:
        connect_never(cluster.bad)
        for _ in range(4):
            assert (await cluster.fetch() == 1).all()
        await until(lambda: cluster.shards.get(cluster.bad).open == 0)

    run(work, silent, late_after=0.1)
