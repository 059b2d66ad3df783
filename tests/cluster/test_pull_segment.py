"""A pull that ends late: what has come under the name of its segment meanwhile stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from app.cluster.shard.pull_order import PullSource
from app.cluster.shard.pull_segment import Pull
from app.errors import GatherError
from app.imports.source_urls import AllowedSources
from app.store import LocalStore
from tests.cluster.answering import Handler, answering
from tests.cluster.shard_nodes import order_of
from tests.parity.items import Array
from tests.store.helpers import opened, put, read

ROWS = np.arange(40, dtype=np.int64).reshape(20, 2)
TENSOR = "x.0-20"


@contextmanager
def source(rows: Array, before: Callable[[], object]) -> Iterator[PullSource]:
    """A shard that has these rows, and calls `before` when it is asked for them."""

    class Source(Handler):
        def respond(self) -> None:
            before()
            shape = ",".join(map(str, rows.shape))
            self.answer(200, rows.tobytes(), X_Gathernd_Dtype=rows.dtype.name, X_Gathernd_Shape=shape)

    with answering(Source) as address:
        yield PullSource(address, TENSOR)


def pulled(store: LocalStore, before: Callable[[], object]) -> None:
    with source(ROWS, before) as one:
        Pull(store, TENSOR, order_of(ROWS, one), None, None, AllowedSources(())).run()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    found = opened(tmp_path / "store")
    yield found
    found.close()


@pytest.mark.parametrize("has_other_rows", [False, True])
def test_rows_that_have_come_meanwhile_are_not_replaced(store: LocalStore, *, has_other_rows: bool) -> None:
    if has_other_rows:
        put(store, TENSOR, ROWS + 1)
    with pytest.raises(GatherError) as refusal:
        pulled(store, lambda: put(store, TENSOR, ROWS + 2))
    assert refusal.value.code == "precondition_failed"
    assert store.metadata(TENSOR).sha256 == order_of(ROWS + 2).sha256


def test_other_rows_that_stay_as_they_are_are_replaced(store: LocalStore) -> None:
    put(store, TENSOR, ROWS + 1)
    pulled(store, lambda: None)
    assert store.metadata(TENSOR).sha256 == order_of(ROWS).sha256


@pytest.mark.parametrize("has_come", [True, False])
def test_damaged_rows_are_replaced_unless_others_have_come_meanwhile(
    store: LocalStore, tmp_path: Path, *, has_come: bool
) -> None:
    put(store, TENSOR, ROWS)
    store.metadata(TENSOR)
    for path in (tmp_path / "store" / "tensors").iterdir():
        path.write_bytes(b"")
    come = ROWS + 7
    if has_come:
        with pytest.raises(GatherError) as raised:
            pulled(store, lambda: put(store, TENSOR, come))
        assert raised.value.code == "precondition_failed"
    else:
        pulled(store, lambda: None)
    assert np.array_equal(read(store, TENSOR), come if has_come else ROWS)
