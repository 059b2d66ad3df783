"""The JSON body of `POST /tensors/{name}/scatter` to a `ScatterCall` (in safetensors: `safetensors_scatter`).

It is read as the body of a gather is (`gather_messages`), by the same functions.
"""

from __future__ import annotations

from app.errors import GatherError
from app.tensors.buffer_type import Buffer
from app.tensors.scatter_call import ScatterCall
from app.tensors.shape_limits import Limits
from app.wire.json.codec_functions import scan_tensors
from app.wire.json.find_arrays import FoundArrays
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
from app.wire.little_endian_items import Charge, view_of
from app.wire.request_schemas.scatter_request import ScatterRequest


def read_scatter(body: Buffer, limits: Limits, charge: Charge | None = None) -> ScatterCall:
    """The scatter that `body` asks for: indices, updates and reduction. See `read_call` for order and `charge`."""
    try:
        return _read_scatter(body, limits, charge)
    except (GatherError, WrongTensors) as error:
        raise_first_fault(error, body, charge)
        raise


def _read_scatter(body: Buffer, limits: Limits, charge: Charge | None) -> ScatterCall:
    view = view_of(body)
    found = FoundArrays._make(scan_tensors.run(view))
    document = read_document(body, found, charge)
    fields = valid_fields(ScatterRequest, document, body, view, found.places, charge)
    given = {
        "indices": given_tensor("indices", fields.indices, body, view, found.places, charge),
        "updates": given_tensor("updates", fields.updates, body, view, found.places, charge),
    }
    if len(document) + sum(len(document[name]) for name in given) != found.members:
        check_framing(body, charge)
    for name, (_, unknown) in given.items():
        if unknown is not None:
            raise unsupported_dtype(name, unknown)
    sources = [source for source, _ in given.values()]
    indices, updates = (source.read(charge) for source in sources)
    if indices is None or updates is None:
        raise WrongTensors(sources)
    over_limit = first_too_long_string((indices, updates), limits)
    if over_limit is not None:
        raise over_limit
    return ScatterCall(indices, updates, fields.reduction)
