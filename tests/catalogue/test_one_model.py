"""One model of names: a store on one machine and a cluster's catalogue in etcd answer the same changes alike."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.catalogue.aliases import AliasMove
from app.catalogue.conditions import ALWAYS, Conditions
from app.cluster.catalogue.etcd import Database
from app.cluster.catalogue.records import Catalogue, Change, Options
from app.cluster.router.catalogue_service import CatalogueService
from app.cluster.router.router_files import RouterFiles
from app.errors import GatherError
from app.store import LocalStore
from app.store.files.write_uploaded_tensor import UploadSpec
from app.store.tensor_store_interface import TensorStore
from app.tensors.dtypes import DTYPES
from app.tensors.shape_limits import Limits
from tests.cluster.clustered import catalogue_client
from tests.cluster.databases import running_database
from tests.conftest import SOAK

Do: TypeAlias = Callable[[TensorStore], Any]
EXAMPLES = 2000 if SOAK else 6
TENSORS, ALIASES = ("t", "u"), ("live", "next")
NAMES = (*TENSORS, *ALIASES)
RUNS = count(1)
"""Each run has names of its own, so that numbers begin at 1."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TensorStore, TensorStore, Database]]:
    """A store on one machine, that of a router whose catalogue the stand-in of etcd has, and how the router asks it."""
    folder = tmp_path_factory.mktemp("model")
    local = LocalStore(folder / "store", Limits())
    local.open()
    with running_database(folder / "database", "stand_in") as running:
        with catalogue_client(running) as client:
            client.transact(lambda _: Change({"options": Options()}))
        spool = LocalStore(folder / "spool", Limits()).upload
        database = running.connect()
        service = CatalogueService(database, 1.0, Limits(), 1, spool, RouterFiles(None, None, None))
        service.connect()
        yield local, service.tables, database
        asyncio.run(service.close())
    local.close()


@pytest.fixture
def stores(both: tuple[TensorStore, TensorStore, Database]) -> tuple[TensorStore, TensorStore]:
    return both[:2]


@given(st.data())
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_same_changes_have_the_same_outcome(stores: tuple[TensorStore, TensorStore], data: st.DataObject) -> None:
    run = f"r{next(RUNS)}."
    for number in range(data.draw(st.integers(2, 15))):
        what, change = drawn(data.draw, run, number)
        outcomes = [outcome(change, store) for store in stores]
        assert outcomes[0] == outcomes[1], what
        states = [state(store, run) for store in stores]
        assert states[0] == states[1], what
    for store in stores:  # so that lists and searches for near names stay short
        for alias in store.alias_names():
            store.delete_alias(alias)
        for name in store.names():
            store.delete(name)


def drawn(draw: Callable[[st.SearchStrategy[Any]], Any], run: str, number: int) -> tuple[str, Do]:
    """A change, and what it is called. Names are most often of the right kind, and sometimes of the other one."""
    name = run + draw(st.sampled_from((*TENSORS, *NAMES)))
    reference = draw(st.sampled_from((name, *(f"{name}@{version}" for version in range(1, 6)), f"{name}@0")))
    asked = draw(st.sampled_from(("always", "always", "always", "as known", "another", "any", "none")))
    match draw(st.integers(0, 6)):
        case 0 | 1 | 2:
            keep = draw(st.sampled_from((None, 1, 2, 3)))
            what = f"put {name} {keep} {asked}"
            return what, lambda store: put(store, name, keep, number, conditions(store, name, asked))
        case 3:
            what = f"delete {reference} {asked}"
            return what, lambda store: store.delete(reference, conditions(store, reference, asked))
        case 4:
            alias = run + draw(st.sampled_from((*ALIASES, *NAMES)))
            what = f"delete alias {alias} {asked}"
            return what, lambda store: store.delete_alias(alias, of_alias(store, alias, asked))
        case _:
            aliases = draw(st.lists(st.sampled_from((*ALIASES, *ALIASES, *NAMES)), min_size=1, max_size=2, unique=True))
            versions = st.sampled_from((reference, f"{name}@1", f"{name}@2"))
            targets = [(run + alias, draw(versions)) for alias in aliases]

            def move(store: TensorStore) -> Any:
                moves = [AliasMove(alias, target, of_alias(store, alias, asked)) for alias, target in targets]
                return [(alias.reference, is_new) for alias, is_new in store.put_aliases(moves)]

            return f"move {targets} {asked}", move


def put(store: TensorStore, name: str, keep: int | None, note: int, wanted: Conditions) -> Any:
    """Upload a table without rows, which no shard is needed for. Its note says which upload it was."""
    store.etag_to_replace(name)
    upload = store.upload(UploadSpec(name, DTYPES["int32"], (0, 3), keep=keep, note=str(note)))
    upload.finish()
    made, is_new = store.put(upload, wanted)
    return made.version, made.versions, made.note, made.dtype, made.shape, is_new


def conditions(store: TensorStore, reference: str, asked: str) -> Conditions:
    """Conditions on the ETag that a version has in this store."""
    resident = store.get(reference) if "@0" not in reference else None
    return conditions_on(None if resident is None else resident.etag, asked)


def of_alias(store: TensorStore, alias: str, asked: str) -> Conditions:
    """Conditions on the ETag that an alias has in this store."""
    return conditions_on(store.alias(alias).etag if alias in store.alias_names() else None, asked)


def conditions_on(etag: str | None, asked: str) -> Conditions:
    return {
        "always": ALWAYS,
        "as known": Conditions((etag or '"missing"',)),
        "another": Conditions(('"another"',)),
        "any": Conditions(("*",)),
        "none": Conditions(none_match=("*",)),
    }[asked]


def outcome(change: Do, store: TensorStore) -> Any:
    """What a change gives, or the error's code and words without ETags, which are drawn."""
    try:
        return change(store)
    except GatherError as error:
        words = error.code, error.detail, error.hint or "", str(error.places)
        return tuple(re.sub(r'"[^"]*"|ETag is \S+', "ETag", text) for text in words)


def state(store: TensorStore, run: str) -> Any:
    """All that a store says of the names of a run."""
    tensors = [store.metadata(name) for name in store.names() if name.startswith(run)]
    aliases = [store.alias(alias) for alias in store.alias_names() if alias.startswith(run)]
    return (
        [(one.name, one.version, one.versions, one.note) for one in tensors],
        [(one.alias, one.reference, one.created == one.modified) for one in aliases],
        [(name, store.resolve(run + name), store.version_numbers(run + name)) for name in NAMES],
    )


def test_an_alias_has_a_new_etag_with_each_move_and_keeps_it_if_it_names_that_version(
    stores: tuple[TensorStore, TensorStore],
) -> None:
    name, alias = (f"r{next(RUNS)}.{each}" for each in ("t", "live"))
    for store in stores:
        for note in (1, 2):
            put(store, name, 2, note, ALWAYS)
        etags = []
        for number in (1, 2, 1, 1):
            ((made, _),) = store.put_aliases([AliasMove(alias, f"{name}@{number}")])
            assert made == store.alias(alias)
            etags.append(made.etag)
        assert len(set(etags[:3])) == 3
        together = store.put_aliases([AliasMove(f"{alias}{each}", f"{name}@1") for each in range(2)])
        assert len({made.etag for made, _ in together}) == 2
        assert etags[2] == etags[3]


def test_a_change_whose_outcome_etcd_did_not_tell_is_made_once(
    both: tuple[TensorStore, TensorStore, Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, tables, database = both
    name, alias = (f"r{next(RUNS)}.{each}" for each in ("t", "live"))
    real, tried = database.commit, list[Change]()

    def commit(change: Change, at: Catalogue) -> int:
        tried.append(change)
        found = real(change, at)
        if len(tried) == 1:
            raise OSError("no answer")
        return found

    def untold(change: Do) -> Any:
        """What a change gives whose first transaction is made and not answered."""
        with monkeypatch.context() as patch:
            patch.setattr(database, "commit", commit)
            found = change(tables)
        assert len(tried) == 1
        tried.clear()
        return found

    put(tables, name, 3, 1, ALWAYS)
    upload = tables.upload(UploadSpec(name, DTYPES["int32"], (0, 3), keep=3))
    upload.finish()
    metadata, is_new = untold(lambda store: store.put(upload, Conditions((tables.metadata(name).etag,))))
    assert (metadata.version, metadata.versions, is_new) == (2, (1, 2), False)
    ((moved, is_new),) = untold(lambda store: store.put_aliases([AliasMove(alias, f"{name}@1")]))
    assert (moved, is_new) == (tables.alias(alias), True)
    etag = moved.etag
    move = AliasMove(alias, f"{name}@2", Conditions((etag,)))
    ((moved, is_new),) = untold(lambda store: store.put_aliases([move]))
    assert (moved.reference, is_new) == (f"{name}@2", False)
    untold(lambda store: store.delete_alias(alias, Conditions((moved.etag,))))
    untold(lambda store: store.delete(f"{name}@1"))
    assert tables.version_numbers(name) == [2]
    untold(lambda store: store.delete(name))
    assert tables.version_numbers(name) == []
