"""The memory budget: nothing is lost, small requests have a lane of their own."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.errors import GatherError
from app.memory.budget import FREE, SMALL, Budget, MemoryReservation


def test_large_requests_cannot_starve_small_ones() -> None:
    budget = Budget(8 * SMALL)
    large = MemoryReservation(budget)
    large.charge(8 * SMALL)
    with pytest.raises(GatherError, match="overloaded"):
        MemoryReservation(budget).charge(2 * SMALL)
    MemoryReservation(budget).charge(SMALL)


def test_what_can_never_fit_is_too_large_and_what_could_later_is_overloaded() -> None:
    budget = Budget(4 * SMALL)
    with pytest.raises(GatherError, match="payload_too_large"):
        MemoryReservation(budget).charge(5 * SMALL)
    MemoryReservation(budget).charge(3 * SMALL)
    with pytest.raises(GatherError, match="overloaded") as caught:
        MemoryReservation(budget).charge(3 * SMALL)
    assert caught.value.retry_after == 1


def test_a_request_that_claims_much_and_sends_little_holds_little() -> None:
    budget = Budget(4 * SMALL)
    idle = MemoryReservation(budget)
    budget.admit(4 * SMALL)
    idle.charge(FREE + 10)
    assert budget.used == 0
    assert budget.small_used == FREE + 10


def test_what_every_request_may_hold_is_charged_with_what_goes_beyond() -> None:
    budget = Budget(4 * SMALL)
    reservation = MemoryReservation(budget)
    for _ in range(2):
        reservation.charge(FREE // 2)
        reservation.charge(FREE // 2)
        assert budget.small_used == 0
        reservation.charge(1)
        assert budget.small_used == FREE + 1
        reservation.charge(SMALL)
        assert (budget.small_used, budget.used) == (0, SMALL + FREE + 1)
        reservation.release()
        assert (budget.small_used, budget.used) == (0, 0)
    reservation.charge(2 * SMALL)
    assert (budget.small_used, budget.used) == (0, 2 * SMALL)


@pytest.mark.parametrize(
    ("total", "requests", "free"),
    [(1 << 30, 1024, 1 << 17), (1 << 30, 4096, 1 << 15), (8 * SMALL, 1024, FREE), (1 << 40, 16, 1 << 17)],
)
def test_what_is_held_uncharged_is_bounded_by_the_requests_there_may_be(total: int, requests: int, free: int) -> None:
    budget = Budget(total, requests)
    reservation = MemoryReservation(budget)
    reservation.charge(free)
    assert budget.small_used == 0
    reservation.charge(1)
    assert budget.small_used == free + 1
    reservation.release()
    assert budget.small_used == 0


SIZES = st.one_of(st.integers(0, 2 * FREE), st.integers(0, 3 * SMALL))


@given(st.lists(st.lists(SIZES, max_size=5), max_size=8))
def test_everything_charged_is_given_back(requests: list[list[int]]) -> None:
    budget = Budget(8 * SMALL)
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


@example(10, 3 * SMALL, 10)
@example(FREE, SMALL, SMALL // 2)
@given(SIZES, SIZES, SIZES)
def test_a_plan_is_settled_by_what_it_came_to(before: int, planned: int, size: int) -> None:
    budget = Budget(20 * SMALL)
    reservation = MemoryReservation(budget)
    reservation.charge(before)
    reservation.charge(planned)
    reservation.settle(planned, size)
    held = budget.used + budget.small_used
    # A large request stays one, at the cost of a small one, so that it does not hold a place in their lane.
    least = before + size if before + size > FREE else 0
    assert least <= held <= max(least, SMALL + 1 if before + planned > SMALL else 0)
    assert budget.used == 0 or budget.small_used == 0
    reservation.release()
    assert budget.used == budget.small_used == 0


def test_a_plan_that_falls_short_is_refused_where_there_is_no_room_for_the_rest() -> None:
    budget = Budget(4 * SMALL)
    reservation = MemoryReservation(budget)
    reservation.charge(3 * SMALL)
    other = MemoryReservation(budget)
    with pytest.raises(GatherError, match="overloaded"):
        other.charge(2 * SMALL)
    with pytest.raises(GatherError, match="payload_too_large"):
        reservation.settle(3 * SMALL, 5 * SMALL)
