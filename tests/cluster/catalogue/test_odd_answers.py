"""Answers that are not etcd's, as of a proxy before it: the next member is asked, and threads that ask go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event

import orjson
import pytest

from app.cluster.catalogue.client import CatalogueClient
from app.cluster.catalogue.etcd import Database, DatabaseAddress
from app.cluster.catalogue.key_bindings import Binding, KeyBindings
from app.cluster.catalogue.records import Catalogue, Change, Options
from tests.cluster.answering import Handler, answering
from tests.cluster.databases import running_database
from tests.cluster.waiting import until

NOT_ETCD = (b"<html>", b"", b"[]", b"null", b"7", b"{}", b'{"result": 7}', b"\xff")
ODD = (*NOT_ETCD, b'{"header": {}}', b'{"header": 7}', b'{"result": {"header": {}, "events": [{}]}}')


@contextmanager
def saying(*bodies: bytes) -> Iterator[tuple[str, list[str]]]:
    """The URL of a server whose answers have these bodies, the last one again and again; and the paths it is asked."""
    asked: list[str] = []

    class Saying(Handler):
        def respond(self) -> None:
            self.read_body()
            body = bodies[min(len(asked), len(bodies) - 1)]
            asked.append(self.path)
            self.answer(200, body)

    with answering(Saying) as address:
        yield f"http://{address}", asked


@pytest.mark.parametrize("body", ODD)
def test_an_answer_that_is_not_etcds_is_an_error_like_silence(body: bytes) -> None:
    with saying(body) as (url, _), closing(Database(DatabaseAddress((url,)))) as database:
        with pytest.raises(OSError, match="etcd"):
            database.read(Catalogue())
        with pytest.raises(OSError, match="etcd"):
            database.hold_lease()
        with pytest.raises(OSError, match=r"etcd|127\.0\.0\.1"):
            for _ in database.watch(7, Event()):
                pass


@pytest.mark.parametrize("body", NOT_ETCD)
def test_the_next_member_is_asked(body: bytes, tmp_path: Path) -> None:
    with saying(body) as (url, asked), running_database(tmp_path, "stand_in") as running:
        address = DatabaseAddress((url, running.url))
        with closing(Database(address)) as database:
            CatalogueClient(database).transact(lambda _: Change({"options": Options(ranges=7)}))
        with closing(Database(address)) as database:
            keys = KeyBindings(database)
            assert keys.bind("t", "k", "x", "d") == keys.find("t", "k") == Binding("x", "d")
            keys.close()
        assert asked


def test_a_lease_is_renewed_after_an_odd_answer() -> None:
    granted = orjson.dumps({"header": {"revision": "1"}, "ID": "5", "TTL": "1"})
    kept = orjson.dumps({"result": {"header": {"revision": "1"}, "ID": "5", "TTL": "1"}})
    with (
        saying(granted, b"<html>", kept) as (url, asked),
        closing(Database(DatabaseAddress((url,)), lease_seconds=1)) as database,
    ):
        lease = database.hold_lease()
        until(lambda: len(asked) >= 6, "the lease is renewed again and again")
        assert lease.is_held
