"""Reads a safetensors body and the query of its URL into the call of an operator, a gradient, a lookup or a scatter.

A body consists of a little-endian uint64 N, N bytes of JSON that describe the tensors, and the tensors' bytes. Parsing
is strict, because a length or offset that is off by one would gather bytes that the sender did not mean: the tensors
must cover the rest of the body without overlap, gap or remainder. Items are not copied if they are aligned, and never
become Python objects. The query contains the fields that a JSON request has in its body; for a lookup, they are JSON
text in the header's metadata.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

from app.errors import GatherError, invalid_field
from app.formats.fields_in_query import parse_explain, read_document, read_explain
from app.formats.safetensors.header import (
    HEADER_BYTES,
    UNSOUND_HINT,
    Entry,
    check_header_size,
    hint_for_type,
    read_header,
)
from app.formats.safetensors.string_keys import StringKeys, StringKeysReader, with_string_keys
from app.json_text.lossless_json import shown
from app.memory.budget import UNCOUNTED, Memory
from app.requests.envelope_cache import LONGEST, Validated, envelopes
from app.requests.lookup_beside_arrays import validate_lookup
from app.requests.read_call import FAMILIES, finish_validation, make_call, read_arrays, validate
from app.requests.request import QUERY, ReadArray, Request
from app.requests.schemas.field_hints import name_hint
from app.requests.schemas.gather_request import SEPARATE_TENSOR
from app.requests.schemas.lookup_request import LookupParameters
from app.requests.split_query_string import escape
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import BY_SAFETENSORS
from app.tensors.gather_call import Encoding
from app.tensors.little_endian_items import unpack
from app.tensors.lookup_call import LOOKUP
from app.tensors.operator_signature import Signature
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor

_SHORT_HEADER: Final = 1 << 10
"""Maximum size in bytes of a header that is read without charging memory."""
_LOOKUP_TEXT: Final = f"/__metadata__/{LOOKUP}"
_WHERE: Final = f"the text '{LOOKUP}' of __metadata__"


@dataclass(frozen=True, slots=True, eq=False)
class _CachedLayout:
    """The cached result for a header and query.

    `entries` are the tensors with their names in a document, `start` is the offset of their bytes, `size` is the length
    of the whole body, and `explain` says whether the query requests an explanation.
    """

    entries: tuple[tuple[str, Entry | StringKeys], ...]
    start: int
    size: int
    explain: bool


def read_request(
    body: Buffer, query: bytes, row: Signature, limits: Limits, memory: Memory = UNCOUNTED
) -> tuple[Any, Encoding]:
    """Read a body and the query of its URL. Returns the call, and the encoding of a JSON response.

    Charges `memory` for copies. Raises malformed_request, limit_exceeded (for the header), invalid_field,
    unsupported_dtype, element_count_mismatch, value_not_representable, and any error of charging.
    """
    size = header_size(body)
    envelope = b"%b?%b" % (bytes(body[: 8 + size]), query) if size + len(query) <= LONGEST else b""
    validated = envelopes.get((row, envelope))
    if validated is None or validated.ready.size != len(body):
        validated = _validate(body, query, row, limits, memory)
        if envelope:
            envelopes.keep(row, envelope, validated)
    ready: _CachedLayout = validated.ready
    view, start = memoryview(body), ready.start
    given: dict[str, ReadArray] = {}
    strings: StringKeysReader | None = None
    for name, entry in ready.entries:
        if isinstance(entry, StringKeys):
            strings = strings or StringKeysReader(ready.entries, view[start:], memory)
            given[name] = strings.read, (entry,)
        else:
            given[name] = _read, (entry, view[start + entry.begin : start + entry.end], memory)
    call = make_call(row, validated, read_arrays(given), limits)
    if ready.explain:
        call.explain = True
    return call, validated.encoding


def header_size(body: Buffer) -> int:
    """Return the length of the header that `body` declares."""
    return int.from_bytes(body[:8], "little")


def _validate(body: Buffer, query: bytes, row: Signature, limits: Limits, memory: Memory) -> Validated:
    """Validate everything in a request except the bytes of its tensors."""
    metadata: dict[str, str] = {}
    entries, start = read_layout(body, memory, metadata)
    found = with_string_keys(entries)
    if row.kind == "lookup":
        text = metadata.get(LOOKUP)
        if text is None:
            raise invalid_field(
                _LOOKUP_TEXT,
                f"the header has no text {LOOKUP!r} in its __metadata__",
                f"Add the text '{LOOKUP}' to __metadata__, with the JSON of the request without the arrays.",
            )
        named, validated = validate_lookup(
            text, _LOOKUP_TEXT, found, lambda name: f"/{escape(name)}", "a tensor", limits, memory
        )
        explain = read_explain(query, LookupParameters, _WHERE) if query else False
    else:
        named, validated, explain = _validate_query(found, query, row, limits)
    return replace(validated, ready=_CachedLayout(tuple(named.items()), start, len(body), explain))


def _validate_query(
    found: Mapping[str, Entry | StringKeys], query: bytes, row: Signature, limits: Limits
) -> tuple[dict[str, Entry | StringKeys], Validated, bool]:
    """Validate the tensors and the query fields of a request. Returns the tensors by input, the result, and `explain`.

    Raises invalid_field.
    """
    inputs = row.inputs_beside(found)
    known = f"{', '.join(inputs[:-1])} and {inputs[-1]} are" if len(inputs) > 1 else f"{inputs[0]} is"
    for name in found:
        if name not in inputs:
            raise invalid_field(
                "/" + escape(name),
                f"{shown(name)!a} is not a tensor of this request; {known}",
                name_hint(name, inputs, found),
            )
    document, explain = read_document(query, FAMILIES[row.kind].model(row))
    fields, optional = row.resident_fields, row.optional
    named = {name: document.pop(field) for name, field in fields.items() if field in document}
    document |= {name: SEPARATE_TENSOR for name in inputs if name in found or name not in optional}
    document |= {name: {"tensor": tensor} for name, tensor in named.items()}
    key = b"\0%b?%b" % (",".join(found).encode(), query)
    validated = envelopes.get((row, key))
    if validated is None:
        request = Request(document, None, QUERY)
        valid = validate(row, request, limits)
        parse_explain(explain)
        _check_inputs(found, inputs, named, optional, fields)
        validated, _ = finish_validation(row, request, valid)
        envelopes.keep(row, key, validated)
    return {name: found[name] for name in inputs if name in found}, validated, explain == "true"


def _check_inputs(
    found: Collection[str],
    inputs: Collection[str],
    named: Collection[str],
    optional: Collection[str],
    fields: Mapping[str, str],
) -> None:
    """Raise invalid_field for a tensor that is missing or given twice.

    The inputs in `named` are resident tensors; `fields` are the query fields that can contain a resident tensor's name.
    """
    for name in named:
        if name in found:
            raise invalid_field(
                f"/query/{fields[name]}",
                f"the {name} was sent twice: in the body, and by name in the query",
                f"Leave out '{fields[name]}' in the query, or the tensor '{name}' in the body.",
            )
    for name in inputs:
        if name in found or name in named or name in optional:
            continue
        field = fields.get(name)
        if field is not None:
            raise invalid_field(
                f"/{name}",
                f"{name} is missing; the query may name a resident tensor instead, as {field}=NAME",
                f"Add the tensor '{name}' to the body, or name a resident one in the query, as in ?{field}=items.",
            )
        raise invalid_field(f"/{name}", f"{name} is missing", f"Add the tensor '{name}' to the body.")


def read_layout(
    body: Buffer, memory: Memory = UNCOUNTED, metadata: dict[str, str] | None = None
) -> tuple[tuple[Entry, ...], int]:
    """Parse the layout of a safetensors body. Returns the tensors in the order of their bytes, and the bytes' offset.

    The entries cover the rest of the body without overlap or gap. Charges `memory` for a long header. `metadata` is as
    in `read_header`. Raises malformed_request, limit_exceeded for a header of more than `MAX_HEADER` bytes, and any
    error of charging.
    """
    if len(body) < 8:
        _malformed(f"the body has {len(body)} bytes; the length of the safetensors header alone takes 8")
    size = header_size(body)
    start = 8 + size
    if start > len(body):
        _malformed(f"the safetensors header is {size} bytes long as declared; {len(body) - 8} bytes follow")
    check_header_size(size)
    if size > _SHORT_HEADER:
        memory.charge(HEADER_BYTES * size)
    header = bytes(body[8:start])
    entries = read_header(header, metadata)
    end = entries[-1].end if entries else 0
    held = len(body) - start
    if end != held:
        what = f"end early: {held} of {end} bytes are there" if end > held else f"are followed by {held - end} bytes"
        _malformed(f"the tensors of the safetensors body {what}")
    return entries, start


def _read(entry: Entry, items: memoryview, memory: Memory) -> Tensor:
    """Read the tensor described by an entry from the bytes `items`; see `ReadArray` for errors."""
    dtype, pointer = entry.known, entry.pointer
    if dtype is None:
        raise _unsupported(entry)
    if entry.fault:
        raise GatherError("element_count_mismatch", entry.fault, pointer=pointer)
    return unpack(dtype, entry.shape, items, memory, "", (pointer, pointer, pointer))


def _unsupported(entry: Entry) -> GatherError:
    return GatherError(
        "unsupported_dtype",
        f"{shown(entry.dtype)!a} is not accepted here; the accepted types of safetensors are "
        f"{', '.join(BY_SAFETENSORS)}; JSON with base64 also supports complex128 and string",
        pointer=f"/{entry.name}",
        hint=hint_for_type(str(shown(entry.dtype)), entry.name),
    )


def _malformed(detail: str) -> NoReturn:
    raise GatherError("malformed_request", detail, hint=UNSOUND_HINT)
