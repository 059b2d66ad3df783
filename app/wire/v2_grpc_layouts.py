"""Layouts of infer requests over gRPC that came before: messages that are equal but for their arrays and their id.

Callers repeat themselves. A message of a known length whose other bytes are those of one that was read before has its
arrays at the same places, of the same types and shapes, and so is not parsed again.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.bounded_cache import BoundedCache
from app.tensors.dtypes import DTYPES, DType
from app.tensors.gather_call import Call
from app.tensors.operator_signature import OperatorName
from app.tensors.tensor import Tensor
from app.wire.little_endian_items import Charge
from app.wire.protobuf_fields import MessageFields, bits
from app.wire.protobuf_format import BYTES
from app.wire.v2_alike_inputs import pointers_of
from app.wire.v2_grpc_request import ID, RAW, SplitRequest, repeated_head, split
from app.wire.v2_request_json import Head, Model
from app.wire.v2_request_tensors import Request, call_of

_MOST_SIZES: Final = 128
_MOST_OF_A_SIZE: Final = 4
_MOST_SEEN: Final = 1024
_NO_TENSOR: Final = Tensor(DTYPES["int64"], (0,), np.empty(0, np.int64))


class _Array(NamedTuple):
    """Where an input's items are in the message, and what they are."""

    dtype: DType
    items: np.dtype[np.generic]
    shape: tuple[int, ...]
    length: int
    at: int
    pointer: str
    shape_pointer: str
    dtype_pointer: str


class RequestLayout:
    """One layout: the bytes that all its messages share, by their places, and the request that those make."""

    __slots__ = ("_arrays", "_further", "_head", "_identifier", "_shared", "model", "repeated")

    def __init__(
        self,
        model: Model,
        head: Head,
        arrays: tuple[_Array, ...],
        identifier: slice | None,
        shared: tuple[tuple[int, bytes], ...],
    ) -> None:
        self.model = model
        self.repeated: Any = None  # what `app.grpc_api.repeated_gather` remembers for it
        self._head = head
        self._arrays = arrays
        self._identifier = identifier
        self._shared = shared
        self._further = _further_fields(head, model) if model.signature.kind == "gather" else None

    def fits(self, message: bytes) -> bool:
        """Whether a message of this layout's length has it."""
        for at, piece in self._shared:  # noqa: SIM110  (a generator takes longer than the comparisons)
            if not message.startswith(piece, at):
                return False
        return True

    def arrays(self, message: bytes, charge: Charge) -> list[NDArray[np.generic]]:
        """The items of the inputs: views of a message of this layout, or copies where they are not aligned there.

        Raises what charging raises.
        """
        arrays: list[NDArray[np.generic]] = []
        for one in self._arrays:
            array: NDArray[np.generic] = np.frombuffer(message, one.items, one.length, one.at)
            if not array.flags.aligned:
                charge(array.nbytes)
                array = array.copy()
            arrays.append(array)
        return arrays

    def read(self, message: bytes, charge: Charge) -> Request:
        """What a message of this layout asks for, as `read_grpc_request` says it.

        Raises malformed_request for an id that is not UTF-8, and what charging raises.
        """
        tensors = [
            Tensor(one.dtype, one.shape, array, one.pointer, "whole", one.shape_pointer, one.dtype_pointer)
            for one, array in zip(self._arrays, self.arrays(message, charge), strict=True)
        ]
        head, identifier = self._head, None
        if self._identifier is not None:
            try:
                identifier = message[self._identifier].decode() or None
            except UnicodeDecodeError:
                split(message)  # raises the error that says where it stands
                raise
        further = self._further
        if further is None:
            return Request(call_of(head, self.model, tensors, None), identifier, True, head.timeout)
        operator, reference, rest = further
        data = tensors[0] if reference is None else reference
        return Request(Call(operator, data, tensors[-1], *rest), identifier, True, head.timeout)


def _further_fields(head: Head, model: Model) -> tuple[OperatorName, str | None, tuple[Any, ...]]:
    """What all gathers of a layout share: the operator, the resident tensor if there is one, and the fields of `Call`
    behind the indices.
    """
    call = call_of(head, model, [_NO_TENSOR], None)
    reference = None if isinstance(call.data, Tensor) else call.data
    return call.operator, reference, tuple(getattr(call, name) for name in Call.__slots__[3:])


class RequestLayouts:
    """The layouts that came last, by the length of their messages."""

    def __init__(self) -> None:
        self._layouts: BoundedCache[int, tuple[RequestLayout, ...]] = BoundedCache(_MOST_SIZES)
        self._seen: BoundedCache[int, None] = BoundedCache(_MOST_SEEN)

    def find(self, message: bytes) -> RequestLayout | None:
        """The layout of a message, if it came before."""
        for layout in self._layouts.get(len(message), ()):
            if layout.fits(message):
                return layout
        return None

    def add(self, message: bytes, found: SplitRequest, model: Model) -> None:
        """Remember the layout of a message that was read, once a second one of its length has come.

        Left out are long ones, bools and strings, whose items have to be looked at, and versions of tensors, which are
        found anew for each request.
        """
        size = len(message)
        if size not in self._seen:
            self._seen[size] = None
            return
        layout = None if model.resident and found.version else _layout(message, found, model)
        if layout is not None:
            self._layouts[size] = (layout, *self._layouts.get(size, ())[: _MOST_OF_A_SIZE - 1])


def _layout(message: bytes, found: SplitRequest, model: Model) -> RequestLayout | None:
    """The layout of a message that was read without an error; None where it is not to be remembered."""
    head = repeated_head(found, model)
    if head is None or found.first_contents is not None or len(found.raws) != len(head.inputs):
        return None
    shared: list[tuple[int, bytes]] = []
    places: list[int] = []
    identifiers: list[slice] = []
    end = 0
    for number, kind, _, at, after, *_ in MessageFields(message).find(0, len(message), bits((RAW, ID))):
        if kind == BYTES and number in (RAW, ID):
            shared.append((end, message[end:at]))
            end = after
            if number == RAW:
                places.append(at)
            else:
                identifiers.append(slice(at, after))
    shared.append((end, message[end:]))
    arrays = []
    for one in head.inputs:
        dtype, size = one.dtype, len(found.raws[one.number])
        if dtype is None or dtype.kind in ("bool", "string") or not size:
            return None
        pointer, _, shape_pointer, dtype_pointer = pointers_of(one.number)
        length = size // dtype.item_size
        place = places[one.number]
        arrays.append(_Array(dtype, dtype.numpy, one.shape, length, place, pointer, shape_pointer, dtype_pointer))
    if len(identifiers) > 1:
        return None
    return RequestLayout(model, head, tuple(arrays), identifiers[0] if identifiers else None, tuple(shared))
