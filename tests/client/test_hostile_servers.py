"""Both clients against servers on a socket that break off, trickle, answer too early, twice or not at all."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest

from gathernd import Retries, errors

DATA, INDICES = np.array([1.0, 2.0]), np.array([[1]])
_OUTPUT = b'{"output":{"dtype":"float64","shape":[1],"base64":"AAAAAAAAAEA="},"device":"cpu"}'
DONE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(_OUTPUT) + _OUTPUT
NO_RETRIES = 0
Serve = Callable[[socket.socket, int], None]


def receive_request(connection: socket.socket) -> bytes:
    """A whole request; what came of it where the client has gone."""
    received = b""
    while b"\r\n\r\n" not in received:
        piece = connection.recv(1 << 16)
        if not piece:
            return received
        received += piece
    header = received.partition(b"\r\n\r\n")[0]
    size = int(header.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
    while len(received) < len(header) + 4 + size:
        piece = connection.recv(1 << 16)
        if not piece:
            break
        received += piece
    return received


class Hostile:
    """A server that treats its first connections as `serves` say, the last of them all further ones."""

    def __init__(self, *serves: Serve) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._serves = serves
        self.connections = 0
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                serve = self._serves[min(self.connections, len(self._serves) - 1)]
                self.connections += 1
                threading.Thread(target=self._serve, args=(serve, connection), daemon=True).start()

    def _serve(self, serve: Serve, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(60)
            serve(connection, self.connections)

    def close(self) -> None:
        with suppress(OSError):  # closed by the test
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(60)


@pytest.fixture
def hostile() -> Iterator[Callable[..., Hostile]]:
    made: list[Hostile] = []

    def make(*serves: Serve) -> Hostile:
        made.append(Hostile(*serves))
        return made[-1]

    yield make
    for server in made:
        server.close()


def answering(*answers: bytes) -> Serve:
    """Answers a request with each of these in turn, then closes."""

    def serve(connection: socket.socket, _: int) -> None:
        for answer in answers:
            receive_request(connection)
            connection.sendall(answer)

    return serve


def always(connection: socket.socket, _: int) -> None:
    """Answers every request."""
    while receive_request(connection):
        connection.sendall(DONE)


def waiting(seconds: float, answer: bytes = b"") -> Serve:
    """Takes a request and says nothing for this long."""

    def serve(connection: socket.socket, _: int) -> None:
        receive_request(connection)
        connection.sendall(answer)
        sleep(seconds)

    return serve


Make = Callable[..., Hostile]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", errors.Disconnected),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", errors.Disconnected),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", errors.UnexpectedAnswer),
    ],
    ids=["nothing", "half a chunk", "no gather"],
)
def test_a_broken_answer_is_a_transport_error(
    kind: Any, hostile: Make, answer: bytes, error: type[errors.TransportError]
) -> None:
    server = hostile(answering(answer))
    with kind(server.url, retries=NO_RETRIES) as client, pytest.raises(error):
        client.gathernd(DATA, INDICES)
    assert server.connections == 1


def test_the_message_names_url_call_and_seconds(kind: Any, hostile: Make) -> None:
    server = hostile(waiting(60))
    with kind(server.url, retries=NO_RETRIES, timeout=1) as client:
        with pytest.raises(errors.Timeout, match=rf"^{server.url} has not answered POST /gather within 1(\.0\d*)? s$"):
            client.gather(DATA, [1])
        with pytest.raises(TimeoutError):
            client.delete("items")
    server = hostile(answering(b""))
    with (
        kind(server.url, retries=NO_RETRIES) as client,
        pytest.raises(
            errors.Disconnected, match=rf"^the connection to {server.url} broke during GET /tensors/a, after "
        ),
    ):
        client.metadata("a")
    server.close()
    with (
        kind(server.url, retries=NO_RETRIES) as client,
        pytest.raises(errors.ConnectError, match=rf"^cannot reach {server.url}: connection refused; is it running\?$"),
    ):
        client.metadata("a")


def test_https_of_a_service_without_tls_says_so(kind: Any, hostile: Make) -> None:
    def refuse(connection: socket.socket, _: int) -> None:
        connection.recv(1)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    server = hostile(refuse)
    url = server.url.replace("http:", "https:")
    with (
        kind(url, retries=NO_RETRIES) as client,
        pytest.raises(errors.ConnectError, match=rf"^cannot reach {url}: what answers there does not speak TLS; is "),
    ):
        client.metadata("a")


def test_a_trickle_ends_with_the_calls_own_timeout(kind: Any, hostile: Make) -> None:
    def trickle(connection: socket.socket, _: int) -> None:
        receive_request(connection)
        for byte in DONE:
            connection.sendall(bytes([byte]))
            sleep(0.5)

    server = hostile(trickle)
    begun = monotonic()
    with kind(server.url, timeout=2) as client, pytest.raises(errors.Timeout, match="POST /gathernd"):
        client.gathernd(DATA, INDICES, timeout=1)
    assert 0.9 < monotonic() - begun < 30  # the whole answer takes longer than a minute


def test_a_calls_timeout_ends_retries_too(kind: Any, hostile: Make) -> None:
    server = hostile(answering(b""))
    begun = monotonic()
    with kind(server.url, retries=Retries(1000, 1000)) as client, pytest.raises(errors.TransportError):
        client.gathernd(DATA, INDICES, timeout=2)
    assert monotonic() - begun < 60
    assert 1 < server.connections < 20


_INFO = (
    b'{"name":"t","dtype":"float64","shape":[2],"bytes":16,"etag":"e","sha256":"","version":1,"versions":[1],'
    b'"created":"","modified":""}'
)
INFO = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(_INFO) + _INFO


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.scatter("t", [[1]], [1.0], timeout=1.2),
        lambda client: client.lookup([(name, [1], [0], None, [1.0], "sum") for name in "tu"], timeout=1.2),
    ],
    ids=["scatter", "lookup"],
)
def test_a_calls_timeout_holds_for_all_its_requests(kind: Any, hostile: Make, call: Callable[[Any], Any]) -> None:
    def slow(connection: socket.socket, _: int) -> None:
        while receive_request(connection):
            sleep(0.9)
            connection.sendall(INFO)

    server = hostile(slow)
    begun = monotonic()
    with kind(server.url, retries=NO_RETRIES) as client, pytest.raises(errors.Timeout):
        call(client)
    assert monotonic() - begun > 1


@pytest.mark.parametrize("before", [b"", b"HTTP/1.1 503 No\r\nContent-Length: 4\r\n\r\n<p>\n"], ids=["closed", "503"])
def test_what_stands_before_a_service_that_starts_is_waited_for(kind: Any, hostile: Make, before: bytes) -> None:
    server = hostile(answering(before), answering(before), always)
    with kind(server.url) as client:
        assert not client.ready()
        assert client.ready(wait=60)
    assert server.connections == 3


def test_another_server_is_not_waited_for(kind: Any, hostile: Make) -> None:
    server = hostile(answering(b"HTTP/1.1 404 No\r\nContent-Length: 4\r\n\r\n<p>\n"))
    with kind(server.url) as client, pytest.raises(errors.UnexpectedAnswer):
        client.ready(wait=60)


def test_a_call_whose_time_is_over_sends_nothing(kind: Any, hostile: Make) -> None:
    received: list[bytes] = []

    def noting(connection: socket.socket, _: int) -> None:
        while request := receive_request(connection):
            received.append(request)
            connection.sendall(DONE)

    server = hostile(noting)
    with kind(server.url, retries=NO_RETRIES) as client:
        client.gathernd(DATA, INDICES)
        with pytest.raises(errors.Timeout):
            client.scatter("items", INDICES, DATA[:1], "add", timeout=1e-9)
    sleep(0.1)
    assert len(received) == 1


def test_a_kept_connection_that_the_server_closed_is_replaced_where_that_is_safe(kind: Any, hostile: Make) -> None:
    server = hostile(answering(DONE), always)
    with kind(server.url, retries=NO_RETRIES) as client:
        assert client.gathernd(DATA, INDICES).tolist() == [2.0]
        sleep(0.05)  # the end of the connection has come
        assert client.gathernd(DATA, INDICES).tolist() == [2.0]
        assert client.gathernd(DATA, INDICES).tolist() == [2.0]
    assert server.connections == 2


def closing_on_the_second(connection: socket.socket, _: int) -> None:
    """Answers one request, takes the next one and closes, as a server does whose time for idle connections is over."""
    receive_request(connection)
    connection.sendall(DONE)
    receive_request(connection)


def test_a_request_that_may_have_been_carried_out_is_not_sent_twice(kind: Any, hostile: Make) -> None:
    server = hostile(closing_on_the_second)
    with kind(server.url, retries=NO_RETRIES) as client:
        client.gathernd(DATA, INDICES)
        with pytest.raises(errors.Disconnected):
            client.delete("items")
    assert server.connections == 1
    server = hostile(closing_on_the_second, always)
    with kind(server.url, retries=NO_RETRIES) as client:
        for _ in range(2):
            assert client.gathernd(DATA, INDICES).tolist() == [2.0]
    assert server.connections == 2


def test_what_comes_unasked_for_is_never_an_answer(kind: Any, hostile: Make) -> None:
    other = DONE.replace(b"AAAAAAAAAEA=", b"AAAAAAAACEA=")

    def late(connection: socket.socket, _: int) -> None:
        receive_request(connection)
        connection.sendall(DONE)
        assert answered.wait(60)
        connection.sendall(other)
        sent.set()
        receive_request(connection)

    answered, sent = threading.Event(), threading.Event()
    server = hostile(late, always)
    with kind(server.url, retries=NO_RETRIES) as client:
        client.gathernd(DATA, INDICES)
        answered.set()
        assert sent.wait(60)
        assert client.gathernd(DATA, INDICES).tolist() == [2.0]
    assert server.connections == 2


def test_a_refusal_before_the_end_of_a_large_body_is_read_and_its_connection_not_used_again(
    kind: Any, hostile: Make
) -> None:
    body = b'{"code":"payload_too_large","detail":"no","status":413}'
    read = threading.Event()

    def refuse(connection: socket.socket, _: int) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 413 No\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert read.wait(60)  # until then the server takes no more and does not close

    server = hostile(refuse, always)
    with kind(server.url, retries=NO_RETRIES, timeout=60) as client:
        with pytest.raises(errors.PayloadTooLarge):
            client.put("large", np.zeros(8 << 20))
        assert client.gathernd(DATA, INDICES).tolist() == [2.0]
    read.set()
    assert server.connections == 2


def test_a_server_that_takes_nothing_times_out(kind: Any, hostile: Make) -> None:
    server = hostile(lambda connection, _: sleep(60))
    with kind(server.url, retries=NO_RETRIES, timeout=1) as client, pytest.raises(errors.Timeout):
        client.put("large", np.zeros(4 << 20))


def test_a_proxys_failure_is_tried_again_where_that_is_safe(kind: Any, hostile: Make) -> None:
    failure = b"HTTP/1.1 502 Bad\r\nContent-Length: 6\r\n\r\n<html>"
    with kind(hostile(answering(failure, DONE)).url) as client:
        assert client.gathernd(DATA, INDICES).tolist() == [2.0]
    with kind(hostile(answering(failure, DONE)).url) as client, pytest.raises(errors.UnexpectedAnswer) as caught:
        client.delete("items")
    assert caught.value.status == 502
