"""Fields of protobuf messages: found in compiled code as in Python, and as protobuf itself finds them."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from app.errors import GatherError
from app.wire import plain_protobuf_fields
from app.wire.grpc_messages.classes import ModelInferRequest
from app.wire.little_endian_items import view_of
from app.wire.plain_protobuf_fields import varint
from app.wire.protobuf_fields import FieldLimit, MessageFields, TooManyFields, bits, cut_fields, find_fields
from app.wire.protobuf_format import BYTES, FINE, INNER_ROW, LONGEST, NONE, ONE, OTHERWISE, ROW
from tests.conftest import samples

pytestmark = pytest.mark.usefixtures("compiled")


def field(number: int, value: bytes) -> bytes:
    """A field of bytes."""
    return varint(number << 3 | BYTES) + varint(len(value)) + value


def random_message(random: Random, depth: int = 2) -> bytes:
    """Fields of every wire type and of large numbers, some of them messages."""
    made = b""
    for _ in range(random.randrange(5)):
        number = random.choice([1, 2, 3, 5, 5, 5, 7, 15, 16, 62, 63, 64, 2**29 - 1])
        kind = random.choice([0, 1, 2, 2, 2, 5])
        if kind == BYTES:
            value = random_message(random, depth - 1) if depth else random.randbytes(random.randrange(200))
            made += field(number, value)
        else:
            fixed = {0: varint(random.getrandbits(random.choice([7, 14, 64]))), 1: bytes(8), 5: bytes(4)}
            value = fixed[kind]
            made += varint(number << 3 | kind) + value
    return made


def changed(random: Random, message: bytes) -> bytes:
    """A message with one byte changed, added or left out, or cut off."""
    at = random.randrange(len(message) + 1)
    octet = bytes([random.choice([0, 0x7F, 0x80, 0xFF, random.randrange(256)])])
    return random.choice(
        [message[:at], message[:at] + octet + message[at:], message[:at] + octet + message[at + 1 :], octet * 12]
    )


def test_both_find_the_same_fields() -> None:
    random, faults = Random(1), Counter[int]()
    for _ in range(samples(20_000)):
        message = random_message(random)
        if random.random() < 0.6:
            message = changed(random, message)
        begin = random.randrange(3) if random.random() < 0.1 else 0
        wanted = random.choice([bits((1, 2, 3, 5, 7)), bits((5,)), bits(range(63)), 0])
        arguments = (begin, len(message), wanted, random.choice([0, 5]), 5, random.choice([0, 1, 3, 8, 1 << 62]))
        rows = random.choice([1, 3, 50])
        compiled, plain = np.full(ROW * rows, -7), np.full(ROW * rows, -7)
        found = find_fields.run(view_of(message), *arguments, compiled)
        assert found == plain_protobuf_fields.find_fields(view_of(message), *arguments, plain), message
        count = found[0]
        states = compiled.reshape(-1, ROW)[:count, 5]
        assert (compiled.reshape(-1, ROW)[:count, :6] == plain.reshape(-1, ROW)[:count, :6]).all(), message
        of_one = states == ONE
        assert (compiled.reshape(-1, ROW)[:count][of_one] == plain.reshape(-1, ROW)[:count][of_one]).all(), message
        faults[found[2]] += 1
        faults.update(100 + state for state in states.tolist())
    assert set(faults) == {*range(FINE, 6), 100 + NONE, 100 + ONE, 100 + OTHERWISE}


def test_a_message_is_refused_where_protobuf_refuses_it() -> None:
    random, seen = Random(2), Counter[str]()
    for _ in range(samples(4000)):
        message = changed(random, random_message(random, 0))
        try:
            list(MessageFields(message).find(0, len(message), 0))
        except GatherError:
            with pytest.raises(DecodeError):
                ModelInferRequest.FromString(message)
            seen["refused"] += 1
        else:
            seen["read"] += 1
    assert min(seen.values()) > samples(4000) // 10


def test_the_contents_of_a_field_are_looked_for() -> None:
    once = field(1, b"n") + field(5, b"abc") + b"\x18\x01"
    message = field(5, b"") + field(5, once) + field(6, once) + field(5, once * 2) + field(5, b"\x2a\x05")
    found = list(MessageFields(message).find(0, len(message), bits((5, 6)), 5, 5))
    assert [one[5] for one in found] == [NONE, ONE, NONE, OTHERWISE, OTHERWISE]
    _, _, _, at, _, _, start, first, after = found[1]
    assert message[start:first] == b"\x2a\x03"
    assert message[first:after] == b"abc"
    assert start == at + 3


def test_more_fields_than_there_is_room_for_come_in_order() -> None:
    message = b"".join(field(5, b"%d" % number) for number in range(5000))
    found = list(MessageFields(message).find(0, len(message), bits((5,))))
    assert [message[one[3] : one[4]] for one in found] == [b"%d" % number for number in range(5000)]


@pytest.mark.parametrize("most", [0, 1, 700, 4999])
def test_no_more_fields_are_looked_for_than_the_limit_says(most: int) -> None:
    message = b"\x40\x00" * 5000
    limit = FieldLimit(most)
    with pytest.raises(TooManyFields):
        list(MessageFields(message, limit).find(0, len(message), 0))
    assert list(MessageFields(message, FieldLimit(5000)).find(0, len(message), 0)) == []


def rows_of(message: bytes, wanted: int) -> NDArray[np.int64]:
    """The fields that are found before a fault, at most fifty."""
    words = np.zeros(ROW * 50, np.int64)
    count, *_ = find_fields.run(view_of(message), 0, len(message), wanted, 5, 5, 1 << 62, words)
    return words[: ROW * count]


def test_both_cut_the_same_out_of_fields() -> None:
    random, seen = Random(3), Counter[str]()
    for _ in range(samples(20_000)):
        message = random_message(random, 3)
        if random.random() < 0.5:
            message = changed(random, message)
        rows = rows_of(message, random.choice([bits((1, 2, 3, 5, 7)), bits((5,)), bits(range(63))]))
        if random.random() < 0.1 and len(rows):  # rows of another message
            places = [-1, 0, 1, len(message), len(message) + 1, 2**62, -(2**63)]
            rows[random.randrange(len(rows))] = random.choice(places)
        begin = random.choice([0, 0, 0, 1, -1])
        out = random.choice([len(message) + 2 * LONGEST] * 5 + [0, 3, 20])
        room = random.choice([len(message)] * 5 + [0, 1])
        results = []
        for run in (cut_fields.run, plain_protobuf_fields.cut_fields):
            written, found = np.zeros(out + 8, np.uint8), np.full(INNER_ROW * room + 8, -7)
            result = run(view_of(message), rows, begin, 5, 5, written[:out], found[:-8])
            assert not written[out:].any()
            assert (found[-8:] == -7).all()
            used, count = max(result[0], 0), result[1]
            filled = (written[:used].tolist(), found[: INNER_ROW * count].tolist())
            results.append((result, filled) if result[0] >= 0 else (result[:1], None))
        assert results[0] == results[1], message
        seen["refused" if result[0] < 0 else "fault" if result[4] != FINE else "cut" if result[1] else "whole"] += 1
    assert min(seen[name] for name in ("refused", "fault", "cut", "whole")) > samples(20_000) // 200


def test_what_is_cut_out_is_missing_and_all_else_is_there() -> None:
    contents = field(5, field(3, b"\1") + b"\x18\x02")
    message = field(1, b"model") + field(5, field(1, b"a") + contents + field(2, b"b") + contents) + b"\x40\x01"
    message += field(5, field(1, b"c")) + field(7, b"raw") + field(6, b"out") + field(5, contents) + field(6, b"put")
    rows = rows_of(message, bits((1, 5, 7))).reshape(-1, ROW)
    cut = MessageFields(message).cut(rows, 0, 5, 5)
    wanted = field(5, field(1, b"a") + field(2, b"b")) + b"\x40\x01" + field(5, field(1, b"c")) + field(6, b"out")
    assert bytes(cut.rest) + message[cut.end :] == wanted + field(5, b"") + field(6, b"put")
    found = [(row, tag, message[at:end]) for row, tag, at, end in cut.inner.tolist()]
    both = contents[2:]
    of_one = [(0, both), (26, b"\1"), (24, b"\2")]
    assert found == [(row, *one) for row, times in ((1, 2), (4, 1)) for one in of_one * times]


def test_fields_that_are_cut_out_count_against_the_limit() -> None:
    message = field(5, field(5, b"\x18\1" * 20))
    rows = rows_of(message, bits((5,))).reshape(-1, ROW)
    assert len(MessageFields(message, FieldLimit(21)).cut(rows, 0, 5, 5).inner) == 21
    with pytest.raises(TooManyFields):
        MessageFields(message, FieldLimit(20)).cut(rows, 0, 5, 5)
