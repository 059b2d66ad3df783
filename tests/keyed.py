"""Tables with keys, and requests to them through the readers and writers of every format, without a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.dispatch.choose_backend import BackendChooser
from app.dispatch.request_thread_pool import RequestThreadPool
from app.errors import GatherError
from app.formats.body_formats import JSON, formats_of
from app.kernels import reference
from app.keys.key_column import KeyColumn
from app.keys.key_index import build, new_seed
from app.keys.probe import Search
from app.memory.budget import Budget
from app.operators.registry import ROWS
from app.services.runner import AnyCall
from app.services.service import Service
from app.store import Resident, Store
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Answer
from app.tensors.shape_limits import Limits
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor
from tests.served import served

LIMITS = Limits()
KEYS: Mapping[str, list[Any]] = {
    "int64": [1001, -7, 2**63 - 1, -(2**63), 0],
    "uint64": [1001, 7, 2**64 - 1, 2**63, 0],
    "string": ["anna", "", "jürgen", "a\0b", "anna "],
}
"""Keys of tables of five rows, by their type; each table has its type's name."""
LACKED: Mapping[str, Any] = {"int64": 5, "uint64": 5, "string": "ann"}
TABLE = np.arange(15, dtype=np.float32).reshape(5, 3) + 1


class Column:
    """The keys of a table, which are indexed anew for each search. `count` is the number of rows that it may return."""

    def __init__(self, dtype: str, keys: list[Any]) -> None:
        self.dtype = dtype
        self.keys = keys
        self.count = len(keys)

    def search(self, wanted: KeyColumn | PackedStrings) -> Search:
        texts = self.dtype == "string"
        column = KeyColumn.of_strings(self.keys) if texts else KeyColumn.integers(np.array(self.keys, self.dtype))
        index, _ = build(column, new_seed())
        return index.search(column.rows(0, self.count), wanted)


def table(keys: Column | None, rows: NDArray[Any] = TABLE) -> Resident:
    return Resident(Tensor(DTYPES[rows.dtype.name], rows.shape, rows.reshape(-1)), "content-0", keys=keys)


class Tables(Store):
    """A table for each type of keys, `plain` without keys, and `empty` without rows."""

    def __init__(self) -> None:
        self.tables = {dtype: table(Column(dtype, keys)) for dtype, keys in KEYS.items()}
        self.tables |= {"plain": table(None), "empty": table(Column("int64", []), TABLE[:0])}

    def get(self, reference: str) -> Resident | None:
        return self.tables.get(reference)

    def names(self) -> list[str]:
        return [*self.tables]


@contextmanager
def running(store: Store | None = None, kernel: Any = reference) -> Iterator[Service]:
    pool = RequestThreadPool(2, 8)
    made = Service(LIMITS, store or Tables(), kernel, pool, BackendChooser(threads=2), Budget(2**30))
    try:
        yield made
    finally:
        pool.close()


def run(call: AnyCall, store: Store | None = None, kernel: Any = reference) -> Answer:
    """The answer of a service that has these tables."""
    with running(store, kernel) as made:
        return asyncio.run(_run(made, call))


async def _run(made: Service, call: AnyCall) -> Answer:
    return await made.run(call, served(made.budget))


def ask(document: Any, path: str = "gather", store: Store | None = None, kernel: Any = reference) -> Any:
    """The JSON that answers a JSON request. Raises GatherError."""
    codec = formats_of(ROWS[path].signature)[JSON]
    text = json.dumps(document).encode()
    call, encoding = codec.read(text, b"", ROWS[path].signature, LIMITS, served().memory)
    return json.loads(b"".join(codec.write(run(call, store, kernel), encoding, served().memory)))


def refused(document: Any, path: str = "gather") -> GatherError:
    """The error that refuses a JSON request."""
    with pytest.raises(GatherError) as caught:
        ask(document, path)
    return caught.value


def tensor(dtype: str, shape: list[int], values: list[Any]) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "values": values}


def by_key(dtype: str, keys: list[Any], shape: list[int] | None = None, **more: Any) -> dict[str, Any]:
    """A gather of rows of the table whose keys are of a type."""
    return {"data": {"tensor": dtype}, "keys": tensor(dtype, [len(keys)] if shape is None else shape, keys), **more}
