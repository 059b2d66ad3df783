"""The database. As each test runs against the stand-in too, that is equal to etcd in what is used."""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from threading import Event, Thread
from typing import Any, cast

import pytest

from app.catalogue.records import Alias
from app.cluster.catalogue import client as client_module
from app.cluster.catalogue.client import CatalogueClient
from app.cluster.catalogue.etcd import BadAddress, Compacted, Database, DatabaseAddress, Written, open_database
from app.cluster.catalogue.records import Catalogue, Change, Mark, Node, Options, Record, TooLarge, to_json
from app.errors import GatherError
from tests.cluster.databases import RunningDatabase, running_database
from tests.cluster.waiting import until
from tests.free_port import free_port
from tests.http.test_tls import make_pair
from tests.needs import skip_without


def known(database: Database) -> Catalogue:
    return CatalogueClient(database).refresh()


def alias(target: str) -> Alias:
    name, _, number = target.partition("@")
    return Alias("alias", name, int(number), '"etag"', 1, 1)


def put(database: Database, **aliases: str | None) -> Catalogue:
    records: dict[str, Record | None] = {
        f"aliases/{name}": None if text is None else alias(text) for name, text in aliases.items()
    }
    assert database.commit(Change(records), known(database))
    return known(database)


@pytest.mark.parametrize(
    ("text", "endpoints", "prefix"),
    [
        ("etcd://a:2379", ("http://a:2379",), "gathernd"),
        ("etcd://a:2379,b:2380/", ("http://a:2379", "http://b:2380"), "gathernd"),
        ("etcds://10.0.0.1:2379/one/two", ("https://10.0.0.1:2379",), "one/two"),
        ("etcd://[::1]:2379/p", ("http://[::1]:2379",), "p"),
    ],
)
def test_an_address_names_endpoints_and_a_prefix(text: str, endpoints: tuple[str, ...], prefix: str) -> None:
    assert DatabaseAddress.parse(text) == DatabaseAddress(endpoints, prefix)


@pytest.mark.parametrize("text", ["etcd://", "etcd://a", "etcd://a:x", "etcd://a:0", "http://a:1", "etcd://a:1,,b:2"])
def test_another_text_is_no_address(text: str) -> None:
    with pytest.raises(BadAddress):
        DatabaseAddress.parse(text)


def test_a_read_has_what_has_changed_since_a_catalogue(database: Database) -> None:
    before = put(database, a="t@1", b="t@1", c="t@1")
    assert database.read(before) == (before.revision, {})
    changed = put(database, b="t@2")
    revision, written = database.read(before)
    assert (revision, set(written)) == (changed.revision, {"aliases/b"})
    put(database, c=None)
    now = put(database, c=None, d="t@1")
    revision, written = database.read(before)
    assert (revision, set(written)) == (now.revision, {"aliases/b", "aliases/c", "aliases/d"})
    assert written["aliases/c"] is None


def test_what_has_gone_is_told_as_of_the_revision_of_a_read(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another change comes between the two requests of a read."""
    before = put(database, a="t@1", b="t@1")
    put(database, a=None)
    ask = database.gateway.ask

    def between(path: str, body: Any, **options: Any) -> Any:
        if body.get("keys_only"):
            with monkeypatch.context() as patched:
                patched.setattr(database.gateway, "ask", ask)
                put(database, a="t@1", b=None)
        return ask(path, body, **options)

    monkeypatch.setattr(database.gateway, "ask", between)
    _, written = database.read(before)
    assert written == {"aliases/a": None}


def test_a_change_judged_by_what_has_changed_since_is_not_made(database: Database) -> None:
    before = put(database, a="t@1")
    put(database, a="t@2")
    assert not database.commit(Change({"aliases/a": alias("t@3")}), before)
    assert not database.commit(Change({"aliases/b": alias("t@3")}, unchanged=frozenset({"aliases/a"})), before)
    assert not database.commit(Change({"nodes/n": Node("a:1", 1)}, no_newer=("aliases/",)), before)
    assert known(database).aliases == {"a": alias("t@2")}
    assert known(database).nodes == {}


def test_a_change_beside_what_has_changed_since_is_made(database: Database) -> None:
    before = put(database, a="t@1", b="t@1")
    put(database, a="t@2")
    change = Change({"aliases/c": alias("t@3")}, unchanged=frozenset({"aliases/b", "aliases/d"}), no_newer=("nodes/",))
    assert database.commit(change, before)
    assert set(known(database).aliases) == {"a", "b", "c"}


def test_a_key_that_has_gone_and_come_again_has_changed(database: Database) -> None:
    before = put(database, a="t@1")
    put(database, a=None)
    put(database, a="t@1")
    assert not database.commit(Change({"aliases/a": None}), before)


def test_a_change_of_a_hundred_records_is_made_as_a_whole_or_not_at_all(database: Database) -> None:
    names = [f"a{number:03}" for number in range(100)]
    before = known(database)
    put(database, a050="t@9")
    change = Change({f"aliases/{name}": alias("t@1") for name in names})
    assert not database.commit(change, before)
    assert set(known(database).aliases) == {"a050"}
    revision = database.commit(change, known(database))
    found = known(database)
    assert revision == found.revision
    assert set(found.aliases) == set(names)
    assert {found.revisions[f"aliases/{name}"] for name in names} == {found.revision}


@pytest.mark.parametrize(("count", "size"), [(3, 600_000), (129, 1)])
def test_a_change_that_is_larger_than_etcd_takes_says_so(database: Database, count: int, size: int) -> None:
    change = Change({f"nodes/{number}": Node("a:1", 1, release="x" * size) for number in range(count)})
    with pytest.raises(TooLarge):
        database.commit(change, known(database))
    with pytest.raises(GatherError, match="larger than etcd accepts"):
        CatalogueClient(database).transact(lambda _: change)
    assert known(database).nodes == {}


def watching(database: Database, after: int, stop: Event) -> list[tuple[int, Written]]:
    found: list[tuple[int, Written]] = []
    Thread(target=lambda: found.extend(database.watch(after, stop))).start()
    return found


def test_a_watch_tells_each_change_after_a_revision(database: Database) -> None:
    before = put(database, a="t@1")
    first = put(database, a="t@2", b="t@1")
    stop = Event()
    found = watching(database, before.revision, stop)
    until(lambda: found, "the change before the watch is told")
    second = put(database, a=None)
    until(lambda: len(found) == 2, "the change during the watch is told")
    stop.set()
    put(database, c="t@1")  # wakes the watch, which ends
    assert found == [
        (
            first.revision,
            {f"aliases/{a}": (to_json(alias(t)), first.revision) for a, t in (("a", "t@2"), ("b", "t@1"))},
        ),
        (second.revision, {"aliases/a": None}),
    ]


def test_a_watch_after_a_revision_that_is_compacted_says_so(running: RunningDatabase, database: Database) -> None:
    before = put(database, a="t@1")
    put(database, a="t@2")
    put(database, a="t@3")
    running.compact()
    watch = database.watch(before.revision, Event())
    with pytest.raises(Compacted):
        next(watch)


def test_a_leased_record_goes_with_its_process(running: RunningDatabase, database: Database) -> None:
    other = Database(DatabaseAddress((running.url,), "other"), lease_seconds=1)
    watched = Database(DatabaseAddress((running.url,), "other"))
    change = Change({"alive/a": Mark(), "nodes/a": Node("a:1", 1)}, leased=frozenset({"alive/a"}))
    assert other.commit(change, known(other))
    time.sleep(2.5)  # longer than the lease: it is renewed
    assert known(watched).alive == {"a"}
    other.close()
    until(lambda: not known(watched).alive, "the record goes", 1)
    assert set(known(watched).nodes) == {"a"}
    watched.close()


def test_a_lease_that_etcd_has_ended_is_not_held_and_followed_by_another(database: Database) -> None:
    lease = database.hold_lease()
    assert lease.is_held
    assert database.hold_lease() is lease
    database.gateway.ask("/v3/lease/revoke", {"ID": lease.number})
    with pytest.raises(OSError, match="lease"):
        database.commit(Change({"alive/a": Mark()}, leased=frozenset({"alive/a"})), known(database))
    assert not lease.is_held
    assert database.commit(Change({"alive/a": Mark()}, leased=frozenset({"alive/a"})), known(database))
    assert database.lease is not lease


def test_the_catalogue_of_one_client_follows_the_changes_of_another(database: Database) -> None:
    taken: list[Catalogue] = []
    watching = CatalogueClient(database, taken.append)
    stop = Event()
    thread = Thread(target=watching.watch, args=(stop,))
    thread.start()
    changing = CatalogueClient(database)
    changing.transact(lambda _: Change({"options": Options(ranges=7)}))
    changing.transact(lambda _: Change({"drained/a": Mark(), "aliases/a": alias("t@1")}))
    found = changing.transact(lambda _: Change({"drained/a": None}))
    assert known(database) == found
    until(lambda: watching.catalogue.revision == found.revision, "the change is taken")
    assert watching.catalogue == found
    assert found.options.ranges == 7
    assert [one.revision for one in taken] == sorted({one.revision for one in taken})
    stop.set()
    changing.transact(lambda _: Change({"aliases/a": None}))
    thread.join(20)


def test_a_transition_judges_the_newer_catalogue_when_it_comes_too_late(database: Database) -> None:
    first, second = CatalogueClient(database), CatalogueClient(database)
    judged: list[Alias | None] = []

    def slow(catalogue: Catalogue) -> Change:
        if not judged:
            second.transact(lambda _: Change({"aliases/a": alias("t@1")}))
        judged.append(catalogue.aliases.get("a"))
        return Change({"aliases/a": alias("t@2")})

    assert first.transact(slow).aliases == {"a": alias("t@2")}
    assert judged == [None, alias("t@1")]


def test_a_record_that_cannot_be_read_is_not_taken_for_one_that_is_missing(database: Database) -> None:
    client = CatalogueClient(database)
    put(database, a="t@1")
    before = client.refresh()
    put_raw = {"request_put": {"key": database._encode_key("tables/t"), "value": "e30="}}
    database.gateway.ask("/v3/kv/txn", {"success": [put_raw]})
    with pytest.raises(OSError, match="tables/t"):
        client.refresh()
    assert client.catalogue is before


def test_records_outlast_a_kill_and_changes_meanwhile_are_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gathernd")
    monkeypatch.setattr(client_module, "ANSWER_S", 1.0)
    with running_database(tmp_path, kind) as running:
        client = CatalogueClient(running.connect())
        stop = Event()
        thread = Thread(target=client.watch, args=(stop,))
        thread.start()
        client.transact(lambda _: Change({"aliases/a": alias("t@1")}))
        running.stop()
        until(lambda: "keeping the last catalogue" in caplog.text, "the log tells that etcd is gone")
        with pytest.raises(GatherError, match="unknown") as refusal:
            client.transact(lambda _: Change({"aliases/a": alias("t@2")}))
        assert refusal.value.hint == "Send the request again after 1 s."  # no index is at fault
        assert client.catalogue.aliases == {"a": alias("t@1")}
        running.begin()
        other = CatalogueClient(running.connect())
        found = other.transact(lambda _: Change({"aliases/b": alias("t@1")}))
        until(lambda: client.catalogue.revision == found.revision, "the watch goes on")
        assert client.catalogue == found
        assert "etcd answers again" in caplog.text
        stop.set()
        other.transact(lambda _: Change({"aliases/b": None}))
        thread.join(20)
        client.database.close()
        other.database.close()


def test_what_was_known_of_a_database_that_has_begun_anew_is_not_mixed_with_what_it_has(
    kind: str, tmp_path: Path
) -> None:
    with running_database(tmp_path, kind) as running:
        client = CatalogueClient(running.connect())
        for number in range(4):
            client.transact(lambda _: Change({"aliases/a": alias(f"t@{number + 1}")}))  # noqa: B023
        known = client.catalogue
        running.stop()
        running.forget()
        running.begin()
        with pytest.raises(OSError, match="went back"):
            client.refresh()
        other = CatalogueClient(running.connect())
        while other.catalogue.revision <= known.revision:
            other.transact(lambda found: Change({f"aliases/b{found.revision}": alias("t@1")}))
        with pytest.raises(OSError, match="went back"):
            client.refresh()
        with pytest.raises(GatherError, match="went back"):
            client.transact(lambda _: Change({"aliases/a": None}))
        assert client.catalogue is known
        client.database.close()
        other.database.close()


@pytest.mark.slow
def test_etcd_over_tls_is_asked_by_its_authorities_alone(tmp_path: Path) -> None:
    skip_without(etcd="etcd-server")
    pair, other = make_pair(tmp_path / "etcd", "etcd"), make_pair(tmp_path / "other", "other")
    port = free_port()
    url, peer = f"https://127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [
            "etcd", "--data-dir", str(tmp_path / "data"), "--logger", "zap", "--log-level", "error",
            "--cert-file", str(pair.certificate), "--key-file", str(pair.key),
            "--listen-client-urls", url, "--advertise-client-urls", url,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
        ]
    )  # fmt: skip
    address = f"etcds://127.0.0.1:{port}"
    database, stranger = open_database(address, pair.certificate), open_database(address, other.certificate)
    try:
        until(lambda: answers(database), "etcd answers")
        before = put(database, a="t@1")
        put(database, a="t@2")
        with closing(cast(Generator[object], database.watch(before.revision, Event()))) as watch:
            assert next(watch)
        with pytest.raises(OSError, match="certificate verify failed"):
            known(stranger)
    finally:
        database.close()
        stranger.close()
        process.terminate()
        process.wait(60)


def answers(database: Database) -> bool:
    try:
        known(database)
    except OSError:
        return False
    return True
