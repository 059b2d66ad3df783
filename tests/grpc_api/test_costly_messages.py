"""What messages that are made to cost much cost the others: the event loop is theirs too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from app.errors import GatherError
from app.grpc_api.infer import Inference
from app.tensors.lookup_call import ARRAYS
from app.tensors.shape_limits import Limits
from app.wire.plain_protobuf_fields import varint
from app.wire.v2_grpc_request import LONG_REST, SplitRequest, read_grpc_lookup, read_grpc_request, split
from benchmarks.read_body import MODEL
from tests.for_each import for_each
from tests.grpc_api.messages import example
from tests.processor_time import LONGEST, units

KINDS = {
    "inputs": b"\x2a\x00",
    "outputs": b"\x32\x00",
    "parameters": b"\x22\x06\x0a\x00\x12\x02\x10\x01",
    "inputs with contents": b"\x2a\x04\x2a\x02\x18\x01",
    "unknown fields": b"\x40\x00",
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_read_on_the_event_loop_does_not_hold_it_long(kind: str) -> None:
    longest = split(KINDS[kind] * (LONG_REST // len(KINDS[kind])))
    assert not longest.is_heavy
    assert split(KINDS[kind] * (1 << 14)).is_heavy

    def read() -> None:
        with suppress(GatherError):
            read_grpc_lookup(longest, Limits(), None)

    assert units(read) <= LONGEST


def test_an_ordinary_message_is_read_on_the_event_loop() -> None:
    assert not split(example().SerializeToString()).is_heavy


def field(number: int, value: bytes) -> bytes:
    """A field of bytes."""
    return bytes([number << 3 | 2]) + varint(len(value)) + value


SHORT = 1 << 16
"""Bytes of the longest message that may be cut on the event loop."""
MANY = {kind: piece * (SHORT // len(piece)) for kind, piece in KINDS.items()} | {
    "raw arrays": b"\x3a\x00" * (SHORT // 2),
    "names": b"\x0a\x00" * (SHORT // 2),
    "fields of one input": field(5, b"\x0a\x00" * (SHORT // 2 - 8)),
    "strings of one input": field(5, field(5, b"\x42\x00" * (SHORT // 2 - 8))),
    "strings of many inputs": field(5, field(5, b"\x42\x00" * 200)) * (SHORT // 408),
}


def cut(message: bytes) -> tuple[SplitRequest | None, int]:
    """What `Inference.split` makes of a message, and how often it asks for a thread."""
    threads = 0
    charged: list[int] = []

    async def run(work: Callable[[], SplitRequest], timings: object) -> SplitRequest:
        nonlocal threads
        threads += 1
        return await asyncio.to_thread(work)

    async def asked() -> SplitRequest | None:
        with suppress(GatherError):
            return await inference.split(message, request)
        return None

    models: Any = SimpleNamespace(service=SimpleNamespace(pool=SimpleNamespace(run=run), limits=Limits()))
    request: Any = SimpleNamespace(reservation=SimpleNamespace(charge=charged.append), timings=None)
    inference = Inference(models, models, models)
    return asyncio.run(asked()), threads


@for_each("kind", list(MANY))
def test_a_short_message_of_very_many_fields_is_cut_in_a_thread(kind: str) -> None:
    assert len(MANY[kind]) <= SHORT
    found, threads = cut(MANY[kind])
    assert threads == 1
    with suppress(GatherError):
        whole = split(MANY[kind], most=len(ARRAYS) * Limits().features)
        assert found is not None
        assert found._replace(short=None) == whole._replace(short=None)
        if whole.short is not None:
            assert found.short is not None
            assert (found.short.fields == whole.short.fields).all()


def test_lookups_of_a_hundred_tables_are_cut_on_the_event_loop() -> None:
    inputs = b"".join(field(5, field(1, b"%d.indices" % at) + field(2, b"INT64") + b"\x18\x01") for at in range(100))
    found, threads = cut(inputs + field(7, bytes(8)) * 100)
    assert found is not None
    assert len(found.raws) == 100
    assert not threads


def test_more_inputs_or_arrays_than_a_lookup_may_have_are_refused_before_they_are_read() -> None:
    assert len(split(KINDS["inputs"] * 3, most=3).rest) == 6
    with pytest.raises(GatherError, match="more than 3 inputs") as refused:
        split(KINDS["inputs"] * 4 + b"\x3a", most=3)
    assert (refused.value.code, refused.value.facts) == ("limit_exceeded", {"limit": "features", "maximum": 1})
    with pytest.raises(GatherError, match="more than 3 raw_input_contents"):
        split(b"\x3a\x00" * 4, most=3)
    with pytest.raises(GatherError, match="occur more than 1024 times"):
        split(b"\x0a\x00" * 1025)


def test_the_first_input_or_output_too_many_is_refused_as_if_there_were_no_more() -> None:
    def input_of(name: bytes) -> bytes:
        return field(5, field(1, name) + field(2, b"FP32") + b"\x18\x01")

    right = input_of(b"data") + input_of(b"indices")
    output = field(6, field(1, b"output"))
    for message, more, wrong in (
        (right, input_of(b"more"), "/inputs/2/name"),
        (input_of(b"data"), input_of(b"data"), "/inputs/1/name"),
        (right + output, output, "/outputs/1/name"),
    ):
        for count in (1, 2, 100):
            with pytest.raises(GatherError) as refused:
                read_grpc_request(split(message + more * count), MODEL, Limits(), None)
            assert (refused.value.code, refused.value.places[0].pointer) == ("invalid_field", wrong)
