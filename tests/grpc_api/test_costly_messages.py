"""What messages that are made to cost much cost the others: the event loop is theirs too."""

from __future__ import annotations

from contextlib import suppress

import pytest

from app.errors import GatherError
from app.tensors.shape_limits import Limits
from app.wire.v2_grpc_request import LONG_REST, read_grpc_lookup, split
from tests.grpc_api.messages import example
from tests.http.test_hostile_bodies import HELD_S, TRIES
from tests.wire.test_cost import seconds

KINDS = {
    "inputs": b"\x2a\x00",
    "outputs": b"\x32\x00",
    "parameters": b"\x22\x06\x0a\x00\x12\x02\x10\x01",
    "inputs with contents": b"\x2a\x04\x2a\x02\x18\x01",
    "unknown fields": b"\x40\x00",
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_read_on_the_event_loop_holds_it_for_no_longer_than_20_ms(kind: str) -> None:
    longest = split(KINDS[kind] * (LONG_REST // len(KINDS[kind])))
    assert not longest.is_heavy
    assert split(KINDS[kind] * (1 << 14)).is_heavy

    def read() -> None:
        with suppress(GatherError):
            read_grpc_lookup(longest, Limits(), None)

    assert min(seconds(read) for _ in range(TRIES)) <= HELD_S


def test_an_ordinary_message_is_read_on_the_event_loop() -> None:
    assert not split(example().SerializeToString()).is_heavy
