"""Content codings of answers; those of requests are in tests/http/test_compressed_bodies.py."""

from __future__ import annotations

import gzip

import pytest

from app.api.content_codings import STEP, compressed, inflater
from app.tensors.buffer_type import Buffer
from tests.told_memory import ToldMemory


@pytest.mark.parametrize("coding", [b"gzip", b"deflate"])
@pytest.mark.parametrize("pieces", [[], [b""], [b"abc", bytearray(3 << 20), memoryview(b"xyz")]])
def test_what_is_compressed_inflates_to_the_same(coding: bytes, pieces: list[Buffer]) -> None:
    charged: list[int] = []
    sent = b"".join(compressed(pieces, coding, ToldMemory(charged.append)))
    stream = inflater(coding)
    assert stream is not None
    assert b"".join(stream.pieces(sent)) == b"".join(pieces)
    stream.finish()
    assert sum(charged) <= len(sent)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1 << 20])
def test_members_are_read_wherever_a_body_is_cut(size: int) -> None:
    parts = [b"abc", b"", bytes(3 << 20), b"xyz"]
    sent = b"".join(map(gzip.compress, parts))
    stream = inflater(b"gzip")
    assert stream is not None
    pieces = [piece for begin in range(0, len(sent), size) for piece in stream.pieces(sent[begin : begin + size])]
    stream.finish()
    assert b"".join(pieces) == b"".join(parts)
    assert max(map(len, pieces)) <= STEP
