"""Which connections have a place: made-up ones, all of them silent for longer than an idle one is."""

from __future__ import annotations

from typing import Any, cast

import pytest

from app.server import connection_limit, lingering_close
from app.server.connection_interface import Connection
from app.server.connection_limit import ConnectionLimit
from app.telemetry.shared_counters import unshared_counters

MOST = 2


class Silent:
    """A connection that nothing comes on; with `has_begun` it is in the middle of a request."""

    def __init__(self, *, has_begun: bool = False) -> None:
        self.has_begun = has_begun
        self.closed = False
        self.last_received = 0.0
        self.transport = self

    def is_idle(self, now: float, seconds: float) -> bool:
        return not self.has_begun

    def close(self) -> None:
        self.closed = True


class Places:
    """A limit of MOST connections, and those that are open."""

    def __init__(self) -> None:
        self.open: set[Any] = set()
        self.limit = ConnectionLimit(MOST, self.open, unshared_counters())

    def has_room_for(self, one: Silent) -> bool:
        self.open.add(one)
        return self.limit.admit(cast(Connection, one))


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Places:
    monkeypatch.setattr(connection_limit, "_LOOK_AGAIN_S", 0.0)
    monkeypatch.setattr(lingering_close, "count", lambda: 0)  # other tests may have left some
    return Places()


def test_an_idle_connection_makes_room(places: Places) -> None:
    idle = [Silent() for _ in range(MOST)]
    assert all(places.has_room_for(one) for one in idle)
    assert places.has_room_for(Silent())
    assert [one.closed for one in idle].count(True) == 1


def test_a_connection_without_a_place_makes_no_room(places: Places) -> None:
    """Its end frees no place: with each such newcomer the service would have one connection more."""
    assert all(places.has_room_for(Silent(has_begun=True)) for _ in range(MOST))
    waiting = [Silent() for _ in range(3)]
    assert not any(places.has_room_for(one) for one in waiting)
    assert not places.has_room_for(Silent())
    assert not any(one.closed for one in waiting)
