from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.errors import GatherError
from app.store import LocalStore
from app.store.files import write_uploaded_tensor
from app.store.files.write_uploaded_tensor import UploadSpec
from app.tensors.dtypes import DTYPES
from app.tensors.shape_limits import Limits
from tests.for_each import for_each
from tests.store.helpers import files, packed, put, read, uploaded

NUMBERS = [name for name, row in DTYPES.items() if row.kind not in ("string", "bool") and name != "bfloat16"]


def send(store: LocalStore, dtype: str, shape: tuple[int, ...], raw: bytes, step: int = 5, **options: Any) -> str:
    return store.put(uploaded(store, UploadSpec("x", DTYPES[dtype], shape, **options), raw, step))[0].sha256


@for_each("fortran", [False, True])
@for_each("swap", [False, True])
@for_each("name", NUMBERS)
def test_other_orders_of_bytes_and_axes_give_the_same_content(
    store: LocalStore, name: str, swap: bool, fortran: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_uploaded_tensor, "_CHUNK_BYTES", 64)
    items = np.arange(7 * 5 * 3).reshape(7, 5, 3).astype(DTYPES[name].numpy)
    sha256 = put(store, "plain", items)[0].sha256
    sent = items.byteswap() if swap else items
    raw = sent.tobytes("F" if fortran else "C")
    assert send(store, name, items.shape, raw, swap=swap, fortran=fortran) == sha256
    assert read(store, "x").tobytes() == items.tobytes()


@for_each("length", [0, 1, 7, 9, 16])
@for_each("options", [{}, {"swap": True}, {"fortran": True}])
def test_a_wrong_number_of_bytes_is_refused(
    store: LocalStore, folder: Path, length: int, options: dict[str, bool]
) -> None:
    with pytest.raises(GatherError, match="element_count_mismatch"):
        send(store, "int32", (1, 2), bytes(length), **options)
    assert files(folder) == set()


@for_each("fortran", [False, True])
def test_a_bool_that_is_neither_is_named_by_its_place(store: LocalStore, fortran: bool) -> None:
    items = np.zeros((3, 4), np.uint8)
    items[1, 2] = 7
    with pytest.raises(GatherError, match="value_not_representable") as caught:
        send(store, "bool", (3, 4), items.tobytes("F" if fortran else "C"), fortran=fortran)
    assert (caught.value.places[0].position, caught.value.places[0].value) == ((1, 2), 7)


@for_each("step", [1, 3, 1000])
def test_strings_may_be_cut_anywhere(store: LocalStore, step: int) -> None:
    texts = ["", "a", "ß" * 100, "\0", "𝄞"]
    send(store, "string", (5,), packed(texts), step)
    assert read(store, "x").tolist() == texts


@for_each(
    ("raw", "code"),
    [
        (packed(["a"]), "element_count_mismatch"),
        (packed(["a", "b", "c"]), "element_count_mismatch"),
        (packed(["a", "b"])[:-1], "element_count_mismatch"),
        (packed(["a", "b"]) + b"\0", "element_count_mismatch"),
        (packed(["a", "b"]) + bytes(4), "element_count_mismatch"),
        (packed(["a"]) + struct.pack("<I", 1) + b"\xff", "value_not_representable"),
        (packed(["a"]) + struct.pack("<I", 3) + b"\xed\xa0\x80", "value_not_representable"),
        (packed(["a"]) + struct.pack("<I", 2**32 - 1) + b"x", "limit_exceeded"),
        (packed(["a", "b" * 101]), "limit_exceeded"),
        (b"", "element_count_mismatch"),
    ],
)
@for_each("step", [1, 1000])
def test_bad_framing_of_strings_is_refused(folder: Path, raw: bytes, code: str, step: int) -> None:
    store = LocalStore(folder, Limits(string_bytes=100))
    store.open()
    with pytest.raises(GatherError, match=code):
        send(store, "string", (2,), raw, step)
    assert files(folder) == set()
    store.close()


@for_each(
    ("shape", "limit"),
    [((1,) * 33, "rank"), ((2**63,), "dimension"), ((2**33 + 1,), "elements"), ((0, 2**40, 2**40), "bytes")],
)
def test_shapes_over_the_limits_are_refused(store: LocalStore, shape: tuple[int, ...], limit: str) -> None:
    with pytest.raises(GatherError, match="limit_exceeded") as caught:
        store.upload(UploadSpec("x", DTYPES["float32"], shape))
    assert caught.value.facts["limit"] == limit
