"""Request bodies in gzip and deflate: read within the cap, and bombs and damage refused in bounded time."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.conftest import slow_but_for
from tests.for_each import for_each
from tests.http.conftest import Start
from tests.http.raw import TINY
from tests.http.server import Server

MIB = 1 << 20


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "deflate raw": raw_deflate,
}


def post(client: httpx.Client, content: bytes, encoding: str) -> httpx.Response:
    return client.post("/gathernd", content=content, headers={"content-encoding": encoding.split(maxsplit=1)[0]})


@pytest.mark.parametrize("encoding", ENCODERS)
def test_a_compressed_body_is_read(client: httpx.Client, encoding: str) -> None:
    answer = post(client, ENCODERS[encoding](TINY), encoding)
    assert answer.status_code == 200, answer.text
    assert answer.json()["output"]["values"] == [8]


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, gzip", "nonsense", "gzip;q=1"])
def test_another_encoding_is_refused(client: httpx.Client, encoding: str) -> None:
    answer = client.post("/gathernd", content=TINY, headers={"content-encoding": encoding})
    assert answer.json()["code"] == "unsupported_media_type"


@for_each("encoding", ENCODERS)
@for_each(
    "damage",
    [
        "cut", "empty", "plain", "no block of this type", "trailing", "twice", "header only", "one byte behind",
        "zeros behind", "half of a member behind",
    ],
)  # fmt: skip
def test_a_damaged_stream_is_malformed(client: httpx.Client, encoding: str, damage: str) -> None:
    good = ENCODERS[encoding](TINY)
    at = {"gzip": 10, "x-gzip": 10, "deflate": 2}.get(encoding, 0)  # where the first block begins
    content = {
        "cut": good[:-3],
        "empty": b"",
        "plain": TINY,
        "no block of this type": good[:at] + bytes([good[at] | 6]) + good[at + 1 :],
        "trailing": good + b"garbage",
        "twice": good + good,
        "one byte behind": good + b"\x1f",
        "zeros behind": good + bytes(8),
        "half of a member behind": good + good[: len(good) // 2],
        "header only": good[:2],
    }[damage]
    answer = post(client, content, encoding)
    assert answer.status_code == 400, answer.text
    assert answer.json()["code"] == "malformed_request"


def members(body: bytes, count: int) -> bytes:
    """`body` as so many members of gzip, some of which are empty."""
    step = -(-len(body) // count)
    return b"".join(gzip.compress(body[begin : begin + step]) for begin in range(0, count * step, step))


@for_each("encoding", ["gzip", "x-gzip"])
@for_each("count", [2, 3, 1000, 10_000])
def test_a_body_may_have_several_members(client: httpx.Client, encoding: str, count: int) -> None:
    answer = post(client, members(TINY, count), encoding)
    assert answer.status_code == 200, answer.text
    assert answer.json()["output"]["values"] == [8]


@pytest.mark.parametrize("encoding", ENCODERS)
def test_a_wrong_checksum_is_malformed(client: httpx.Client, encoding: str) -> None:
    if encoding == "deflate raw":
        return  # a bare deflate stream has none
    good = bytearray(ENCODERS[encoding](TINY))
    good[-5 if "gzip" in encoding else -1] ^= 1
    assert post(client, bytes(good), encoding).json()["code"] == "malformed_request"


@pytest.fixture(scope="module")
def capped(start: Start) -> Iterator[Server]:
    with start("--max-json-bytes", "1MiB", "--memory-budget", "64MiB") as server:
        yield server


@pytest.mark.parametrize("encoding", slow_but_for(("gzip", "deflate raw"), ENCODERS))
def test_the_cap_on_inflated_bodies_is_exact(capped: Server, encoding: str) -> None:
    client = capped.shared_client()
    fits = TINY + b" " * (MIB - len(TINY))
    assert post(client, ENCODERS[encoding](fits), encoding).status_code == 200
    answer = post(client, ENCODERS[encoding](fits + b" "), encoding)
    assert answer.json()["code"] == "payload_too_large"
    assert (answer.json()["limit"], answer.json()["maximum"]) == ("body_bytes", MIB)


@pytest.mark.parametrize("encoding", slow_but_for(("gzip", "deflate raw"), ENCODERS))
def test_a_bomb_is_refused_in_bounded_memory(capped: Server, encoding: str) -> None:
    bomb = ENCODERS[encoding](bytes(64 * MIB))
    assert len(bomb) < MIB
    before = capped.peak()
    assert post(capped.shared_client(), bomb, encoding).json()["code"] == "payload_too_large"
    assert capped.peak() - before < 16 * MIB


def test_a_bomb_in_many_members_is_refused(capped: Server) -> None:
    bomb = gzip.compress(bytes(MIB // 64)) * 4096
    answer = post(capped.shared_client(), bomb, "gzip")
    assert answer.json()["code"] == "payload_too_large"


def test_members_that_hold_nothing_are_limited(capped: Server) -> None:
    answer = post(capped.shared_client(), gzip.compress(TINY) + gzip.compress(b"") * 20_000, "gzip")
    assert (answer.json()["code"], answer.json()["limit"]) == ("limit_exceeded", "gzip_members")


def test_a_body_is_capped_as_sent_too(capped: Server) -> None:
    client = capped.shared_client()
    noise = os.urandom(MIB + 1)
    assert post(client, noise, "gzip").json()["code"] == "payload_too_large"
    assert client.post("/gathernd", content=b" " * (MIB + 1)).json()["code"] == "payload_too_large"
    assert client.post("/gathernd", content=TINY + b" " * (MIB - len(TINY))).status_code == 200
