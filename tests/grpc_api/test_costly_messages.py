"""What messages that are made to cost much cost the others: the event loop is theirs too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from app.errors import GatherError
from app.formats.grpc.infer_request import LONG_REST, ParsedMessage, parse, read_grpc_request
from app.formats.grpc.message_fields import MAX_REST_BYTES, split, varint
from app.formats.oip.infer_document import LOOKUP_MODEL
from app.grpc_api.infer import RpcInference
from app.memory.budget import UNCOUNTED
from app.tensors.lookup_call import ARRAYS
from app.tensors.shape_limits import Limits
from tests.for_each import for_each
from tests.grpc_api.messages import example
from tests.processor_time import LONGEST, units

KINDS = {
    "inputs": b"\x2a\x00",
    "outputs": b"\x32\x00",
    "parameters": b"\x22\x06\x0a\x00\x12\x02\x10\x01",
    "inputs with contents": b"\x2a\x04\x2a\x02\x18\x01",
    "unknown fields": b"\x40\x00",
    "raw arrays": b"\x3a\x00",
    "names": b"\x0a\x00",
}


def parsed(message: bytes, features: int = Limits().features) -> ParsedMessage:
    found = split(message, features)
    assert found is not None
    return parse(found, UNCOUNTED)


def field(number: int, value: bytes) -> bytes:
    """A field of bytes."""
    return bytes([number << 3 | 2]) + varint(len(value)) + value


def threads_for(message: bytes) -> int:
    """How often `Inference.parse` asks for a thread."""
    threads = 0

    async def run(work: Callable[[], ParsedMessage], request: object) -> ParsedMessage:
        nonlocal threads
        threads += 1
        return await asyncio.to_thread(work)

    async def asked() -> None:
        with suppress(GatherError):
            await inference.parse(message, request)

    carrying_out: Any = SimpleNamespace(service=SimpleNamespace(pool=SimpleNamespace(run=run), limits=Limits()))
    request: Any = SimpleNamespace(memory=UNCOUNTED)
    inference = RpcInference(carrying_out)
    asyncio.run(asked())
    return threads


@for_each("kind", list(KINDS))
def test_what_is_read_on_the_event_loop_does_not_hold_it_long(kind: str) -> None:
    longest = KINDS[kind] * min(LONG_REST // len(KINDS[kind]), 512)
    assert threads_for(longest) == 0
    assert threads_for(KINDS[kind] * 513) == 1

    def read() -> None:
        with suppress(GatherError):
            read_grpc_request(parsed(longest), LOOKUP_MODEL, Limits(), UNCOUNTED)

    assert units(read) <= LONGEST


def test_a_message_with_much_beside_its_raw_items_is_parsed_in_a_thread() -> None:
    assert threads_for(example().SerializeToString()) == 0
    assert threads_for(field(7, bytes(1 << 20))) == 0
    assert threads_for(field(5, field(5, field(3, bytes(LONG_REST))))) == 1


@for_each("kind", ["inputs", "raw arrays"])
def test_more_inputs_or_arrays_than_a_lookup_may_have_are_refused_before_they_are_read(kind: str) -> None:
    most = len(ARRAYS)
    assert split(KINDS[kind] * most, 1) is not None
    with pytest.raises(GatherError, match=f"more than {most} inputs") as refused:
        split(KINDS[kind] * (most + 1) + b"\x3a", 1)
    assert (refused.value.code, refused.value.facts) == ("limit_exceeded", {"limit": "features", "maximum": 1})


@for_each("kind", ["outputs", "parameters", "unknown fields", "names"])
def test_more_other_fields_than_any_request_has_are_refused_before_they_are_read(kind: str) -> None:
    with pytest.raises(GatherError, match="more than 1025 fields") as refused:
        split(KINDS[kind] * 1026, 1)
    assert refused.value.code == "malformed_request"


def test_items_in_contents_beyond_a_megabyte_are_to_be_sent_raw() -> None:
    with pytest.raises(GatherError, match="everything except raw_input_contents has") as refused:
        split(field(5, field(5, field(3, bytes(MAX_REST_BYTES)))), 1)
    assert refused.value.facts == {"limit": "fields_bytes", "maximum": MAX_REST_BYTES}
    assert refused.value.hint == "Send the items of all inputs in raw_input_contents."
    raw = split(field(7, bytes(MAX_REST_BYTES + 1)), 1)
    assert raw is not None
    assert len(raw.raws[0]) == MAX_REST_BYTES + 1


@for_each(
    "message", [b"\x2a", b"\x2a\x05\x00", b"\x3a\x80", b"\x08", b"\x09\x00", b"\x0b", b"\x80" * 11, b"\x1a\x01\xff"]
)
def test_bytes_that_are_no_message_are_refused(message: bytes) -> None:
    with pytest.raises(GatherError) as refused:
        parsed(message)
    assert refused.value.code == "malformed_request"
