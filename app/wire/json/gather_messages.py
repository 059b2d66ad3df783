"""The native JSON codec: the bodies of requests to operators to a `Call`, an `Answer` to its body.

A body is read in three steps: `find_arrays` finds the values of the tensors and cuts them out, a JSON library reads the
rest (`body_without_arrays`), and `read_values` reads the values straight into arrays. Whatever is refused is held
against the whole grammar (`grammar_and_duplicate_keys`) first, for what is no JSON is refused as that, wherever else it
is wrong.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from app.errors import GatherError
from app.tensors.buffer_type import Buffer
from app.tensors.gather_call import Call, Encoding, OutOfBounds
from app.tensors.operator_signature import Signature
from app.tensors.shape_limits import Limits
from app.wire.json.codec_constants import PLAIN_NUMBERS
from app.wire.json.codec_functions import scan_tensors
from app.wire.json.find_arrays import FoundArrays
from app.wire.json.read_base64 import Packed
from app.wire.json.read_fill_value import read_fill_value
from app.wire.json.read_tensor import (
    WrongTensors,
    check_framing,
    first_too_long_string,
    given_tensor,
    raise_first_fault,
    read_document,
    unsupported_dtype,
    valid_fields,
)
from app.wire.json.read_values import Values
from app.wire.json.validated_fields_cache import RequestTemplate, array_template, fill, short_envelope, templates
from app.wire.json.write_values import is_long, write_answer
from app.wire.little_endian_items import Charge
from app.wire.request_schemas.dialect_fields import apply_dialect
from app.wire.request_schemas.gather_request import NamedTensor
from app.wire.request_schemas.operator_request import operator_request
from app.wire.request_schemas.scatter_request import check_reduction

__all__ = [
    "is_long",
    "read_call",
    "write_answer",
]

_BYTE: Final = np.dtype(np.uint8)


def read_call(
    body: Buffer, signature: Signature, limits: Limits, charge: Charge | None = None
) -> tuple[Call, Encoding]:
    """The call that `body` asks of an operator, and how its answer is to be written. Raises GatherError.

    What is wrong is refused in this order: malformed_request; invalid_field; unsupported_dtype, for a name that is no
    type; element_count_mismatch; value_not_representable; of the last three in the order of the inputs. A string that
    is too long is left in the call's `over_limit`, for others come before it.
    `charge` is told what the items will take, in bytes, before they do; what it raises is raised.
    """
    try:
        return _read_call(body, signature, limits, charge)
    except (GatherError, WrongTensors) as error:
        raise_first_fault(error, body, charge)
        raise


def _read_call(body: Buffer, signature: Signature, limits: Limits, charge: Charge | None) -> tuple[Call, Encoding]:
    view = np.frombuffer(body, _BYTE)
    if type(body) is not bytes:
        view.flags.writeable = False  # as `view_of`
    closed, members, numbers, arrays, places = scan_tensors.run(view)
    text = None
    if closed and numbers == PLAIN_NUMBERS:
        text = short_envelope(body, arrays, places)
        if text is not None:
            template = templates.get((signature, text))
            if template is not None and template.members == members:
                return fill(template, signature, body, view, places, limits, charge)
    inputs = signature.inputs
    found = FoundArrays(closed, members, numbers, arrays, places)
    document = read_document(body, found, charge, len(inputs))
    fields: Any = valid_fields(operator_request(signature), document, body, view, places, charge)
    given: dict[str, Values | Packed] = {}
    unknown: dict[str, str | None] = {}
    resident = None
    for name in inputs:
        value = getattr(fields, name)
        if isinstance(value, NamedTensor):
            resident = value.tensor
        else:
            given[name], unknown[name] = given_tensor(name, value, body, view, places, charge)
    batch_dims = 0
    out_of_bounds: OutOfBounds = "error"
    fill_value = None
    if signature.kind == "scatter":
        check_reduction(signature, fields.dialect, fields.reduction, "/reduction")
    else:
        batch_dims, out_of_bounds = apply_dialect(signature, fields)
        if "fill_value" in document:
            fill_value = read_fill_value(fields.fill_value, out_of_bounds, "/fill_value")
    if len(document) + sum([len(document[name]) for name in inputs]) != members:
        check_framing(body, charge)

    for name, dtype in unknown.items():
        if dtype is not None:
            raise unsupported_dtype(name, dtype)
    read = {name: source.read(charge) for name, source in given.items()}
    tensors = {name: tensor for name, tensor in read.items() if tensor is not None}
    if len(tensors) < len(given):
        raise WrongTensors([*given.values()])
    call = Call(
        signature.operator,
        tensors["data"] if resident is None else resident,
        tensors["indices"],
        0 if signature.parameter is None else fields.parameter,
        fields.dialect,
        fields.device,
        signature.pointer,
    )
    if signature.kind == "scatter":
        call.updates, call.reduction = tensors["updates"], fields.reduction
    else:
        call.out_of_bounds, call.fill_value, call.batch_dims = out_of_bounds, fill_value, batch_dims
    if len(body) > limits.string_bytes:
        # Indices of strings are refused for their type.
        call.over_limit = first_too_long_string([tensors[name] for name in tensors if name != "indices"], limits)
    if (
        text is not None
        and signature.kind == "gather"
        and not any(isinstance(source, Packed) for source in given.values())
    ):
        places_of = {place[0]: number for number, place in enumerate(places)}
        kept = {
            name: array_template(name, source, places_of)
            for name, source in given.items()
            if isinstance(source, Values)
        }
        templates[signature, text] = RequestTemplate(
            members,
            kept["data"] if resident is None else resident,
            kept["indices"],
            call.parameter,
            fields.dialect,
            fields.device,
            fields.output_encoding,
            out_of_bounds,
            fill_value,
            batch_dims,
        )
    return call, fields.output_encoding
