"""A thousand names with a hundred versions each: the store starts, lists, looks up and takes uploads as one of ten."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest

from app.store import LocalStore, Quota
from app.store.catalogue_rows import Alias
from app.store.tensor_file import encode_page
from app.store.tensor_metadata import read_first_page
from app.tensors.shape_limits import Limits
from tests.store.helpers import put, read


def opened(folder: Path) -> LocalStore:
    store = LocalStore(folder, Limits(), Quota(tensors=20_000), keep_versions=100)
    store.open()
    return store


def entered(folder: Path, names: int, versions: int) -> None:
    """A store of `names` tensors, without the waits for the disk that uploads have.

    The oldest and the newest version of each have their contents, the others an empty file, which nothing reads here.
    """
    store = opened(folder)
    put(store, "t0", np.arange(16, dtype=np.float32))
    (row,) = store._index.rows()
    about, page = read_first_page(folder / "tensors" / row.file)
    rest = (folder / "tensors" / row.file).read_bytes()[len(page) :]
    with store._index.change() as transaction:
        for number in range(names):
            name = f"t{number}"
            for version in range(2 if number == 0 else 1, versions + 1):
                identity = f"{number:016x}{version:016x}"
                first = encode_page(replace(about, name=name, id=identity), 0, 0)
                content = first + rest if version in (1, versions) else b""
                (folder / "tensors" / identity).write_bytes(content)
                transaction.put(replace(row, name=name, content=identity, file=identity, version=version))
            transaction.put_alias(alias_of(name, versions))
    store.close()


def alias_of(name: str, version: int) -> Alias:
    return Alias(f"live-{name}", name, version, f'"{name}"', 0, 0)


def lookup_s(store: LocalStore, names: int) -> float:
    """Seconds of a lookup by name, version and alias while many are mapped."""
    for number in range(names):
        for reference in (f"t{number}", f"t{number}@1", f"live-t{number}"):
            assert store.get(reference) is not None
    best = 1.0
    for _ in range(30):
        began = perf_counter()
        for _ in range(400):
            store.get("t0")
            store.get("t0@1")
            store.get("live-t0")
        best = min(best, (perf_counter() - began) / 1200)
    return best


@pytest.mark.slow
def test_a_store_of_a_thousand_names_with_a_hundred_versions_each_answers_as_one_of_ten(tmp_path: Path) -> None:
    figures = {}
    for names, versions in ((10, 1), (1000, 100)):
        folder = tmp_path / str(names)
        entered(folder, names, versions)
        starts = []
        for _ in range(3):
            began = perf_counter()
            store = opened(folder)
            starts.append(perf_counter() - began)
            assert len(store.names()) == names
            store.close()
        store = opened(folder)
        assert store.version_count() == names * versions
        lookup = lookup_s(store, names)
        times = []
        for number in range(30):
            began = perf_counter()
            put(store, "t5", np.arange(number + 1))
            times.append(perf_counter() - began)
        listed = []
        for _ in range(10):
            began = perf_counter()
            found, _ = store.page(10, None)
            listed.append(perf_counter() - began)
        assert len(found) == 10
        assert read(store, "t5").tolist() == list(range(30))
        figures[names] = min(starts), lookup, sorted(times)[15], sorted(listed)[5]
        store.close()
    assert figures[1000][0] < 3, figures
    assert figures[1000][1] < 2 * figures[10][1], figures
    assert figures[1000][2] < 3 * figures[10][2] + 2e-3, figures
    assert figures[1000][3] < 3 * figures[10][3] + 2e-3, figures
