"""The memory budget: nothing is lost, small requests have one of their own."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.errors import GatherError
from app.memory.budget import MIN_UNCHARGED_BYTES, SMALL_REQUEST_BYTES, Budget, MemoryReservation


def test_large_requests_cannot_starve_small_ones() -> None:
    budget = Budget(8 * SMALL_REQUEST_BYTES)
    large = MemoryReservation(budget)
    large.charge(8 * SMALL_REQUEST_BYTES)
    with pytest.raises(GatherError, match="overloaded"):
        MemoryReservation(budget).charge(2 * SMALL_REQUEST_BYTES)
    MemoryReservation(budget).charge(SMALL_REQUEST_BYTES)


def test_what_every_request_may_hold_is_charged_with_what_goes_beyond() -> None:
    budget = Budget(4 * SMALL_REQUEST_BYTES)
    reservation = MemoryReservation(budget)
    for _ in range(2):
        reservation.charge(MIN_UNCHARGED_BYTES // 2)
        reservation.charge(MIN_UNCHARGED_BYTES // 2)
        assert budget.small_used == 0
        reservation.charge(1)
        assert budget.small_used == MIN_UNCHARGED_BYTES + 1
        reservation.charge(SMALL_REQUEST_BYTES)
        assert (budget.small_used, budget.used) == (0, SMALL_REQUEST_BYTES + MIN_UNCHARGED_BYTES + 1)
        reservation.release()
        assert (budget.small_used, budget.used) == (0, 0)
    reservation.charge(2 * SMALL_REQUEST_BYTES)
    assert (budget.small_used, budget.used) == (0, 2 * SMALL_REQUEST_BYTES)


@pytest.mark.parametrize(
    ("total", "requests", "uncharged"),
    [
        (1 << 30, 1024, 1 << 17),
        (1 << 30, 4096, 1 << 15),
        (8 * SMALL_REQUEST_BYTES, 1024, MIN_UNCHARGED_BYTES),
        (1 << 40, 16, 1 << 17),
    ],
)
def test_what_is_held_uncharged_is_bounded_by_the_requests_there_may_be(
    total: int, requests: int, uncharged: int
) -> None:
    budget = Budget(total, requests)
    reservation = MemoryReservation(budget)
    reservation.charge(uncharged)
    assert budget.small_used == 0
    reservation.charge(1)
    assert budget.small_used == uncharged + 1
    reservation.release()
    assert budget.small_used == 0


SIZES = st.one_of(st.integers(0, 2 * MIN_UNCHARGED_BYTES), st.integers(0, 3 * SMALL_REQUEST_BYTES))


@given(st.lists(st.lists(SIZES, max_size=5), max_size=8))
def test_everything_charged_is_given_back(requests: list[list[int]]) -> None:
    budget = Budget(8 * SMALL_REQUEST_BYTES)
    leases = []
    for pieces in requests:
        reservation = MemoryReservation(budget)
        leases.append(reservation)
        for piece in pieces:
            try:
                reservation.charge(piece)
            except GatherError:
                break
        assert budget.used <= budget.total
        assert budget.small_used <= budget.small_total
    for reservation in leases:
        reservation.release()
        reservation.release()
    assert budget.used == budget.small_used == 0


@example(10, 3 * SMALL_REQUEST_BYTES, 10)
@example(MIN_UNCHARGED_BYTES, SMALL_REQUEST_BYTES, SMALL_REQUEST_BYTES // 2)
@given(SIZES, SIZES, SIZES)
def test_a_plan_is_settled_by_what_it_came_to(before: int, planned: int, size: int) -> None:
    budget = Budget(20 * SMALL_REQUEST_BYTES)
    reservation = MemoryReservation(budget)
    reservation.charge(before)
    reservation.charge(planned)
    reservation.adjust(planned, size)
    held = budget.used + budget.small_used
    # A large request stays one, at the cost of a small one, so that it does not take bytes of their budget.
    least = before + size if before + size > MIN_UNCHARGED_BYTES else 0
    assert least <= held <= max(least, SMALL_REQUEST_BYTES + 1 if before + planned > SMALL_REQUEST_BYTES else 0)
    assert budget.used == 0 or budget.small_used == 0
    reservation.release()
    assert budget.used == budget.small_used == 0


def test_a_plan_that_falls_short_is_refused_where_there_is_no_room_for_the_rest() -> None:
    budget = Budget(4 * SMALL_REQUEST_BYTES)
    reservation = MemoryReservation(budget)
    reservation.charge(3 * SMALL_REQUEST_BYTES)
    other = MemoryReservation(budget)
    with pytest.raises(GatherError, match="overloaded"):
        other.charge(2 * SMALL_REQUEST_BYTES)
    with pytest.raises(GatherError, match="payload_too_large"):
        reservation.adjust(3 * SMALL_REQUEST_BYTES, 5 * SMALL_REQUEST_BYTES)
