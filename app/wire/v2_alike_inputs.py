"""The small inputs of an infer request that are alike but for their items, read together: a lookup has thousands.

To read one input takes one or two microseconds, as long as a JSON library needs for all that the request says of it.
Inputs are alike whose datatypes and shapes are the same, and the nesting or the number of bytes of their items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.tensors.buffer_type import Buffer
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor
from app.wire.json.read_alike_values import AlikeValues, read_alike, read_alike_bytes, read_alike_strings
from app.wire.json.read_values import Values
from app.wire.little_endian_items import Charge, view_of
from app.wire.v2_request_json import Input

FEW: Final = 8
"""Inputs up to which they are read one by one."""
MOST_BYTES: Final = 1 << 8
"""Of the items of an input that is read with others: beside longer ones, a call is little."""
LONGEST_READY: Final = 1 << 14
"""More than the bytes of the items of any tensor that is `ready` (see `InputItems`)."""
_Key = tuple[str, tuple[int, ...], int, int | None]
Found = Tensor | Values | None
"""A tensor, values with which something is wrong, or None: an input of the same kind as one with which something is."""


class InputItems(NamedTuple):
    """The items of inputs beside the JSON, by their names: packed; where within the input those were that came one by
    one; and tensors, of inputs whose items were read already.
    """

    raws: Mapping[str, Buffer]
    flat: Mapping[str, str] = {}
    ready: Mapping[str, Tensor] = {}


@lru_cache(1 << 12)  # a lookup has three inputs for each feature
def pointers_of(number: int) -> tuple[str, str, str, str]:
    """Of an input: where it is, its items in the JSON, its shape and its datatype."""
    at = f"/inputs/{number}"
    return at, f"{at}/data", f"{at}/shape", f"{at}/datatype"


def read_alike_inputs(
    inputs: Sequence[Input],
    text: Buffer,
    items: InputItems,
    charge: Charge | None,
) -> dict[int, Found]:
    """What was found of those of the inputs that are alike, and of those that are ready, by their places in `inputs`;
    their datatypes are known.

    Of inputs of one kind with which something is wrong, that is the one that comes first: in the nesting, or where that
    is right, in the values. Those that are not there are to be read one by one. `charge` is told what reading takes, in
    bytes, before it does; what that raises is raised.
    """
    kinds: dict[_Key, list[int]] = {}
    found: dict[int, Found] = {}
    for at, (_, name, datatype, _, shape, size, first, end, depth) in enumerate(inputs):
        if name in items.ready:
            found[at] = items.ready[name]
        elif (end - first if size is None else len(items.raws[name])) <= MOST_BYTES:
            kinds.setdefault((datatype, shape, depth, size), []).append(at)
    for (_, _, _, size), places in kinds.items():
        if len(places) == 1:
            continue
        if size is None:
            _read_values(inputs, places, text, charge, found)
        else:
            _read_bytes(inputs, places, items.raws, charge, found)
    return found


def values_of(one: Input, view: NDArray[np.uint8]) -> Values:
    """The values of an input that has them in the JSON, of which `view` has the bytes."""
    assert one.dtype is not None
    return Values(view, one.name, one.dtype, one.shape, one.first, one.end, one.depth, True)


def _read_values(
    inputs: Sequence[Input], places: Sequence[int], text: Buffer, charge: Charge | None, found: dict[int, Found]
) -> None:
    view, whole = view_of(text), memoryview(text)
    texts = [whole[one.first : one.end] for one in map(inputs.__getitem__, places)]
    read = read_alike(values_of(inputs[places[0]], view), texts, charge)
    if not isinstance(read, AlikeValues):
        wrong = values_of(inputs[places[read]], view)
        if wrong.read(charge) is None:
            found |= dict.fromkeys(places)
            found[places[read]] = wrong
        return  # or they are not alike
    dtype, shape, form = inputs[places[0]].dtype, read.shape, read.form
    assert dtype is not None
    for place, array in zip(places, read.arrays, strict=True):
        _, pointer, shape_pointer, dtype_pointer = pointers_of(inputs[place].number)
        if dtype.item_size:
            found[place] = Tensor(dtype, shape, array, pointer, form, shape_pointer, dtype_pointer)
        else:
            found[place] = PackedStrings(
                dtype, shape, array, pointer, form, shape_pointer, dtype_pointer, octets=read.octets
            )


def _read_bytes(
    inputs: Sequence[Input],
    places: Sequence[int],
    raws: Mapping[str, Buffer],
    charge: Charge | None,
    found: dict[int, Found],
) -> None:
    dtype, shape = inputs[places[0]].dtype, inputs[places[0]].shape
    assert dtype is not None
    own = [raws[inputs[place].name] for place in places]
    if not dtype.item_size:
        strings = read_alike_strings(dtype, shape, own, charge)
        if strings is not None:
            arrays, octets = strings
            for place, array in zip(places, arrays, strict=True):
                pointer, _, shape_pointer, dtype_pointer = pointers_of(inputs[place].number)
                found[place] = PackedStrings(
                    dtype, shape, array, pointer, "whole", shape_pointer, dtype_pointer, octets=octets
                )
        return
    items = read_alike_bytes(dtype, shape, own, charge)
    if items is not None:
        for place, array in zip(places, items, strict=True):
            pointer, _, shape_pointer, dtype_pointer = pointers_of(inputs[place].number)
            found[place] = Tensor(dtype, shape, array, pointer, "whole", shape_pointer, dtype_pointer)
