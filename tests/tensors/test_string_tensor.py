"""Strings that are packed: what is charged for them."""

from __future__ import annotations

import numpy as np
import pytest

from app.tensors.dtypes import DTYPES
from app.tensors.string_frames import HEAD
from app.tensors.string_tensor import PackedStrings
from tests.traced_memory import peak_of

STRING = DTYPES["string"]


def strings(count: int) -> PackedStrings:
    """So many times the string "abcd"."""
    frame = np.frombuffer((4).to_bytes(HEAD, "little") + b"abcd", np.uint8)
    return PackedStrings(STRING, (count,), np.arange(count) * frame.size, octets=np.tile(frame, count))


@pytest.mark.usefixtures("compiled")  # what reads frames in Python takes blocks of half a megabyte
@pytest.mark.parametrize("every", [2, 1000])
def test_filling_strings_takes_no_more_memory_than_it_charges(every: int) -> None:
    given, with_ = strings(1 << 17), strings(1)
    charged: list[int] = []

    def fill() -> PackedStrings:
        where = np.zeros(1 << 17, np.bool_)
        where[::every] = True
        return given.filled(where, with_, charged.append)

    assert fill().packed() == given.packed()
    charged.clear()
    peak = peak_of(fill)
    assert peak < sum(charged) + (1 << 17)  # threads that an earlier test has left count, too
