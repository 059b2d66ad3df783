"""The requests whose fields were checked before: one that differs in nothing but its values is only read.

What a request says beside its values is its envelope, with a number in place of each array.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.bounded_cache import BoundedCache
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DType
from app.tensors.gather_call import Call, Device, Encoding, FillValue, OutOfBounds
from app.tensors.operator_signature import Signature
from app.tensors.shape_limits import Limits
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor
from app.wire.json.find_arrays import ArrayPlace
from app.wire.json.read_tensor import WrongTensors, too_long_string
from app.wire.json.read_values import FlatList, Values, flat_list
from app.wire.little_endian_items import Charge


class ArrayTemplate(NamedTuple):
    """An array of a template: which one of those found it is, the tensor's type and shape, and how a flat list of it is
    read.
    """

    number: int
    dtype: DType
    shape: tuple[int, ...] | None
    flat: FlatList | None


def array_template(name: str, values: Values, places_of: Mapping[int, int]) -> ArrayTemplate:
    """The template of `values`; `places_of` has the number of each array by its place in the body."""
    dtype, shape = values.dtype, values.shape
    return ArrayTemplate(places_of[values.first], dtype, shape, flat_list(name, dtype, shape))


class RequestTemplate(NamedTuple):
    """What all but the values of a request said: requests that differ in nothing else are checked once.

    `data` is a str if it is a resident tensor.
    """

    members: int
    data: str | ArrayTemplate
    indices: ArrayTemplate
    parameter: int
    dialect: str
    device: Device
    encoding: Encoding
    out_of_bounds: OutOfBounds
    fill_value: FillValue | None
    batch_dims: int


templates: Final[BoundedCache[tuple[Signature, bytes], RequestTemplate]] = BoundedCache(1024)
"""By the operator's signature and the envelope."""
_MAX_ENVELOPE_BYTES: Final = 1 << 10
"""Of the longest envelope that is kept: those of the specification's examples have 120 to 200."""


def short_envelope(body: Buffer, arrays: int, places: Sequence[ArrayPlace]) -> bytes | None:
    """All but the arrays, where that is short and the arrays are lists, else None."""
    first, end, kind = places[0]
    if arrays == 2:
        other, other_end, other_kind = places[1]
        if len(body) - end + first - other_end + other <= _MAX_ENVELOPE_BYTES and kind > 0 and other_kind > 0:
            return b"".join((body[:first], b"0 ", body[end:other], b"1 ", body[other_end:]))
    elif arrays == 1 and len(body) - end + first <= _MAX_ENVELOPE_BYTES and kind > 0:
        return b"".join((body[:first], b"0 ", body[end:]))
    return None


def fill(
    template: RequestTemplate,
    signature: Signature,
    body: Buffer,
    view: NDArray[np.uint8],
    places: Sequence[ArrayPlace],
    limits: Limits,
    charge: Charge | None,
) -> tuple[Call, Encoding]:
    """The call of a request whose template is known: only its values are read. Raises WrongTensors."""
    _, kept, index_array, parameter, dialect, device, encoding, out_of_bounds, fill_value, batch_dims = template
    data_tensor = kept if isinstance(kept, str) else _read_array("data", kept, view, places, charge)
    index_tensor = _read_array("indices", index_array, view, places, charge)
    if isinstance(data_tensor, Values) or isinstance(index_tensor, Values):
        raise WrongTensors([given for given in (data_tensor, index_tensor) if isinstance(given, Values)])
    call = Call(signature.operator, data_tensor, index_tensor, parameter, dialect, device, signature.pointer)
    call.out_of_bounds, call.fill_value, call.batch_dims = out_of_bounds, fill_value, batch_dims
    if len(body) > limits.string_bytes and type(data_tensor) is PackedStrings:
        call.over_limit = too_long_string(data_tensor, limits)
    return call, encoding


def _read_array(
    name: str, array: ArrayTemplate, view: NDArray[np.uint8], places: Sequence[ArrayPlace], charge: Charge | None
) -> Tensor | Values:
    """The tensor `name` of a request whose template is known, or its values where something is wrong with them."""
    number, dtype, shape, flat = array
    first, end, depth = places[number]
    if flat is not None and depth == 1:
        tensor = flat.read(view, first, end, charge)
        if tensor is not None:
            return tensor
        charge = None  # what was charged stays charged
    values = Values(view, name, dtype, shape, first, end, depth)
    return values.read(charge) or values
