"""The native binary format: a safetensors body to a `Call`, an `Answer` to a safetensors body.

A body is a little-endian uint64 N, N bytes of JSON that describe the tensors, and the tensors' bytes. It is read
strictly, since a length or an offset that is wrong by one would gather other bytes than the sender meant: the tensors
must cover the rest of the body without overlap, hole or remainder. Items are never copied where they are aligned, and
never become Python objects.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from app.bounded_cache import BoundedCache
from app.errors import GatherError, Place, invalid_field
from app.requests.schemas.dialect_fields import apply_dialect
from app.requests.schemas.invalid_fields import InvalidFields, name_hint
from app.requests.schemas.members import ABSENT
from app.requests.schemas.operator_request import operator_query
from app.requests.schemas.query_fields import field_names
from app.requests.schemas.scatter_request import check_reduction
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import BY_SAFETENSORS, DType
from app.tensors.gather_call import Answer, Call, Encoding, FillValue, OutOfBounds
from app.tensors.operator_signature import Signature
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor, aligned, coordinates
from app.wire.json.lossless_json import shown
from app.wire.json.read_alike_values import read_alike_bytes
from app.wire.json.read_fill_value import read_fill_value_text
from app.wire.little_endian_items import BOOL_HINT, Charge, Memory, first_no_bool
from app.wire.parse_query_string import escape, query_fields
from app.wire.safetensors_header import HEADER_BYTES, UNSOUND_HINT, Entry, hint_for_type, read_header, write_header

MAX_HEADER: Final = 1 << 20
"""Most bytes of the JSON header: an honest one of two tensors has some hundreds."""
COPIED: Final = 1 << 20
"""Tensors of up to this many bytes are copied where they are not aligned."""
_FEW: Final = 8
"""Tensors up to which they are read one by one."""
_SMALL: Final = 1 << 8
"""Bytes of a tensor that is read with others."""
_NO_TENSORS: Final[Mapping[Entry, Tensor]] = {}
_REMEMBERED: Final = 1 << 10
_MOST_FORMS: Final = 1 << 10


def read_call(
    body: Buffer, query: bytes, signature: Signature, limits: Limits | None = None, charge: Charge | None = None
) -> tuple[Call, Encoding]:
    """The call that a safetensors body and the query of its URL ask for, and how a JSON answer is to be encoded.

    `charge` is told of what has to be copied, in bytes, before it is; what that raises is raised. `limits` are for
    formats that say shapes without sending as many items: here the bytes of the body have to be there.

    The tensors are the operator's inputs; `data` is left out where the query names a resident tensor. Raises
    malformed_request, limit_exceeded (the header), invalid_field, unsupported_dtype, element_count_mismatch and
    value_not_representable.
    """
    size = header_size(body)
    form = key = None
    if size <= _REMEMBERED and len(query) <= _REMEMBERED:
        key = signature, query, bytes(body[: 8 + size])
        form = _forms.get(key)
    if form is None or form.size != len(body):
        form = _read_form(body, query, signature, charge)
        if key is not None:
            _forms[key] = form
    tensors = _tensors(body, form.start, form.entries, charge)
    asked = form.asked
    updates = None if signature.kind == "gather" else tensors.pop()
    call = Call(
        signature.operator,
        tensors[0] if asked.tensor is ABSENT else asked.tensor,
        tensors[-1],
        form.parameter,
        asked.dialect,
        asked.device,
        signature.query_pointer,
        "/query/device",
        "/query/tensor",
        out_of_bounds=form.out_of_bounds,
        fill_value=form.fill_value,
        batch_dims=form.batch_dims,
    )
    if updates is not None:
        call.updates, call.reduction = updates, asked.reduction
        call.reduction_pointer = "/query/reduction"
    if asked.explain == "true":
        call.explain = True
    return call, asked.output_encoding


def header_size(body: Buffer) -> int:
    """How long the header of `body` is by its own account."""
    return int.from_bytes(body[:8], "little")


class _Form(NamedTuple):
    """What a query and a header ask for: `entries` are the operator's inputs, without the data where it is resident.

    `fill_value` is read from the text that the query has. `parameter`, `batch_dims` and `out_of_bounds` are as a gather
    has them if it says nothing of them, where the operator has none.

    `size` is the bytes of the whole body, and `start` where those of its tensors begin.
    """

    asked: Any
    parameter: int
    batch_dims: int
    out_of_bounds: OutOfBounds
    fill_value: FillValue | None
    entries: tuple[Entry, ...]
    start: int
    size: int


# Callers repeat themselves, and what they repeat takes longer to read than a small gather: the header, which the same
# shapes make the same, and the query. Refusals are not remembered.
_forms: Final[BoundedCache[tuple[Signature, bytes, bytes], _Form]] = BoundedCache(_MOST_FORMS)


def _read_form(body: Buffer, query: bytes, signature: Signature, charge: Charge | None) -> _Form:
    """See `read_call`: all that does not depend on the bytes of the tensors."""
    entries, start = read_layout(body, charge)
    inputs = signature.inputs
    found = {entry.name: entry for entry in entries}
    for name in found:
        if name not in inputs:
            raise invalid_field(
                "/" + escape(name),
                f"{shown(name)!a} is not a tensor of this request; {', '.join(inputs[:-1])} and {inputs[-1]} are",
                name_hint(name, inputs, found),
            )
    asked = read_asked(query, signature)
    if asked.tensor is ABSENT:
        if "data" not in found:
            raise invalid_field(
                "/data",
                "data is missing; the query may name a resident tensor instead, as tensor=NAME",
                "Add the tensor 'data' to the body, or name a resident one in the query, as in ?tensor=items.",
            )
    elif "data" in found:
        raise invalid_field(
            "/query/tensor",
            "the data is given twice: in the body, and by name in the query",
            "Leave out 'tensor' in the query, or the tensor 'data' in the body.",
        )
    for name in inputs:
        if name != "data" and name not in found:
            raise invalid_field(f"/{name}", f"{name} is missing", f"Add the tensor '{name}' to the body.")
    ordered = tuple(found[name] for name in inputs if name in found)
    batch_dims = 0
    out_of_bounds: OutOfBounds = "error"
    fill_value = None
    if signature.kind == "scatter":
        check_reduction(signature, asked.dialect, asked.reduction, "/query/reduction")
    else:
        batch_dims, out_of_bounds = apply_dialect(signature, asked, "/query")
        if asked.fill_value is not ABSENT:
            fill_value = read_fill_value_text(asked.fill_value, out_of_bounds, "/query/fill_value")
    check_entries(ordered)
    parameter = 0 if signature.parameter is None else asked.parameter
    return _Form(asked, parameter, batch_dims, out_of_bounds, fill_value, ordered, start, len(body))


def read_asked(query: bytes, signature: Signature) -> Any:
    """The query of a binary request, as `operator_query` has it. Raises invalid_field; for the name of a tensor it does
    so last.
    """
    model = operator_query(signature)
    fields = read_query(query, field_names(model))
    try:
        return model.model_validate(fields)
    except ValidationError as refusal:
        faults = InvalidFields(refusal, model, fields, "/query")
    for name in field_names(model):
        if name != "tensor":
            faults.raise_first(name)
    raise faults.first()


def read_layout(
    body: Buffer, charge: Charge | None = None, metadata: dict[str, str] | None = None
) -> tuple[tuple[Entry, ...], int]:
    """The tensors of a safetensors body in the order of their bytes, and where those bytes start.

    The entries are within the body, follow one another without overlap or hole, and end where the body ends. Raises
    malformed_request, and limit_exceeded for a header of more than `MAX_HEADER` bytes. `charge` is told what a long
    header takes, in bytes, before it does; what that raises is raised. `metadata` is as `read_header` takes it.
    """
    if len(body) < 8:
        _malformed(f"the body has {len(body)} bytes; the length of the safetensors header alone takes 8")
    size = header_size(body)
    start = 8 + size
    if start > len(body):
        _malformed(f"the safetensors header is {size} bytes long by its own account; {len(body) - 8} bytes follow")
    if size > MAX_HEADER:
        raise GatherError(
            "limit_exceeded",
            f"the safetensors header has {size} bytes; the limit is {MAX_HEADER}",
            facts={"limit": "safetensors_header_bytes", "maximum": MAX_HEADER},
        )
    if charge is not None and size > _REMEMBERED:
        charge(HEADER_BYTES * size)
    header = bytes(body[8:start])
    entries = read_header(header, metadata)
    end = entries[-1].end if entries else 0
    held = len(body) - start
    if end != held:
        what = f"end early: {held} of {end} bytes are there" if end > held else f"are followed by {held - end} bytes"
        _malformed(f"the tensors of the safetensors body {what}")
    return entries, start


def read_tensors(body: Buffer, start: int, entries: Collection[Entry], charge: Charge | None = None) -> list[Tensor]:
    """The tensors of `entries`, checked: first every dtype, then every size, then the values.

    They share the memory of `body` where they are aligned to their items; large ones that are not are moved within a
    body that can be written. Raises unsupported_dtype, element_count_mismatch and value_not_representable, each at
    `/NAME`.
    """
    check_entries(entries)
    return _tensors(body, start, entries, charge)


def check_entries(entries: Collection[Entry]) -> None:
    """First every dtype, then every size. Raises unsupported_dtype and element_count_mismatch."""
    for entry in entries:
        if entry.known is None:
            _unsupported(entry)
    for entry in entries:
        if entry.fault:
            raise GatherError("element_count_mismatch", entry.fault, pointer=f"/{entry.name}")


def _tensors(body: Buffer, start: int, entries: Collection[Entry], charge: Charge | None) -> list[Tensor]:
    alike = _alike_tensors(body, start, entries, charge) if len(entries) > _FEW else _NO_TENSORS
    if len(body) <= COPIED:
        return [alike.get(entry) or _tensor(body, start, entry, charge) for entry in entries]
    places = _align(memoryview(body), start, entries)
    return [alike.get(entry) or _tensor(body, places[entry], entry, charge) for entry in entries]


def _alike_tensors(body: Buffer, start: int, entries: Collection[Entry], charge: Charge | None) -> dict[Entry, Tensor]:
    """Small tensors of equal types and shapes, copied together: a lookup has thousands, each of a microsecond."""
    kinds: dict[tuple[str, tuple[int, ...]], list[Entry]] = {}
    for entry in entries:
        if entry.end - entry.begin <= _SMALL:
            kinds.setdefault((entry.dtype, entry.shape), []).append(entry)
    tensors: dict[Entry, Tensor] = {}
    whole = memoryview(body)[start:]
    for (_, shape), same in kinds.items():
        dtype = same[0].known
        assert dtype is not None
        if len(same) == 1:
            continue
        arrays = read_alike_bytes(dtype, shape, [whole[entry.begin : entry.end] for entry in same], charge)
        if arrays is None:
            continue  # one of them has a byte that is no bool
        for entry, array in zip(same, arrays, strict=True):
            tensors[entry] = Tensor(dtype, shape, array, entry.pointer, "whole", entry.pointer, entry.pointer)
    return tensors


def _align(view: memoryview, start: int, entries: Collection[Entry]) -> dict[Entry, int]:
    """From where to count each tensor's bytes, once the tensors that begin between two items have been moved.

    They move towards the header, which has been read, by less than two items. Small ones are left to be copied, but
    all that stands before a large one makes room for it.
    """
    places = dict.fromkeys(entries, start)
    order = sorted(entries, key=lambda entry: entry.begin)
    address = np.frombuffer(view, np.uint8).__array_interface__["data"][0] + start
    shift = 0
    for entry in reversed(order):
        assert entry.known is not None
        size = entry.known.item_size
        over = (address + entry.begin) % size
        if shift or (over and entry.end - entry.begin > COPIED):
            shift = over + -(-max(shift - over, 0) // size) * size
        places[entry] = start - shift
    if view.readonly or shift > start:
        return dict.fromkeys(entries, start)
    for entry in order:
        at = places[entry]
        if at != start:
            view[at + entry.begin : at + entry.end] = view[start + entry.begin : start + entry.end]
    return places


def _unsupported(entry: Entry) -> NoReturn:
    raise GatherError(
        "unsupported_dtype",
        f"{shown(entry.dtype)!a} is not an element type that is read here; of safetensors' types "
        f"{', '.join(BY_SAFETENSORS)} are, and JSON with base64 carries complex128 and string",
        pointer=f"/{entry.name}",
        hint=hint_for_type(str(shown(entry.dtype)), entry.name),
    )


def _tensor(body: Buffer, start: int, entry: Entry, charge: Charge | None) -> Tensor:
    dtype = entry.known
    assert dtype is not None
    items, pointer = entry.items, entry.pointer
    array: NDArray[Any] = (
        np.frombuffer(body, dtype.numpy, items, start + entry.begin) if items else np.empty(0, dtype.numpy)
    )
    if dtype.kind == "bool" and items:
        octets = array.view(np.uint8)
        item = first_no_bool(octets)
        if item >= 0:
            place = Place(pointer, coordinates(item, entry.shape), int(octets[item]))
            raise GatherError("value_not_representable", "a bool is one byte, 0 or 1", places=[place], hint=BOOL_HINT)
    if charge is not None and not array.flags.aligned:
        charge(array.nbytes)
    return Tensor(dtype, entry.shape, aligned(array), pointer, "whole", pointer, pointer)


def check_writable(dtype: DType, pointer: str) -> None:
    """Raises unsupported_dtype where a safetensors answer cannot carry `dtype`: complex128 and string."""
    if dtype.safetensors is None:
        raise GatherError(
            "unsupported_dtype",
            f"a safetensors body cannot carry {dtype.name}; ask for application/json, with output_encoding base64 if "
            "it is large",
            pointer=pointer,
            hint="Send 'Accept: application/json', which carries every type.",
        )


def write_answer(answer: Answer, encoding: Encoding = "values", memory: Memory | None = None) -> list[Buffer]:
    """The safetensors body of `answer` in two pieces, the header and the items as they are, not copied.

    There is nothing to encode, and no memory to charge. Raises unsupported_dtype, see `check_writable`.
    """
    output = answer.output
    if output.dtype.safetensors is None:
        check_writable(output.dtype, "/data")
    items = output.array.view(np.uint8).data
    return [_remembered_header("output", output.dtype, output.shape, len(items)), items]


_remembered_header = lru_cache(256)(write_header)


def read_query(query: bytes, known: Collection[str]) -> dict[str, str]:
    """The fields of a query by name. Raises invalid_field for one that is not `known` or is given twice."""
    fields: dict[str, str] = {}
    if not query:
        return fields
    for name, value in query_fields(query):
        if name not in known:
            listed = f"it may have {', '.join(known)}" if known else "it has none"
            detail = f"{shown(name)!a} is not a field of this query; {listed}"
            raise invalid_field(f"/query/{escape(name)}", detail, name_hint(name, known, fields, " in the query"))
        if name in fields:
            raise invalid_field(f"/query/{name}", f"{name} is given twice", f"Give '{name}' once in the query.")
        fields[name] = value
    return fields


def _malformed(detail: str) -> NoReturn:
    raise GatherError("malformed_request", detail, hint=UNSOUND_HINT)
