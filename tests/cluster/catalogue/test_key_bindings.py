"""Bindings of Idempotency-Keys."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.cluster.catalogue import key_bindings
from app.cluster.catalogue.etcd import Database
from app.cluster.catalogue.key_bindings import Binding, KeyBindings
from app.errors import GatherError
from tests.cluster.databases import running_database
from tests.cluster.waiting import until


@pytest.fixture
def bindings(database: Database) -> Iterator[KeyBindings]:
    found = KeyBindings(database)
    yield found
    found.close()


def test_the_first_binding_of_a_key_stays(database: Database, bindings: KeyBindings) -> None:
    first = Binding("content", "digest")
    assert bindings.bind("items", "key", "content", "digest") == first
    other = KeyBindings(database)
    assert other.bind("items", "key", "later", "digest") == first
    assert bindings.bind("items", "key", "content", "another") == first
    other.close()


def test_many_routers_that_bind_the_same_keys_at_once_are_told_the_same(database: Database) -> None:
    routers = [KeyBindings(database) for _ in range(3)]
    keys = [f"key{number}" for number in range(200)] * 2
    asked = [
        [router.submit("items", key, f"content{number}", "d") for key in keys] for number, router in enumerate(routers)
    ]
    found = [[one.result() for one in own] for own in asked]
    assert found[0] == found[1] == found[2]
    assert {one.digest for one in found[0]} == {"d"}
    for router in routers:
        router.close()


def test_beyond_the_limit_new_keys_are_refused_and_known_ones_found(database: Database) -> None:
    bindings = KeyBindings(database, maximum=3)
    for number in range(3):
        bindings.bind("items", f"key{number}", "content", "digest")
    with pytest.raises(GatherError, match="remembers 3 Idempotency-Keys") as refusal:
        bindings.bind("items", "key3", "content", "digest")
    assert refusal.value.code == "insufficient_storage"
    assert bindings.bind("items", "key1", "other", "digest") == Binding("content", "digest")
    bindings.close()


def test_of_keys_that_come_at_once_as_many_are_bound_as_there_is_room_for(database: Database) -> None:
    bindings = KeyBindings(database, maximum=20)
    asked = [bindings.submit("items", f"key{number}", "content", "digest") for number in range(50)]
    problems = [one.exception() for one in asked]
    assert sum(problem is None for problem in problems) == 20
    bindings.close()


def test_a_binding_lives_for_its_lifetime(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_bindings, "_USE_S", 1)
    monkeypatch.setattr(key_bindings, "_SPARE_S", 0)
    bindings = KeyBindings(database, lifetime=2)
    assert bindings.bind("items", "key", "x", "d") == Binding("x", "d")
    assert bindings.bind("items", "key", "y", "d") == Binding("x", "d")
    until(lambda: bindings.bind("items", "key", "y", "d") == Binding("y", "d"), "the first binding ends", 20)
    bindings.close()


def test_a_lease_that_etcd_has_ended_is_followed_by_another(database: Database, bindings: KeyBindings) -> None:
    grants = []
    ask = database.gateway.ask

    def noted(path: str, body: dict[str, str], **options: bool) -> object:
        answer = ask(path, body, **options)
        if path == "/v3/lease/grant":
            grants.append(answer["ID"])
        return answer

    database.gateway.ask = noted  # type: ignore[method-assign, assignment]
    bindings.bind("items", "key", "x", "d")
    ask("/v3/lease/revoke", {"ID": grants[0]})
    assert bindings.bind("items", "key", "y", "d") == Binding("y", "d")
    assert len(grants) == 2


def test_a_binding_outlasts_a_kill_and_waits_for_the_database(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_database(tmp_path, kind) as running, ThreadPoolExecutor() as pool:
        database = running.connect()
        bindings = KeyBindings(database)
        bindings.bind("items", "key", "x", "d")
        running.stop()
        waiting = pool.submit(bindings.bind, "items", "key", "y", "d")
        running.begin()
        assert waiting.result() == Binding("x", "d")
        running.stop()
        monkeypatch.setattr(key_bindings, "ANSWER_S", 0.5)
        with pytest.raises(GatherError, match="unknown") as refusal:
            bindings.bind("items", "other", "y", "d")
        assert refusal.value.code == "shard_unavailable"
        bindings.close()
        database.close()


def test_who_waits_no_more_holds_up_nobody(bindings: KeyBindings) -> None:
    """Requests whose router ends are cancelled while their keys are bound."""
    given_up = [bindings.submit("items", f"given-up-{number}", "x", "d") for number in range(200)]
    assert [one.cancel() for one in given_up].count(True)
    assert bindings.submit("items", "key", "x", "d").result(10) == Binding("x", "d")
