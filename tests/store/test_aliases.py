"""Aliases: made, moved and removed in one step, seen by all workers, and what they keep from going."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest

from app.errors import GatherError
from app.errors.hints import hint_of
from app.store import Conditions, LocalStore, Quota
from app.store.catalogue.catalogue_rows import Alias
from app.store.files import disk_writes
from app.store.files.write_uploaded_tensor import UploadSpec
from app.tensors.dtypes import DTYPES
from app.tensors.shape_limits import Limits
from tests.store.helpers import answered, files, put, read, scatter, strings, uploaded


@pytest.fixture
def items(store: LocalStore) -> LocalStore:
    """A store with three versions of `items`, each full of its number."""
    for number in range(1, 4):
        put(store, "items", np.full(3, number), keep=3)
    return store


def refused(code: str, work: Callable[..., object], *arguments: object) -> GatherError:
    with pytest.raises(GatherError) as error:
        work(*arguments)
    assert error.value.code == code, error.value
    assert hint_of(error.value, 1)
    return error.value


def test_an_alias_names_one_version_and_moves_in_one_step_for_every_process(
    items: LocalStore, other: LocalStore
) -> None:
    alias, created = items.put_alias("live", "items@2")
    assert (alias.alias, alias.name, alias.version, created) == ("live", "items", 2, True)
    for number in (2, 3, 1):
        moved, created = items.put_alias("live", f"items@{number}")
        assert not created
        for each in (items, other):
            assert read(each, "live").tolist() == [number] * 3
            resident = each.get("live")
            assert resident is not None
            assert resident.data_version == number
            assert resident.etag == each.metadata(f"items@{number}").etag
            assert each.metadata("live") == each.metadata(f"items@{number}")
            assert each.alias("live") == moved
            assert each.version_numbers("live") == [number]
    put(items, "items", np.full(3, 4), keep=4)
    assert read(other, "live").tolist() == [1, 1, 1]


def test_it_survives_a_restart_with_its_etag(items: LocalStore) -> None:
    alias, _ = items.put_alias("live", "items@2")
    items.close()
    store = LocalStore(items.folder, Limits())
    store.open()
    assert store.alias("live") == alias
    assert read(store, "live").tolist() == [2, 2, 2]
    store.close()


def test_each_move_has_a_new_etag_and_a_move_to_where_it_is_keeps_it(items: LocalStore) -> None:
    etags = [items.put_alias("live", f"items@{number}")[0].etag for number in (1, 2, 2, 1)]
    assert etags[1] == etags[2]
    assert len(set(etags)) == 3
    alias = items.alias("live")
    items.delete_alias("live")
    made, created = items.put_alias("live", "items@1")
    assert created
    assert made.etag != alias.etag
    assert made.created > alias.created
    moved, _ = items.put_alias("live", "items@2")
    assert moved.created == made.created
    assert moved.modified > made.modified


def test_conditions_are_those_of_the_alias_and_not_of_what_it_names(items: LocalStore) -> None:
    content = items.metadata("items@1").etag
    refused("precondition_failed", items.put_alias, "live", "items@1", Conditions(match=("*",)))
    etag = items.put_alias("live", "items@1", Conditions(none_match=("*",)))[0].etag
    for conditions in (Conditions(match=(content,)), Conditions(none_match=("*",)), Conditions(none_match=(etag,))):
        for target in ("items@1", "items@2"):
            error = refused("precondition_failed", items.put_alias, "live", target, conditions)
            assert "tensor" not in str(error.hint)
        refused("precondition_failed", items.delete_alias, "live", conditions)
    moved = items.put_alias("live", "items@2", Conditions(match=(etag,)))[0]
    refused("precondition_failed", items.put_alias, "live", "items@3", Conditions(match=(etag,)))
    items.delete_alias("live", Conditions(match=(moved.etag,)))
    assert items.alias_names() == []


def test_what_it_names_is_not_removed_and_not_given_up_at_an_upload(items: LocalStore) -> None:
    items.put_alias("live", "items@1")
    items.put_alias("next", "items@3")
    for reference, alias in (("items", "live"), ("items@1", "live"), ("items@3", "next")):
        error = refused("tensor_in_use", items.delete, reference)
        assert f"/aliases/{alias}" in str(error.hint)
    items.delete("items@2")
    for number in (4, 5):
        put(items, "items", np.full(3, number), keep=1)
        assert items.version_numbers("items") == [1, 3, number]
    items.put_alias("live", "items@5")
    assert items.version_numbers("items") == [1, 3, 5]  # so that one can move back until the next upload
    items.put_alias("live", "items@1")
    items.put_alias("live", "items@5")
    put(items, "items", np.full(3, 6))
    assert items.version_numbers("items") == [3, 5, 6]
    items.delete_alias("next")
    items.delete_alias("live")
    items.delete("items")
    assert files(items.folder) == set()


def test_tensors_and_aliases_share_their_names(items: LocalStore) -> None:
    items.put_alias("live", "items@1")
    refused("name_conflict", put, items, "live", np.arange(3))
    refused("name_conflict", items.put_alias, "items", "items@1")
    assert "/aliases/live" in str(refused("name_conflict", items.delete, "live").hint)
    refused("name_conflict", items.delete_alias, "items")
    refused("tensor_not_found", items.delete_alias, "none")
    refused("tensor_not_found", items.alias, "items")
    assert "'live'" in str(refused("tensor_not_found", items.alias, "liv").hint)
    assert items.names() == ["items"]
    assert not [path for path in files(items.folder) if path.startswith("incoming")]
    items.delete_alias("live")
    put(items, "live", np.arange(3))
    refused("name_conflict", items.put_alias, "live", "items@1")


def test_an_upload_that_began_before_an_alias_took_its_name_is_refused(items: LocalStore) -> None:
    upload = uploaded(items, UploadSpec("live", DTYPES["int8"], (3,)), b"abc", 3)
    items.put_alias("live", "items@1")
    refused("name_conflict", items.put, upload)
    assert not [path for path in files(items.folder) if path.startswith("incoming")]


@pytest.mark.parametrize(
    ("target", "code", "hint"),
    [
        ("items", "invalid_field", "'items@3' at /tensor, which is its current version"),
        ("live", "invalid_field", "GET /aliases/live"),
        ("none", "invalid_field", "GET /tensors"),
        ("items@0", "invalid_field", "'items@3' at /tensor, which is its current version"),
        ("", "invalid_field", "GET /tensors"),
        ("items@4", "tensor_not_found", "'items@3' at /tensor"),
        ("item@1", "tensor_not_found", ""),
        ("live@1", "tensor_not_found", "the name of the tensor and a number"),
    ],
)
def test_it_names_a_version_that_is_there_and_never_an_alias(
    items: LocalStore, target: str, code: str, hint: str
) -> None:
    items.put_alias("live", "items@1")
    error = refused(code, items.put_alias, "next", target)
    assert error.places[0].pointer == "/tensor"
    assert hint in str(error.hint)
    assert items.alias_names() == ["live"]


@pytest.mark.parametrize("name", ["a b", "", "live@1", "gathernd", "stats", "lookup", "x" * 129])
def test_its_name_is_one_that_a_tensor_may_have(items: LocalStore, name: str) -> None:
    assert refused("invalid_field", items.put_alias, name, "items@1").places[0].pointer == "/name"


def test_there_are_no_more_aliases_than_tensors_may_be(folder: Path) -> None:
    store = LocalStore(folder, Limits(), Quota(tensors=2))
    store.open()
    put(store, "items", np.arange(3))
    for name in ("a", "b", "a"):
        store.put_alias(name, "items@1")
    error = refused("insufficient_storage", store.put_alias, "c", "items@1")
    assert error.facts == {"limit": "store_aliases", "maximum": 2}
    put(store, "more", np.arange(3))  # aliases are no tensors
    store.close()


def test_a_scatter_through_it_changes_that_version(items: LocalStore, other: LocalStore) -> None:
    items.put_alias("live", "items@2")
    etag = scatter(items, "live", [[0]], np.array([20]))
    for each in (items, other):
        assert [read(each, name)[0] for name in ("items@1", "items@2", "items", "live")] == [1, 20, 3, 20]
        assert each.metadata("live").etag == etag
    conditions = Conditions(match=(other.alias("live").etag,))
    with pytest.raises(GatherError, match="precondition_failed"):
        scatter(items, "live", [[0]], np.array([1]), conditions=conditions)


def test_strings_that_a_scatter_changes_are_read_through_it_by_every_process(
    store: LocalStore, other: LocalStore
) -> None:
    put(store, "words", strings("a", "b"))
    store.put_alias("live", "words@1")
    assert read(other, "live").tolist() == ["a", "b"]
    scatter(store, "words", [[0]], strings("longer"))
    assert read(other, "live").tolist() == ["longer", "b"]
    scatter(other, "live", [[1]], strings("too"))
    assert read(store, "words@1").tolist() == ["longer", "too"]


def test_a_key_given_with_it_gets_the_first_answer_wherever_it_names_now(items: LocalStore, other: LocalStore) -> None:
    put(items, "users", np.arange(3))
    items.put_alias("live", "items@1")
    first = scatter(items, "live", [[0]], np.array([1]), "add", key="k")
    for target in ("items@2", "users@1", "items@1", "items@3"):
        items.put_alias("live", target)
        for each in (items, other):
            assert scatter(each, "live", [[0]], np.array([1]), "add", key="k") == first
    found = items.find_answer("live", "k", "digest")
    assert found is not None
    assert found.version == 1
    items.delete_alias("live")
    assert answered(other, "live", "k", "digest") == first
    put(items, "live", np.arange(4))  # a tensor of that name
    assert scatter(other, "live", [[0]], np.array([1]), "add", key="k") == first
    assert [read(items, name)[0] for name in ("items@1", "items@2", "users", "live")] == [2, 2, 0, 0]
    assert answered(items, "items@1", "k", "digest") is None  # a key belongs to the name that it was given with


def test_a_move_and_a_removal_of_its_target_at_the_same_time_leave_no_alias_of_nothing(
    items: LocalStore, other: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    items.put_alias("live", "items@1")
    real = disk_writes.commit
    begun, go_on = Event(), Event()

    def slow(connection: object) -> None:
        begun.set()
        go_on.wait(60)
        real(connection)  # type: ignore[arg-type]

    outcomes: list[object] = []

    def move() -> None:
        try:
            outcomes.append(other.put_alias("live", "items@2"))
        except GatherError as error:
            outcomes.append(error.code)

    with monkeypatch.context() as patch:
        patch.setattr(disk_writes, "commit", slow)
        removal = Thread(target=lambda: items.delete("items@2"))
        removal.start()
        assert begun.wait(60)
        mover = Thread(target=move)
        mover.start()
        go_on.set()
        removal.join()
        mover.join()
    assert outcomes == ["tensor_not_found"]
    assert read(items, "live").tolist() == [1, 1, 1]
    assert items.alias("live").version == 1


def test_a_lookup_beside_a_thread_that_learns_of_a_move_and_of_a_removal_finds_the_version(
    items: LocalStore, other: LocalStore
) -> None:
    items.put_alias("live", "items@1")

    class Interrupted(dict[str, Alias]):
        """Another thread of this process learns of both just when the lookup knows what the alias named before."""

        def get(self, alias: str, default: Any = None) -> Any:
            found = super().get(alias, default)
            items._index._aliases = dict(self)
            other.put_alias("live", "items@2")
            other.delete("items@1")
            items.sweep()
            return found

    items._index._aliases = Interrupted(items._index._aliases)
    assert read(items, "live").tolist() == [2, 2, 2]


def test_many_moves_in_two_processes_follow_each_other(items: LocalStore, other: LocalStore) -> None:
    """Both move the same alias by its ETag, as two publishers do; each move is made once and seen at once."""
    items.put_alias("live", "items@1")
    moves: list[str] = []

    def run(store: LocalStore) -> None:
        made = 0
        while made < 30:
            alias = store.alias("live")
            try:
                moved, _ = store.put_alias("live", f"items@{alias.version % 3 + 1}", Conditions(match=(alias.etag,)))
            except GatherError as error:
                if error.code != "precondition_failed":
                    raise
                continue
            made += 1
            moves.append(moved.etag)

    threads = [Thread(target=run, args=(store,)) for store in (items, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(moves)) == 60
    assert items.alias("live") == other.alias("live")
    assert items.alias("live").version == 60 % 3 + 1


def test_aliases_are_listed_in_the_order_of_their_names(items: LocalStore) -> None:
    for name in ("c", "a", "d", "b"):
        items.put_alias(name, "items@1")
    found, following = items.alias_page(2, None)
    assert ([alias.alias for alias in found], following) == (["a", "b"], "b")
    found, following = items.alias_page(2, following)
    assert ([alias.alias for alias in found], following) == (["c", "d"], None)
