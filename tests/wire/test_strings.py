"""Strings in frames and in JSON, against lists of Python's; framing and UTF-8 that are wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import GatherError
from app.json_text.write_values import values_text
from app.tensors.compiled_string_frames import read_frames
from app.tensors.dtypes import DTYPES
from app.tensors.little_endian_items import packed_bytes, unpack
from app.tensors.string_tensor import PackedStrings
from tests.conftest import samples
from tests.for_each import for_each
from tests.http.server import run_program
from tests.strings import framed, items, packed

pytestmark = pytest.mark.usefixtures("every_codec")

STRING = DTYPES["string"]
LETTERS = st.text(max_size=12)
NO_STARTS = np.empty(0, np.int64)


def reading(octets: bytes, count: int) -> Any:
    """What `unpack` makes of `octets` as so many strings."""
    try:
        return items(unpack(STRING, (count,), octets)).tolist()
    except GatherError as error:
        if error.code == "element_count_mismatch":
            return error.detail
        return (error.places[0].position or (0,))[0]


def read_by_python(octets: bytes, count: int) -> Any:
    """The same by Python."""
    count = min(count, len(octets) + 1)  # an error names no more
    found: list[bytes] = []
    place = 0
    while place < len(octets) and len(found) <= count:
        if place + 4 > len(octets):
            return f"the length before string {len(found)} ends early"
        end = place + 4 + int.from_bytes(octets[place : place + 4], "little")
        if end > len(octets):
            return f"string {len(found)} ends early"
        found.append(octets[place + 4 : end])
        place = end
    if len(found) != count:
        given = f"more than {count}" if len(found) > count else str(len(found))
        return f"{given} strings are given, but the shape requires {count}"
    texts = []
    for text in found:
        try:
            texts.append(text.decode())
        except UnicodeDecodeError:
            return len(texts)
    return texts


FRAMES = st.builds(
    lambda text, more: (len(text) + more).to_bytes(5, "little", signed=True)[:4] + text,
    st.binary(max_size=9),
    st.sampled_from((0, 0, 0, 0, 0, 1, -1, 2**31, 2**32 - 1)),
)


@given(st.lists(FRAMES | LETTERS.map(lambda text: framed([text])), max_size=6), st.integers(-1, 2), st.data())
def test_frames_are_read_as_python_reads_them(frames: list[bytes], more: int, data: st.DataObject) -> None:
    octets = b"".join(frames)
    octets = octets[: data.draw(st.sampled_from((len(octets), data.draw(st.integers(0, len(octets))))))]
    count = max(0, len(frames) + more)
    assert reading(octets, count) == read_by_python(octets, count)


@for_each(
    ("octets", "count", "found"),
    [
        (b"\xff\xff\xff\xff", 1, "string 0 ends early"),
        (b"\0\0\0\0\xff\xff\xff\xffab", 2, "string 1 ends early"),
        (b"\0\0\0\x80" + bytes(100), 1, "string 0 ends early"),
        (b"\1\0\0", 1, "the length before string 0 ends early"),
        (b"\1\0\0\0a\0", 1, "the length before string 1 ends early"),
        (b"\1\0\0\0a\0\0\0\0", 1, "more than 1 strings are given, but the shape requires 1"),
        (b"", 1, "0 strings are given, but the shape requires 1"),
        (b"\0\0\0\0", 0, "more than 0 strings are given, but the shape requires 0"),
        (b"\1\0\0\0\xff", 2, "1 strings are given, but the shape requires 2"),
        (b"\1\0\0\0\xff\1\0\0", 2, "the length before string 1 ends early"),
        (b"", 2**40, "0 strings are given, but the shape requires 1"),
        (bytes(8), 2**63, "2 strings are given, but the shape requires 9"),
    ],
)
def test_framing_that_is_wrong_is_told_before_text_that_is_wrong(octets: bytes, count: int, found: str) -> None:
    with pytest.raises(GatherError) as caught:
        unpack(STRING, (count,), octets)
    assert (caught.value.code, caught.value.detail) == ("element_count_mismatch", found)


EDGES = (0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF)


def sequences() -> Iterator[bytes]:
    """Every one and two bytes, and longer ones whose bytes are at the edges of what may stand there."""
    yield from (bytes((byte,)) for byte in range(256))
    yield from map(bytes, product(range(256), repeat=2))
    yield from map(bytes, product(range(0xC0, 0x100), EDGES, EDGES))
    yield from map(bytes, product(range(0xE0, 0x100), EDGES, (0x7F, 0x80, 0xBF, 0xC0), (0x7F, 0x80, 0xBF, 0xC0)))


def test_utf_8_is_what_python_takes_for_it() -> None:
    wrong = []
    for sequence in sequences():
        try:
            sequence.decode()
            fine = True
        except UnicodeDecodeError:
            fine = False
        octets = np.frombuffer(len(sequence).to_bytes(4, "little") + sequence, np.uint8)
        octets.flags.writeable = False
        if read_frames(octets, 1, NO_STARTS) != (1, 0, -1 if fine else 0):
            wrong.append(sequence)
    assert not wrong


def test_every_character_is_written_as_orjson_writes_it() -> None:
    every = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    assert bytes(values_text(packed(every))[0]) == orjson.dumps(every)
    texts = ["x" * place + chr(code) + "y" * (11 - place) for code in range(256) for place in range(12)]
    assert bytes(values_text(packed(texts))[0]) == orjson.dumps(texts)


def test_a_content_whose_strings_reach_beyond_it_is_damaged_and_nothing_beyond_it_is_read() -> None:
    for starts, octets in (([0], b"\2\0\0\0a"), ([2], b"\0\0\0\0"), ([-4], b"\0\0\0\0"), ([2**62], b"\0\0\0\0")):
        table = PackedStrings(STRING, (1,), np.array(starts, np.int64), octets=np.frombuffer(octets, np.uint8))
        for write in (values_text, packed_bytes):
            with pytest.raises(GatherError, match="tensor_damaged"):
                write(table)


def test_nothing_is_read_or_written_out_of_bounds(compiled: Path) -> None:
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.wire.guarded_strings"]
    done = run_program([*command, str(samples(8000)), "1", str(compiled)], timeout=None, compiled=compiled)
    assert done.returncode == 0, done.stdout[-20:] + done.stderr
