"""A thousand names with a hundred versions each: the store starts, lists, looks up and takes uploads as one of ten."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from time import thread_time

import numpy as np
import pytest

from app.catalogue.records import Alias
from app.store import LocalStore, Quota
from app.store.files.tensor_file import encode_page
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
                transaction.put(replace(row, name=name, content=identity, file=identity, number=version))
            transaction.put_alias(alias_of(name, versions))
    store.close()


def alias_of(name: str, version: int) -> Alias:
    return Alias(f"live-{name}", name, version, f'"{name}"', 0, 0)


def looked_up(store: LocalStore, names: int) -> None:
    """Map all that a lookup by name, version and alias may find."""
    for number in range(names):
        for reference in (f"t{number}", f"t{number}@1", f"live-t{number}"):
            assert store.get(reference) is not None


@dataclass
class Times:
    """Seconds of processor time of this thread, measured many times: of a lookup, an upload and a page of a listing."""

    lookups: list[float] = field(default_factory=list)
    uploads: list[float] = field(default_factory=list)
    pages: list[float] = field(default_factory=list)

    def measure(self, store: LocalStore, turn: int) -> None:
        """Measure each once."""
        began = thread_time()
        for _ in range(400):
            store.get("t0")
            store.get("t0@1")
            store.get("live-t0")
        self.lookups.append((thread_time() - began) / 1200)
        began = thread_time()
        put(store, "t5", np.arange(turn + 1))
        self.uploads.append(thread_time() - began)
        began = thread_time()
        found, _ = store.page(10, None)
        self.pages.append(thread_time() - began)
        assert len(found) == 10


@pytest.mark.soak
def test_a_store_of_a_thousand_names_with_a_hundred_versions_each_answers_as_one_of_ten(tmp_path: Path) -> None:
    """By the processor's time, both stores in turns: a busy machine does not matter."""
    sizes = {10: 1, 1000: 100}
    for names, versions in sizes.items():
        entered(tmp_path / str(names), names, versions)
    began = thread_time()
    store = opened(tmp_path / "1000")
    start = thread_time() - began
    assert len(store.names()) == 1000
    store.close()
    stores = {names: opened(tmp_path / str(names)) for names in sizes}
    times = {names: Times() for names in sizes}
    for names, store in stores.items():
        assert store.version_count() == names * sizes[names]
        looked_up(store, names)
    for turn in range(30):
        for names, store in stores.items():
            times[names].measure(store, turn)
    for store in stores.values():
        assert read(store, "t5").tolist() == list(range(30))
        store.close()
    few, many = times[10], times[1000]
    # Far less than ten thousand times as much.
    assert start < 30
    assert min(many.lookups) < 20 * min(few.lookups), times
    assert median(many.uploads) < 40 * median(few.uploads) + 10e-3, times
    assert median(many.pages) < 40 * median(few.pages) + 10e-3, times
