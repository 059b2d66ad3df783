"""The values of many tensors that are alike in all but their items, read in one call.

To read the values of one takes two microseconds, as long as a JSON library needs for a whole small tensor or two. In
one list they are a tensor of one dimension more. Where that is refused, the place says which of them it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DType
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Form, aligned
from app.wire.json.codec_constants import KINDS, SKIP, strings_room
from app.wire.json.codec_functions import read_elements
from app.wire.json.read_values import NO_BYTES, Nesting, Values, nesting_of, outline_of, reading_memory, width
from app.wire.little_endian_items import (
    Charge,
    PackedItemError,
    PackedSizeError,
    bounded_product,
    check_packed,
    first_no_bool,
    unpack,
)

_BYTE: Final = np.dtype(np.uint8)
_START: Final = np.dtype(np.int64)


class AlikeValues(NamedTuple):
    """The items of each tensor, as arrays of a Tensor; for strings they are places in `octets`."""

    shape: tuple[int, ...]
    form: Form
    arrays: list[NDArray[Any]]
    octets: NDArray[np.uint8]


def read_alike(first: Values, texts: Sequence[memoryview], charge: Charge | None = None) -> AlikeValues | int:
    """The values of tensors of the type and shape of `first`, which is the first of `texts`.

    Where they have no shape, their lists are nested alike. Else the number of one with which something is wrong: the
    first whose lists are not nested as they should be, or where all are, the first with an element that is wrong.
    `charge` is told what reading takes, in bytes, before it does. Raises what that raises.
    """
    dtype, shape, form = first.dtype, first.shape, None
    if shape is None:
        found = outline_of(first)
        if found is None:
            return 0
        shape, form = found
        first = replace(first, shape=shape)
    nesting = nesting_of(first)
    if nesting is None:
        return 0
    count = len(texts)
    parts = count * nesting.parts
    leaf, inner, dims = _one_list(nesting, count)
    size = sum(map(len, texts)) + count + 1
    room = parts * width(dtype) if dtype.item_size else strings_room(parts, size)
    if charge is not None:
        charge(size + room + reading_memory(size))
    text = b"[%b]" % b",".join(texts)
    view = np.frombuffer(text, _BYTE)
    place = 0
    if 2 * parts <= size:
        raw = np.empty(room, _BYTE)
        fine, place, _, used, *_ = read_elements.run(
            view, 0, size, KINDS[dtype.name], leaf, inner, parts, dims, raw, first.bare
        )
        if fine:
            items, octets = raw, NO_BYTES
            if not dtype.item_size:
                items, octets = raw[: _START.itemsize * parts], raw[_START.itemsize * parts :][:used]
            carrier = dtype.numpy if dtype.item_size else _START
            arrays = list(items.view(carrier).reshape(count, -1 if parts else 0))
            return AlikeValues(shape, form or nesting.form, arrays, octets)
    nested, where, *_ = read_elements.run(view, 0, size, SKIP, leaf, inner, parts, dims, NO_BYTES, False)
    if not nested:
        if not where:  # read in Python, which does not say where
            return _first_uneven(texts, nesting)
        place = where
    starts = list(accumulate((len(one) + 1 for one in texts[:-1]), initial=1))
    return max(0, bisect_right(starts, place) - 1)


def _first_uneven(texts: Sequence[memoryview], nesting: Nesting) -> int:
    """The number of the first text whose lists are not nested as they should be, 0 where all are."""
    _, leaf, inner, dims, parts = nesting
    for number, text in enumerate(texts):
        view = np.frombuffer(text, _BYTE)
        fine, *_ = read_elements.run(view, 0, len(text), SKIP, leaf, inner, parts, dims.copy(), NO_BYTES, False)
        if not fine:
            return number
    return 0


def read_alike_bytes(
    dtype: DType, shape: tuple[int, ...], raws: Sequence[Buffer], charge: Charge | None = None
) -> list[NDArray[Any]] | None:
    """The items of tensors that are given by as many bytes each; None where something is wrong with one of them.

    The type has items of a fixed size. `charge` is told as by `read_alike`.
    """
    size = len(raws[0])
    try:
        check_packed(dtype, shape, raws[0])
    except PackedSizeError:
        return None
    if charge is not None:
        charge(2 * len(raws) * size)
    joined = b"".join(raws)
    items = aligned(np.frombuffer(joined, dtype.numpy)) if joined else np.empty(0, dtype.numpy)
    if dtype.kind == "bool" and first_no_bool(items.view(_BYTE)) >= 0:
        return None
    return list(items.reshape(len(raws), size // dtype.item_size))


def read_alike_strings(
    dtype: DType, shape: tuple[int, ...], raws: Sequence[Buffer], charge: Charge | None = None
) -> tuple[list[NDArray[Any]], NDArray[np.uint8]] | None:
    """The same of strings in frames: where those of each tensor begin within the octets of all."""
    size, count = len(raws[0]), len(raws)
    items = bounded_product(shape, size + 1)
    if charge is not None:
        charge(count * size)
    try:
        read = unpack(dtype, (count * items,), b"".join(raws), charge)
    except (PackedSizeError, PackedItemError):
        return None
    assert isinstance(read, PackedStrings)
    starts = read.array.reshape(count, items)
    if items and not np.array_equal(starts[:, 0], np.arange(0, count * size, size)):
        return None  # the frames of one end where those of the next have begun
    return list(starts), read.octets


def _one_list(nesting: Nesting, count: int) -> tuple[int, int, NDArray[np.int64]]:
    """What `read_elements` is to hold the list of so many tensors to: `leaf`, `inner` and `dims`."""
    if not nesting.leaf:
        return 1, count, np.empty(0, np.int64)
    outer = [count, *nesting.dims[: nesting.dims.size // 2].tolist()]
    return nesting.leaf + 1, nesting.inner, np.array(outer + outer, np.int64)
