"""JSON requests by their parts, for the tests of the native codec."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from app.errors import GatherError, Place
from app.formats.json.read_request import read_request
from app.json_text.grammar import FramingFault, check_framing
from app.memory.budget import UNCOUNTED, Memory
from app.tensors.buffer_type import Buffer
from app.tensors.gather_call import Call, Encoding
from app.tensors.operator_signature import AXIS, BATCH_DIMS, Signature
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor
from tests.strings import items

DIALECTS = ("onnx-13", "onnx-12", "onnx-11", "openvino-8")
SIGNATURES = {
    "gathernd": Signature("gathernd", (BATCH_DIMS,), DIALECTS),
    "gather": Signature("gather", (AXIS,), DIALECTS),
}
INDICES = '{"dtype": "int64", "shape": [1, 1], "values": [0]}'
DATA = '{"dtype": "int8", "shape": [1], "values": [0]}'


def request(data: str = DATA, indices: str = INDICES, rest: str = "") -> bytes:
    """A body with these tensors; `rest` follows, with its own comma."""
    return f'{{"data": {data}, "indices": {indices}{rest}}}'.encode()


def tensor(dtype: str, values: str, shape: str | None = None, key: str = "values") -> str:
    """A tensor as a request has it."""
    given = "" if shape is None else f'"shape": {shape}, '
    return f'{{"dtype": "{dtype}", {given}"{key}": {values}}}'


def read_call(body: Buffer, signature: Signature, limits: Limits, memory: Memory = UNCOUNTED) -> tuple[Call, Encoding]:
    """The call that `body` makes, and how its answer is to be encoded."""
    return read_request(body, b"", signature, limits, memory)


def framing_fault(body: Buffer, *, bare: bool = False) -> tuple[str, str | None, Sequence[Place]] | None:
    """What makes `body` no JSON document, and how to mend it; None if nothing does."""
    try:
        check_framing(body, bare=bare)
    except FramingFault as fault:
        return fault.detail, fault.hint, fault.places
    return None


def call(body: Buffer, operator: Any = "gathernd", limits: Limits | None = None) -> Call:
    """The call that `body` makes, or its refusal; a limit is refused by the service, when it has planned."""
    found, _ = read_call(body, SIGNATURES[operator], limits or Limits())
    if found.over_limit is not None:
        raise found.over_limit
    return found


def made(dtype: str, values: str, shape: str | None = None, key: str = "values") -> Tensor:
    """The data tensor that a request with these items makes."""
    data = call(request(tensor(dtype, values, shape, key))).data
    assert isinstance(data, Tensor)
    return data


def refused(
    body: bytes, code: str, pointer: str | None = None, operator: Any = "gathernd", **limits: int
) -> GatherError:
    """The refusal of `body`, which has this code, and this pointer if there is one."""
    with pytest.raises(GatherError) as caught:
        call(body, operator, Limits(**limits))
    error = caught.value
    assert (error.code, [place.pointer for place in error.places]) == (code, [] if pointer is None else [pointer])
    assert error.total == len(error.places)
    return error


STRINGS_OF_40 = Limits(string_bytes=40)


def outcome(read: Callable[..., Any], body: Buffer, operator: str) -> tuple[Any, ...]:
    """All that a reader makes of a body: each bit and pointer of the call, or each word and place of the error."""
    try:
        call, encoding = read(body, SIGNATURES[operator], STRINGS_OF_40)
        if call.over_limit is not None:
            raise call.over_limit
    except GatherError as error:
        places = [(place.pointer, place.position, repr(place.value)) for place in error.places]
        return error.code, places, error.total, dict(error.facts), error.detail, error.hint
    tensors = map(_described, (call.data, call.indices))
    return "read", *tensors, call.operator, call.parameters, call.dialect, call.device, call.at, encoding


def _described(data: Tensor | str) -> Any:
    if isinstance(data, str):
        return data
    strings = data.dtype.kind == "string"
    found: Any = items(data).tolist() if strings else (data.array.dtype.str, data.array.tobytes())
    assert data.array.ndim == 1
    assert data.array.flags.c_contiguous
    assert data.array.flags.aligned
    return data.dtype.name, data.shape, found, data.pointer, data.form, data.shape_pointer, data.dtype_pointer
