"""The JSON of gradients: the body of a request to a `BackwardCall`, a `BackwardAnswer` to its body.

A body is read as that of a gather is (`gather_messages`), by the same functions.
"""

from __future__ import annotations

import orjson

from app.errors import GatherError
from app.tensors.backward_call import BackwardAnswer, BackwardCall, BackwardSignature
from app.tensors.buffer_type import Buffer
from app.tensors.gather_call import Encoding
from app.tensors.shape_limits import Limits
from app.wire.json.codec_functions import scan_tensors
from app.wire.json.find_arrays import FoundArrays
from app.wire.json.query_of_json_request import read_explain
from app.wire.json.read_tensor import (
    WrongTensors,
    check_framing,
    given_tensor,
    raise_first_fault,
    read_document,
    unsupported_dtype,
    valid_fields,
)
from app.wire.json.write_values import tensor_text
from app.wire.little_endian_items import Charge, Memory, view_of
from app.wire.request_schemas.backward_request import backward_request, check_one_shape
from app.wire.request_schemas.dialect_fields import further_batch_dims
from app.wire.request_schemas.members import ABSENT

_JOINED = 1 << 16


def read_backward(
    body: Buffer, query: bytes, signature: BackwardSignature, limits: Limits, charge: Charge | None = None
) -> tuple[BackwardCall, Encoding]:
    """The gradient that `body` asks for. See `gather_messages.read_call` for order and `charge`."""
    try:
        found = _read_body(body, signature, charge)
    except GatherError as error:
        if query and error.code != "malformed_request":
            read_explain(query, backward_request(signature))
        raise
    if query:
        found[0].explain = read_explain(query, backward_request(signature))
    return found


def _read_body(body: Buffer, signature: BackwardSignature, charge: Charge | None) -> tuple[BackwardCall, Encoding]:
    try:
        return _read_backward(body, signature, charge)
    except (GatherError, WrongTensors) as error:
        raise_first_fault(error, body, charge)
        raise


def _read_backward(body: Buffer, signature: BackwardSignature, charge: Charge | None) -> tuple[BackwardCall, Encoding]:
    view = view_of(body)
    found = FoundArrays._make(scan_tensors.run(view))
    document = read_document(body, found, charge)
    fields = valid_fields(backward_request(signature), document, body, view, found.places, charge)
    given = {
        "indices": given_tensor("indices", fields.indices, body, view, found.places, charge),
        "grad_output": given_tensor("grad_output", fields.grad_output, body, view, found.places, charge),
    }
    check_one_shape(fields)
    batch_dims = further_batch_dims(signature, fields)
    if len(document) + sum(len(document[name]) for name in given) != found.members:
        check_framing(body, charge)
    for name, (_, unknown) in given.items():
        if unknown is not None:
            raise unsupported_dtype(name, unknown)
    sources = [source for source, _ in given.values()]
    indices, grad_output = (source.read(charge) for source in sources)
    if indices is None or grad_output is None:
        raise WrongTensors(sources)
    resident = fields.data_shape is ABSENT
    call = BackwardCall(
        signature.operator,
        indices,
        grad_output,
        fields.tensor if resident else fields.data_shape,
        fields.parameter,
        fields.lda_coeff,
        fields.sparse,
        fields.dialect,
        fields.device,
        parameter_pointer=signature.pointer,
        shape_pointer="/tensor" if resident else "/data_shape",
        batch_dims=batch_dims,
    )
    return call, fields.output_encoding


def write_backward(answer: BackwardAnswer, encoding: Encoding, memory: Memory | None = None) -> bytes | list[Buffer]:
    """The body of `answer`, in pieces where it is large; `memory` is charged with it. Raises what charging raises."""
    pieces: list[Buffer] = []
    for name, tensor in answer.outputs.items():
        pieces.append(f'{"," if pieces else "{"}"{name}":'.encode())
        pieces += tensor_text(tensor, encoding, memory)
    pieces.append(f',"dialect":{orjson.dumps(answer.dialect).decode()},"device":"{answer.device}"}}'.encode())
    return pieces if sum(map(len, pieces)) > _JOINED else b"".join(pieces)
