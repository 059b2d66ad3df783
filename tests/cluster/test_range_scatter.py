"""A scatter to one range as bytes: what is written is read again, and what is not sound is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cluster.range_scatter import RangeScatter, RangeScattered, ScatterOrder
from app.errors import GatherError
from app.tensors.dtypes import DTYPES

NUMBERS = [dtype for dtype in DTYPES.values() if dtype.item_size]


@given(st.sampled_from(NUMBERS), st.integers(0, 5), st.integers(0, 4), st.text("abc~é", min_size=1, max_size=30))
def test_what_is_written_is_read_again(dtype, count, width, key):  # type: ignore[no-untyped-def]
    rows = np.arange(count, dtype=np.int64) * 7
    updates = np.arange(count * width * dtype.item_size, dtype=np.uint8).view(dtype.numpy)
    order = ScatterOrder(3, dtype, count, width, "add", key, "d1", 9)
    read = RangeScatter.from_body(b"".join(RangeScatter(order, rows, updates).pieces()))
    assert read.order == order
    assert read.rows.tolist() == rows.tolist()
    assert read.updates.tobytes() == updates.tobytes()
    assert read.rows.flags.aligned
    assert read.updates.flags.aligned


@pytest.mark.parametrize("body", [b"", b"{}\n", b"x" * 5000, b'{"epoch":-1}\n'])
def test_what_is_no_order_is_refused(body: bytes) -> None:
    with pytest.raises(GatherError) as found:
        RangeScatter.from_body(body)
    assert found.value.code == "invalid_field"


@pytest.mark.parametrize("change", [b"", b"12345678"])
def test_a_body_of_another_size_is_refused(change: bytes) -> None:
    order = ScatterOrder(1, DTYPES["int64"], 2, 1, "none", "k", "")
    body = b"".join(RangeScatter(order, np.zeros(2, np.int64), np.zeros(2, np.int64)).pieces())
    with pytest.raises(GatherError):
        RangeScatter.from_body(body[:-1] + change)


def test_an_answer() -> None:
    found = RangeScattered(7, 2, repeated=True)
    assert RangeScattered.from_json(found.to_json()) == found
