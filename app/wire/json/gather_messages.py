"""The native JSON codec: the bodies of gathers to a `Call`, an `Answer` to its body.

A body is read in three steps: `find_arrays` finds the values of the tensors and cuts them out, a JSON library reads the
rest (`body_without_arrays`), and `read_values` reads the values straight into arrays. Whatever is refused is held
against the whole grammar (`grammar_and_duplicate_keys`) first, for what is no JSON is refused as that, wherever else it
is wrong.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from app.errors import GatherError
from app.tensors.buffer_type import Buffer
from app.tensors.gather_call import Call, Encoding
from app.tensors.operator_signature import Signature
from app.tensors.shape_limits import Limits
from app.tensors.string_tensor import PackedStrings
from app.wire.json.codec_functions import scan_tensors
from app.wire.json.find_arrays import FoundArrays
from app.wire.json.read_base64 import Packed
from app.wire.json.read_fill_value import read_fill_value
from app.wire.json.read_tensor import (
    WrongTensors,
    check_framing,
    given_tensor,
    raise_first_fault,
    read_document,
    too_long_string,
    unsupported_dtype,
    valid_fields,
)
from app.wire.json.read_values import Values
from app.wire.json.validated_fields_cache import RequestTemplate, array_template, fill, short_envelope, templates
from app.wire.json.write_values import is_long, write_answer
from app.wire.little_endian_items import Charge
from app.wire.request_schemas.gather_request import NamedTensor, gather_request

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
    type; element_count_mismatch; value_not_representable; of the last three data before indices. A string that is too
    long is left in the call's `over_limit`, for others come before it.
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
    closed, members, nontrivial_numbers, arrays, places = scan_tensors.run(view)
    text = None
    if closed and not nontrivial_numbers:
        text = short_envelope(body, arrays, places)
        if text is not None:
            template = templates.get((signature, text))
            if template is not None and template.members == members:
                return fill(template, signature, body, view, places, limits, charge)
    document = read_document(body, FoundArrays(closed, members, nontrivial_numbers, arrays, places), charge)
    fields = valid_fields(gather_request(signature), document, body, view, places, charge)
    data: Values | Packed | None = None
    data_unknown = resident = None
    if isinstance(fields.data, NamedTensor):
        resident = fields.data.tensor
    else:
        data, data_unknown = given_tensor("data", fields.data, body, view, places, charge)
    indices, index_unknown = given_tensor("indices", fields.indices, body, view, places, charge)
    fill_value = None
    if "fill_value" in document:
        fill_value = read_fill_value(fields.fill_value, fields.out_of_bounds, "/fill_value")
    if len(document) + len(document["data"]) + len(document["indices"]) != members:
        check_framing(body, charge)

    if data_unknown is not None:
        raise unsupported_dtype("data", data_unknown)
    if index_unknown is not None:
        raise unsupported_dtype("indices", index_unknown)
    data_tensor = resident if data is None else data.read(charge)
    index_tensor = indices.read(charge)
    if data_tensor is None or index_tensor is None:
        raise WrongTensors([source for source in (data, indices) if source is not None])
    call = Call(
        signature.operator,
        data_tensor,
        index_tensor,
        fields.parameter,
        fields.dialect,
        fields.device,
        signature.pointer,
        out_of_bounds=fields.out_of_bounds,
        fill_value=fill_value,
    )
    if len(body) > limits.string_bytes and type(data_tensor) is PackedStrings:
        call.over_limit = too_long_string(data_tensor, limits)
    if text is not None and (data is None or type(data) is Values) and type(indices) is Values:
        places_of = {place[0]: number for number, place in enumerate(places)}
        kept = resident if data is None else array_template("data", data, places_of)
        assert kept is not None
        templates[signature, text] = RequestTemplate(
            members,
            kept,
            array_template("indices", indices, places_of),
            fields.parameter,
            fields.dialect,
            fields.device,
            fields.output_encoding,
            fields.out_of_bounds,
            fill_value,
        )
    return call, fields.output_encoding
