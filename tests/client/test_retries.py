"""Retries and failures, against a transport that does what a test says; nothing here waits for long."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from gathernd import Retries, ScatterInfo, errors
from tests.for_each import for_each

DATA, INDICES = np.array([1.0, 2.0]), np.array([[1]])
Reply = httpx.Response | Exception


class Script(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Answers each request with the next reply, and keeps what it was sent."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.requests: list[httpx.Request] = []
        self.bodies: list[bytes] = []

    def _next(self, request: httpx.Request, body: bytes) -> httpx.Response:
        self.requests.append(request)
        self.bodies.append(body)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply.stream, httpx.ByteStream):  # httpx makes a response its own, and parameters are used twice
            return httpx.Response(reply.status_code, headers=reply.headers, content=reply.content)
        return reply

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        assert isinstance(request.stream, httpx.SyncByteStream)
        return self._next(request, b"".join(request.stream))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        assert isinstance(request.stream, httpx.AsyncByteStream)
        return self._next(request, b"".join([bytes(part) async for part in request.stream]))


class Stream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that comes in these pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        yield from self.pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece


def done() -> httpx.Response:
    body = {
        "output": {"dtype": "float64", "shape": [1], "base64": "AAAAAAAAAEA="},
        "dialect": "onnx-13",
        "device": "cpu",
    }
    return httpx.Response(200, json=body)


def refusal(code: str, status: int, **headers: str) -> httpx.Response:
    body = {"type": f"/errors/{code}", "title": "T", "status": status, "code": code, "detail": "why", "request_id": "r"}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, json=body, headers={"content-type": "application/problem+json", **named})


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were asked for; none is taken."""
    taken: list[float] = []

    async def nap(seconds: float) -> None:
        taken.append(seconds)

    monkeypatch.setattr("time.sleep", taken.append)
    monkeypatch.setattr("asyncio.sleep", nap)
    monkeypatch.setattr("gathernd._retries.random.uniform", lambda low, high: 1.0)
    return taken


@pytest.fixture
def scripted(kind: Any) -> Iterator[Callable[..., tuple[Any, Script]]]:
    made = []

    def make(*replies: Reply, **options: Any) -> tuple[Any, Script]:
        script = Script(*replies)
        made.append(kind("http://service", transport=script, **options))
        return made[-1], script

    yield make
    for client in made:
        client.close()


Scripted = Callable[..., tuple[Any, Script]]


def test_overload_is_waited_out_as_long_as_it_says(scripted: Scripted, pauses: list[float]) -> None:
    client, script = scripted(
        refusal("overloaded", 503, retry_after="2"), refusal("not_ready", 503, retry_after="1"), done()
    )
    assert client.gathernd(DATA, INDICES).tolist() == [2.0]
    assert pauses == [2.0, 1.0]
    assert len(script.requests) == 3
    assert script.bodies[0] == script.bodies[1] == script.bodies[2] != b""


def test_retries_are_counted(scripted: Scripted, pauses: list[float]) -> None:
    client, script = scripted(*[refusal("overloaded", 503, retry_after="1")] * 3, retries=2)
    with pytest.raises(errors.Overloaded) as caught:
        client.gathernd(DATA, INDICES)
    assert (caught.value.retry_after, len(script.requests), pauses) == (1.0, 3, [1.0, 1.0])
    client, script = scripted(refusal("overloaded", 503, retry_after="1"), retries=0)
    with pytest.raises(errors.Overloaded):
        client.gathernd(DATA, INDICES)


def test_retries_are_bounded_in_time(scripted: Scripted, pauses: list[float]) -> None:
    client, _ = scripted(
        refusal("overloaded", 503, retry_after="6"), refusal("overloaded", 503, retry_after="6"), retries=Retries(9, 10)
    )
    with pytest.raises(errors.Overloaded):
        client.gathernd(DATA, INDICES)
    assert pauses == [6.0]


@for_each(
    "reply",
    [
        refusal("overloaded", 503),
        refusal("overloaded", 503, retry_after="soon"),
        refusal("internal", 500, retry_after="1"),
        refusal("index_out_of_bounds", 422),
        refusal("payload_too_large", 413, retry_after="1"),
        httpx.ReadTimeout("slow"),
        httpx.WriteTimeout("slow"),
        httpx.Response(500, text="<html>"),
    ],
)
def test_nothing_else_is_sent_again(scripted: Scripted, pauses: list[float], reply: Reply) -> None:
    client, script = scripted(reply)
    with pytest.raises(errors.GatherNDError):
        client.gathernd(DATA, INDICES)
    assert (len(script.requests), pauses) == (1, [])


def test_what_could_not_connect_is_sent_again(scripted: Scripted, pauses: list[float]) -> None:
    client, _ = scripted(httpx.ConnectError("no"), httpx.ConnectTimeout("slow"), done())
    assert client.gathernd(DATA, INDICES).tolist() == [2.0]
    assert pauses == [0.1, 0.2]
    client, _ = scripted(*[httpx.ConnectError("refused")] * 4)
    with pytest.raises(errors.ConnectError, match="refused"):
        client.gathernd(DATA, INDICES)


def test_a_lost_connection_is_made_again_where_that_changes_nothing(scripted: Scripted, pauses: list[float]) -> None:
    lost = httpx.RemoteProtocolError("server disconnected")
    repeatable: list[Callable[[Any], Any]] = [
        lambda client: client.gathernd(DATA, INDICES),
        lambda client: client.gather("items", [0]),
    ]
    for call in repeatable:
        client, script = scripted(lost, done())
        call(client)
        assert len(script.requests) == 2
    for call in [
        lambda client: client.delete("items"),
        lambda client: client.put("items", DATA, keep=2),
        lambda client: client.put("items", DATA, if_none_match="*"),
        lambda client: client.put("items", DATA, if_match='"a"'),
    ]:
        client, script = scripted(lost)
        with pytest.raises(errors.Disconnected):
            call(client)
        assert len(script.requests) == 1


def test_a_scatter_is_repeated_under_the_same_key_only(scripted: Scripted, pauses: list[float]) -> None:
    answer = httpx.Response(200, json={"name": "items", "etag": '"x-1"'})
    client, script = scripted(httpx.ReadError("lost"), refusal("overloaded", 503, retry_after="1"), answer)
    assert client.scatter("items", [[0]], DATA[:1], "add") == '"x-1"'
    keys = [request.headers["idempotency-key"] for request in script.requests]
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert len(keys[0]) >= 32
    client, again = scripted(httpx.Response(200, json={"name": "items", "etag": "e"}))
    client.scatter("items", [[0]], DATA[:1], idempotency_key="mine")
    assert again.requests[0].headers["idempotency-key"] == "mine"
    client, other = scripted(httpx.Response(200, json={"name": "items", "etag": "e"}))
    client.scatter("items", [[0]], DATA[:1], "add")
    assert other.requests[0].headers["idempotency-key"] != keys[0]


def test_a_scatter_says_how_many_ranges_changed(scripted: Scripted) -> None:
    headers = {"x-gathernd-data-version": "3", "x-request-id": "r1"}
    answer = httpx.Response(200, json={"name": "items", "etag": '"x-5"', "ranges": 2}, headers=headers)
    info = scripted(answer)[0].scatter("items", [[0]], DATA[:1], with_info=True, idempotency_key="mine")
    assert info == ScatterInfo('"x-5"', 2, 3, "r1", "mine")
    alone = httpx.Response(200, json={"name": "items", "etag": '"x-5"'})
    assert scripted(alone)[0].scatter("items", [[0]], DATA[:1], with_info=True).ranges is None


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (refusal("shard_unavailable", 503, retry_after="1"), errors.ShardUnavailable),
        (httpx.ReadError("lost"), errors.Disconnected),
        (httpx.ReadTimeout("late"), errors.Timeout),
    ],
)
def test_a_scatter_of_unknown_outcome_says_how_to_repeat_it(
    scripted: Scripted, pauses: list[float], outcome: Any, error: type[Exception]
) -> None:
    client, script = scripted(outcome, outcome, outcome, outcome)
    with pytest.raises(error) as caught:
        client.scatter("items", [[0]], DATA[:1], "add")
    key = script.requests[0].headers["idempotency-key"]
    assert {request.headers["idempotency-key"] for request in script.requests} == {key}
    assert key in caught.value.__notes__[-1]
    client, _ = scripted(refusal("updates_shape_mismatch", 422))
    with pytest.raises(errors.UpdatesShapeMismatch) as refused:
        client.scatter("items", [[0]], DATA[:1])
    assert not any("repeat" in note for note in getattr(refused.value, "__notes__", ()))


def test_a_code_of_a_newer_service_is_a_plain_service_error(scripted: Scripted) -> None:
    client, _ = scripted(refusal("out_of_cheese", 422))
    with pytest.raises(errors.ServiceError) as caught:
        client.gathernd(DATA, INDICES)
    assert type(caught.value) is errors.ServiceError
    assert caught.value.code == "out_of_cheese"


def binary(content: bytes, status: int = 200) -> httpx.Response:
    return httpx.Response(status, content=content, headers={"content-type": "application/x-safetensors"})


@for_each(
    "reply",
    [
        httpx.Response(200, text="hello"),
        httpx.Response(200, json=[]),
        httpx.Response(200, json={"output": {"dtype": "float99", "shape": [1], "base64": ""}}),
        httpx.Response(200, json={"output": {"dtype": "float64", "shape": [2], "base64": "AAAAAAAAAEA="}}),
        httpx.Response(200, json={"output": {"dtype": "string", "shape": [1], "base64": "BQAAAGE="}}),
        httpx.Response(404, text="<html>"),
        httpx.Response(422, json={"detail": "another service"}),
        httpx.Response(302, headers={"location": "/elsewhere"}),
        binary(b""),
        binary(b"\xff" * 8),
        binary(b"\x02\0\0\0\0\0\0\0{}"),
        binary((58).to_bytes(8, "little") + b'{"output":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}' + bytes(7)),
    ],
)
def test_an_answer_of_something_else_is_unexpected(scripted: Scripted, reply: httpx.Response) -> None:
    client, _ = scripted(reply)
    with pytest.raises(errors.UnexpectedAnswer):
        client.gathernd(DATA, INDICES)


def test_an_answer_in_pieces_and_without_a_length_is_read(scripted: Scripted) -> None:
    whole = done().content
    client, _ = scripted(
        httpx.Response(200, stream=Stream(whole[:5], whole[5:])),
        httpx.Response(200, stream=Stream(whole[:9], whole[9:]), headers={"content-length": str(len(whole))}),
    )
    assert client.gathernd(DATA, INDICES).tolist() == [2.0]
    assert client.gathernd(DATA, INDICES).tolist() == [2.0]


@for_each("status", [301, 302, 303, 307, 308])
@for_each("where", ["https://other.example/gathernd", "/elsewhere"])
def test_a_redirect_is_not_followed_and_the_key_goes_nowhere_else(scripted: Scripted, status: int, where: str) -> None:
    client, script = scripted(httpx.Response(status, headers={"location": where}), done(), key="secret")
    with pytest.raises(errors.UnexpectedAnswer):
        client.gathernd(DATA, INDICES)
    assert [str(sent.url) for sent in script.requests] == [str(script.requests[0].url)]
