"""Gradients in safetensors: a body and its query to a `BackwardCall`, a `Answer` to its body."""

from __future__ import annotations

import numpy as np
from pydantic import ValidationError

from app.errors import invalid_field
from app.requests.schemas.backward_request import backward_query, check_one_shape
from app.requests.schemas.dialect_fields import further_batch_dims
from app.requests.schemas.invalid_fields import InvalidFields, name_hint
from app.requests.schemas.members import ABSENT
from app.requests.schemas.query_fields import field_names
from app.tensors.backward_call import BackwardCall, BackwardSignature
from app.tensors.buffer_type import Buffer
from app.tensors.gather_call import Answer, Encoding
from app.tensors.shape_limits import Limits
from app.wire import safetensors
from app.wire.json.lossless_json import shown
from app.wire.little_endian_items import Charge, Memory
from app.wire.parse_query_string import escape
from app.wire.safetensors_header import write_headers

_INPUTS = ("indices", "grad_output")


def read_backward(
    body: Buffer, query: bytes, signature: BackwardSignature, limits: Limits, charge: Charge | None = None
) -> tuple[BackwardCall, Encoding]:
    """The gradient that a safetensors body and the query of its URL ask for; `charge` is as of `safetensors.read_call`.

    Raises malformed_request, limit_exceeded (the header), invalid_field, unsupported_dtype, element_count_mismatch and
    value_not_representable.
    """
    entries, start = safetensors.read_layout(body, charge)
    found = {entry.name: entry for entry in entries}
    for name in found:
        if name not in _INPUTS:
            raise invalid_field(
                f"/{escape(name)}",
                f"{shown(name)!a} is not a tensor of this request; indices and grad_output are",
                name_hint(name, _INPUTS, found),
            )
    model = backward_query(signature)
    fields = safetensors.read_query(query, field_names(model))
    try:
        asked = model.model_validate(fields)
    except ValidationError as refusal:
        raise InvalidFields(refusal, model, fields, "/query").first() from None
    check_one_shape(asked, "/query")
    batch_dims = further_batch_dims(signature, asked, "/query")
    for name in _INPUTS:
        if name not in found:
            raise invalid_field(f"/{name}", f"{name} is missing", f"Add the tensor '{name}' to the body.")
    indices, grad_output = safetensors.read_tensors(body, start, [found[name] for name in _INPUTS], charge)
    resident = asked.data_shape is ABSENT
    call = BackwardCall(
        signature.operator,
        indices,
        grad_output,
        asked.tensor if resident else asked.data_shape,
        asked.parameter,
        asked.lda_coeff,
        asked.sparse == "true",
        asked.dialect,
        asked.device,
        asked.explain == "true",
        signature.query_pointer,
        "/query/tensor" if resident else "/query/data_shape",
        batch_dims,
        "/query",
    )
    return call, asked.output_encoding


def write_backward(answer: Answer, encoding: Encoding = "values", memory: Memory | None = None) -> list[Buffer]:
    """The safetensors body of `answer`: the header, and the items of each tensor as they are, not copied."""
    tensors = answer.outputs
    head = write_headers({name: (tensor.dtype, tensor.shape, tensor.array.nbytes) for name, tensor in tensors.items()})
    return [head, *(tensor.array.view(np.uint8).data for tensor in tensors.values())]
