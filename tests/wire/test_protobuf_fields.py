"""Fields of protobuf messages: found in compiled code as in Python, and as protobuf itself finds them."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from google.protobuf.message import DecodeError

from app.errors import GatherError
from app.wire import plain_protobuf_fields
from app.wire.grpc_messages.classes import ModelInferRequest
from app.wire.little_endian_items import view_of
from app.wire.protobuf_fields import FieldLimit, MessageFields, TooManyFields, bits, find_fields, varint
from app.wire.protobuf_format import BYTES, FINE, NONE, ONE, OTHERWISE, ROW
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
