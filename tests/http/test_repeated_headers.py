"""Requests whose header the server has seen before, byte for byte: it reads them otherwise, and nobody may notice."""

from __future__ import annotations

from pathlib import Path
from time import monotonic, sleep

import pytest

from app.security import api_keys
from app.server import request_header_cache
from tests.http.conftest import Start
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


def test_each_answer_has_an_id_of_its_own(server: Server) -> None:
    with Wire(server) as wire:
        found = set()
        for _ in range(5):
            wire.send(request())
            found.add(wire.read().headers["x-request-id"])
        assert len(found) == 5


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


def test_several_in_one_piece_are_all_answered_in_order(server: Server) -> None:
    with Wire(server) as wire:
        wire.send(request())
        wire.read()
        wire.send((request() + request(OTHER)) * 4 + request()[:30])
        assert [values(wire.read().body) for _ in range(8)] == [b"[8]", b"[6]"] * 4
        wire.send(request()[30:])
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


def test_a_request_after_one_that_expected_to_continue_is_not_told_to(server: Server) -> None:
    with Wire(server) as wire:
        wire.send(request())
        wire.read()
        expecting = request(TINY, "Expect: 100-continue")
        wire.send(expecting[: -len(TINY)])
        assert wire.read().status == 100
        wire.send(TINY)
        assert wire.read().status == 200
        wire.send(request())
        assert wire.read().status == 200


def test_a_key_that_is_taken_back_is_refused_in_a_header_seen_before(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    text = api_keys.add(file, "caller", ["gather"])
    with start("--api-keys-file", str(file)) as server, Wire(server) as wire:
        for _ in range(3):
            wire.send(request(TINY, f"Authorization: Bearer {text}"))
            assert wire.read().status == 200
        api_keys.remove(file, "caller")
        end = monotonic() + 20
        status = 200
        while status == 200:
            assert monotonic() < end, "the key is still taken"
            wire.send(request(TINY, f"Authorization: Bearer {text}"))
            status = wire.read().status
            sleep(0.05)
        assert status == 401


def test_what_is_kept_stays_small() -> None:
    request_header_cache.known.clear()
    scope = {"headers": [(b"content-length", b"4")], "client": None}
    for number in range(5000):
        request_header_cache.remember(b"%d" % number, scope, 4, object())
    assert 0 < len(request_header_cache.known) <= 1024


@pytest.mark.parametrize(
    "field", [b"x-request-id", b"traceparent", b"idempotency-key", b"expect", b"transfer-encoding"]
)
def test_headers_that_are_made_for_one_request_are_not_kept(field: bytes) -> None:
    request_header_cache.known.clear()
    scope = {"headers": [(b"content-length", b"4"), (field, b"x")]}
    request_header_cache.remember(b"head", scope, 4, object())
    assert not request_header_cache.known


@pytest.mark.parametrize("fields", [[], [(b"content-length", b"5")]])
def test_a_header_is_kept_only_with_the_length_that_it_declares(fields: list[tuple[bytes, bytes]]) -> None:
    request_header_cache.known.clear()
    request_header_cache.remember(b"head", {"headers": fields}, 4, object())
    assert not request_header_cache.known
