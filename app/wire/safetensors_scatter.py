"""The body of `POST /tensors/{name}/scatter` in safetensors to a `ScatterCall` (in JSON: `scatter_messages`)."""

from __future__ import annotations

from pydantic import ValidationError

from app.errors import invalid_field
from app.requests.schemas.invalid_fields import InvalidFields, name_hint
from app.requests.schemas.query_fields import ScatterQuery, field_names
from app.tensors.buffer_type import Buffer
from app.tensors.scatter_call import ScatterCall
from app.wire import safetensors
from app.wire.json.lossless_json import shown
from app.wire.little_endian_items import Charge
from app.wire.parse_query_string import escape


def read_safetensors(body: Buffer, query: bytes, charge: Charge | None = None) -> ScatterCall:
    """The scatter that a safetensors body and the query of its URL ask for; `charge` is as of `safetensors.read_call`.

    Raises malformed_request, limit_exceeded (the header), invalid_field, unsupported_dtype, element_count_mismatch and
    value_not_representable.
    """
    entries, start = safetensors.read_layout(body, charge)
    found = {entry.name: entry for entry in entries}
    for name in found:
        if name not in ("indices", "updates"):
            raise invalid_field(
                f"/{escape(name)}",
                f"{shown(name)!a} is not a tensor of this request; indices and updates are",
                name_hint(name, ("indices", "updates"), found),
            )
    fields = safetensors.read_query(query, field_names(ScatterQuery))
    try:
        asked = ScatterQuery.model_validate(fields)
    except ValidationError as refusal:
        raise InvalidFields(refusal, ScatterQuery, fields, "/query").first() from None
    for name in ("indices", "updates"):
        if name not in found:
            raise invalid_field(f"/{name}", f"{name} is missing", f"Add the tensor '{name}' to the body.")
    indices, updates = safetensors.read_tensors(body, start, [found["indices"], found["updates"]], charge)
    return ScatterCall(indices, updates, asked.reduction, "/query/reduction")
