"""Content codings of answers; those of requests are in tests/http/test_compressed_bodies.py."""

from __future__ import annotations

import pytest

from app.api.content_codings import coding_of_answer, compressed, inflater
from app.tensors.buffer_type import Buffer


@pytest.mark.parametrize("coding", [b"gzip", b"deflate"])
@pytest.mark.parametrize("pieces", [[], [b""], [b"abc", bytearray(3 << 20), memoryview(b"xyz")]])
def test_what_is_compressed_inflates_to_the_same(coding: bytes, pieces: list[Buffer]) -> None:
    charged: list[int] = []
    sent = b"".join(compressed(pieces, coding, charged.append))
    stream = inflater(coding)
    assert stream is not None
    assert b"".join(stream.pieces(sent)) == b"".join(pieces)
    stream.finish()
    assert sum(charged) <= len(sent)


@pytest.mark.parametrize("coding", [b"gzip", b"deflate"])
def test_an_answer_has_the_coding_that_alone_is_asked_for(coding: bytes) -> None:
    assert coding_of_answer(coding) == coding


@pytest.mark.parametrize(
    "field", [None, b"", b"*", b"identity", b"br", b"gzip, deflate", b"gzip;q=1", b"GZIP", b"x-gzip"]
)
def test_an_answer_is_left_alone_where_several_codings_or_none_are_named(field: bytes | None) -> None:
    assert coding_of_answer(field) is None
