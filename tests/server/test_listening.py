"""Where the service listens: every address of its host, one port for all, and a reason where that cannot be had."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from app.server.listening_sockets import CannotListen, bind, listen, refuse, url

LOOPBACK = [
    (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
]


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@contextmanager
def bound(host: str, port: int = 0) -> Iterator[list[socket.socket]]:
    sockets = bind(host, port)
    try:
        yield sockets
    finally:
        for each in sockets:
            each.close()


def connects(address: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM) as client:
        client.settimeout(60)
        return client.connect_ex((address, port)) == 0


@pytest.fixture
def localhost_has_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on most machines; on some the name has an address of IPv4 only."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: LOOPBACK)


@needs_ipv6
@pytest.mark.usefixtures("localhost_has_both")
def test_a_name_stands_for_all_its_addresses_and_one_port() -> None:
    with bound("localhost") as sockets:
        assert [each.family for each in sockets] == [socket.AF_INET, socket.AF_INET6]
        (port,) = {each.getsockname()[1] for each in sockets}
        assert not connects("127.0.0.1", port)
        listen(sockets)
        assert connects("127.0.0.1", port)
        assert connects("::1", port)


@pytest.mark.usefixtures("localhost_has_both")
def test_an_address_that_this_machine_lacks_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    made = socket.socket

    def without_ipv6(family: int, kind: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return made(family, kind)

    monkeypatch.setattr(socket, "socket", without_ipv6)
    with bound("localhost") as sockets:
        assert [each.family for each in sockets] == [socket.AF_INET]


@needs_ipv6
def test_two_colons_take_callers_of_both_families() -> None:
    with bound("::") as sockets:
        listen(sockets)
        port = sockets[0].getsockname()[1]
        assert connects("::1", port)
        assert connects("127.0.0.1", port)
        assert url("http", "::", sockets) == f"http://[::]:{port}"


def test_a_port_that_somebody_listens_on_is_refused_with_what_to_change() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=rf"127\.0\.0\.1 port {port}: Address already in use.*GATHERND_PORT"):
            bind("127.0.0.1", port)


def test_who_comes_second_between_binding_and_listening_is_refused() -> None:
    with bound("127.0.0.1") as first, bound("127.0.0.1", first[0].getsockname()[1]) as second:
        listen(first)
        with pytest.raises(CannotListen, match="Address already in use"):
            listen(second)


@needs_ipv6
@pytest.mark.usefixtures("localhost_has_both")
def test_a_port_that_is_taken_on_one_address_is_refused_and_the_others_are_given_back() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen):
            bind("localhost", port)
        with socket.create_server(("127.0.0.1", port)):
            pass


@pytest.mark.parametrize(
    ("host", "port", "number", "message"),
    [
        ("127.0.0.1", 80, errno.EACCES, "GATHERND_PORT"),
        ("192.0.2.1", 8080, errno.EADDRNOTAVAIL, "GATHERND_HOST"),
    ],
)
def test_a_refusal_says_where_why_and_what_to_change(
    host: str, port: int, number: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(socket.socket):
        def bind(self, address: Any) -> None:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket, "socket", Refusing)
    with pytest.raises(CannotListen) as refused:
        bind(host, port)
    assert f"{host} port {port}: {os.strerror(number)}" in str(refused.value)
    assert message in str(refused.value)


def test_a_host_without_an_address_is_refused_by_its_name() -> None:
    with pytest.raises(CannotListen, match=r"no-such-host\.invalid.*GATHERND_HOST"):
        bind("no-such-host.invalid", 0)
    with pytest.raises(CannotListen, match="GATHERND_HOST"):
        bind("x" * 100, 0)  # no label may be so long


def test_connections_are_refused_for_a_while_and_the_port_stays_taken() -> None:
    with bound("127.0.0.1") as sockets:
        port = sockets[0].getsockname()[1]
        listen(sockets)
        assert connects("127.0.0.1", port)
        refuse(sockets)
        refuse(sockets)
        assert not connects("127.0.0.1", port)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        listen(sockets)
        assert connects("127.0.0.1", port)
        assert sockets[0].getsockname()[1] == port


def test_a_connection_after_a_refusal_stays_open_until_its_request_comes() -> None:
    with bound("127.0.0.1") as sockets:
        listen(sockets)
        refuse(sockets)
        refuse(sockets)
        listen(sockets)
        with socket.create_connection(sockets[0].getsockname(), 60) as client, sockets[0].accept()[0] as taken:
            taken.setblocking(False)
            with pytest.raises(BlockingIOError):
                taken.recv(1)
            client.sendall(b"request")
            taken.settimeout(60)
            assert taken.recv(16) == b"request"
