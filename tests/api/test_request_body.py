"""Bodies of unknown length: their memory is charged before it is taken, and they arrive as they were sent."""

from __future__ import annotations

import random
import zlib
from itertools import accumulate

import pytest

from app.api.request_body import UnknownLengthBody, inflate
from app.errors import GatherError
from app.memory.budget import Memory
from tests.traced_memory import peak_of

MIB = 1 << 20


class Account(Memory):
    """What is charged, change by change; refuses more than `most`."""

    def __init__(self, most: int = 1 << 40) -> None:
        self.charges: list[int] = []
        self.most = most

    def charge(self, size: int) -> None:
        if sum(self.charges) + size > self.most:
            raise GatherError("overloaded", "full")
        self.charges.append(size)

    def adjust(self, planned: int, size: int) -> None:
        self.charges.append(size - planned)


def grown(account: Account, pieces: list[bytes], limit: int = 1 << 40, lead: int = 0) -> memoryview:
    body = UnknownLengthBody(account, limit, lead)
    for piece in pieces:
        body.add(piece)
    return body.finish()


@pytest.mark.parametrize("lead", [0, 1, 15])
def test_a_body_is_what_was_added_and_what_it_takes_stays_charged(lead: int) -> None:
    source = random.Random(lead)
    for most in (1, 100, 100_000):
        pieces = [source.randbytes(source.randrange(most)) for _ in range(100)]
        account = Account()
        found = grown(account, pieces, lead=lead)
        assert bytes(found) == b"".join(pieces)
        assert sum(account.charges) == len(found)
        assert min(accumulate(account.charges)) >= 0


def test_a_body_takes_no_memory_before_it_is_charged() -> None:
    piece = bytes(MIB // 16)
    account = Account()
    peak = peak_of(lambda: grown(account, [piece] * 16 * 41))
    assert peak <= max(accumulate(account.charges)) + MIB // 8
    assert max(accumulate(account.charges)) <= 41 * MIB + (4 << 20)


def test_an_inflated_body_takes_no_memory_before_it_is_charged() -> None:
    coded = zlib.compress(bytes(41 * MIB))
    account = Account()
    peak = peak_of(lambda: inflate(coded, b"deflate", 1 << 30, account))
    assert peak <= max(accumulate(account.charges)) + MIB  # zlib's own
    assert sum(account.charges) == 41 * MIB


def test_a_body_is_held_up_to_its_limit_and_no_further() -> None:
    account = Account()
    assert len(grown(account, [bytes(999)] * 2, limit=1998, lead=3)) == 1998
    account = Account()
    with pytest.raises(GatherError) as raised:
        grown(account, [bytes(MIB)] * 9, limit=8 * MIB)
    assert raised.value.code == "payload_too_large"
    assert sum(account.charges) == 8 * MIB


def test_what_the_budget_refuses_is_not_allocated() -> None:
    account = Account(5 * MIB)
    pieces = [bytes(MIB)]

    def refused() -> None:
        with pytest.raises(GatherError):
            grown(account, pieces * 9)

    assert peak_of(refused) <= 5 * MIB + MIB // 8


@pytest.mark.parametrize("piece", [1, 1000])
def test_many_small_pieces_move_the_body_seldom(piece: int) -> None:
    account = Account()
    grown(account, [bytes(piece)] * 100_000)
    assert len(account.charges) < 60
