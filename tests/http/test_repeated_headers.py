"""Requests whose header the server has seen before, byte for byte: it reads them otherwise, and nobody may notice."""

from __future__ import annotations

from time import sleep

import pytest

from app.server import request_header_cache
from tests.http.raw import TINY, Wire, request
from tests.http.server import Server

OTHER = TINY.replace(b"[7,8]", b"[5,6]")
"""As long as TINY, so that both have the same header."""


def values(answer: bytes) -> bytes:
    return answer[answer.index(b'"values":') + 9 : answer.rindex(b"]") + 1]


def test_the_body_counts_and_not_the_one_that_came_before(server: Server) -> None:
    with Wire(server) as wire:
        for body, expected in ((TINY, b"[8]"), (OTHER, b"[6]"), (TINY, b"[8]")) * 3:
            wire.send(request(body))
            answer = wire.read()
            assert (answer.status, values(answer.body)) == (200, expected)


@pytest.mark.parametrize("cut", [1, 20, len(request()) - len(TINY) - 1, len(request()) - len(TINY), len(request()) - 1])
def test_it_may_arrive_in_two_pieces(server: Server, cut: int) -> None:
    whole = request(OTHER)
    with Wire(server) as wire:
        wire.send(request())
        wire.read()
        wire.send(whole[:cut])
        sleep(0.05)
        wire.send(whole[cut:])
        assert values(wire.read().body) == b"[6]"
        wire.send(request())
        assert values(wire.read().body) == b"[8]"


def test_a_fault_in_the_body_is_found(server: Server) -> None:
    with Wire(server) as wire:
        wire.send(request())
        wire.read()
        wire.send(request(TINY[:-1] + b" "))
        answer = wire.read()
        assert (answer.status, answer.json()["code"]) == (400, "malformed_request")
        wire.send(request())
        assert wire.read().status == 200


def test_the_same_bytes_within_another_header_are_no_request(server: Server) -> None:
    with Wire(server) as wire:
        wire.send(request())
        wire.read()
        wire.send(b"POST /nowhere HTTP/1.1\r\nX-A: ")
        sleep(0.05)
        wire.send(request())
        assert wire.read().status == 404
        wire.send(request())
        assert wire.read().status == 200


def test_what_is_kept_stays_small() -> None:
    request_header_cache.known.clear()
    scope = {"headers": [(b"content-length", b"4")], "client": None}
    for number in range(5000):
        request_header_cache.remember(b"%d" % number, scope, 4, object())
    assert 0 < len(request_header_cache.known) <= 1024
