"""A scatter to one range as bytes: what is written is read again, and what is not sound is refused."""

from __future__ import annotations

import numpy as np
import orjson
import pytest

from app.cluster.range_scatter import NO_ROWS, RangeScatter, ScatterOrder, keys_of
from app.errors import GatherError
from app.keys.key_column import KeyColumn
from app.store.files.key_files import wanted_column
from app.tensors.dtypes import DTYPES
from app.tensors.string_tensor import PackedStrings


@pytest.mark.parametrize("body", [b"", b"{}\n", b"x" * 5000, b'{"epoch":-1}\n'])
def test_what_is_no_order_is_refused(body: bytes) -> None:
    with pytest.raises(GatherError) as found:
        RangeScatter.from_body(body)
    assert found.value.code == "invalid_field"


@pytest.mark.parametrize(
    "keys", [KeyColumn.integers(np.array([5, -7, 2**62])), KeyColumn.of_strings(["a", "", "ä" * 9])]
)
@pytest.mark.parametrize("removes", [False, True])
def test_a_change_by_key(keys: KeyColumn, removes: bool) -> None:
    named, size = keys_of(keys)
    order = ScatterOrder(1, DTYPES["float32"], 0, 2, "add", "k", "d", None, keys.dtype, 3, size, removes)
    updates = np.arange(0 if removes else 6, dtype=np.float32)
    body = b"".join(RangeScatter(order, NO_ROWS, updates, named).pieces())
    found = RangeScatter.from_body(body)
    assert found.order == order
    assert not len(found.rows)
    assert found.updates.tolist() == updates.tolist()
    assert found.keys is not None
    assert wanted_column(found.keys if isinstance(found.keys, PackedStrings) else found.keys.array).tolist() == (
        keys.tolist()
    )
    with pytest.raises(GatherError):
        RangeScatter.from_body(body[:-8])


@pytest.mark.parametrize("keys", [KeyColumn.integers(np.array([5, 6])), KeyColumn.of_strings(["abcd", "efgh"])])
@pytest.mark.parametrize("removes", [False, True])
def test_a_shard_that_does_not_know_changes_by_key_refuses_them(keys: KeyColumn, removes: bool) -> None:
    named, size = keys_of(keys)
    order = ScatterOrder(1, DTYPES["float32"], 0, 0, "none", "k", "d", None, keys.dtype, 2, size, removes)
    line, _, rest = b"".join(RangeScatter(order, NO_ROWS, np.empty(0, np.float32), named).pieces()).partition(b"\n")
    known = {name: value for name, value in orjson.loads(line).items() if "key_" not in name and name != "removes"}
    with pytest.raises(GatherError) as found:
        RangeScatter.from_body(orjson.dumps(known) + b"\n" + rest)
    assert found.value.code == "invalid_field"


def test_a_change_by_key_that_names_rows_too_is_refused() -> None:
    named, size = keys_of(KeyColumn.integers(np.array([5])))
    order = ScatterOrder(1, DTYPES["float32"], 1, 0, "none", "k", "d", None, "int64", 1, size)
    with pytest.raises(GatherError) as found:
        RangeScatter.from_body(b"".join(RangeScatter(order, NO_ROWS, np.empty(0, np.float32), named).pieces()))
    assert found.value.places[0].pointer == "/count"


def test_strings_that_are_not_framed_are_refused() -> None:
    named, size = keys_of(KeyColumn.of_strings(["abcd", "efgh"]))
    for count, octets in ((2, 255), (1, 0), (1 << 40, 0)):
        order = ScatterOrder(1, DTYPES["int64"], 0, 0, "none", "k", "", None, "string", count, size, True)
        body = bytearray(b"".join(RangeScatter(order, NO_ROWS, np.empty(0, np.int64), named).pieces()))
        body[body.index(b"\n") + 1] |= octets
        with pytest.raises(GatherError) as found:
            RangeScatter.from_body(bytes(body))
        assert found.value.code == "invalid_field"
