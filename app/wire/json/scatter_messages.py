"""The JSON body of `POST /tensors/{name}/scatter` to a `ScatterCall` (in safetensors: `safetensors_scatter`).

It is read as the body of a gather is (`gather_messages`), by the same compiled functions.
"""

from __future__ import annotations

from typing import Final

from app.errors import GatherError, invalid_field
from app.tensors.buffer_type import Buffer
from app.tensors.scatter_call import REDUCTIONS, ScatterCall
from app.tensors.shape_limits import Limits
from app.tensors.string_tensor import PackedStrings
from app.wire.json.find_arrays import FoundArrays, scan_tensors
from app.wire.json.read_tensor import (
    WrongTensors,
    check_framing,
    given_tensor,
    not_one_of,
    raise_first_fault,
    read_document,
    too_long_string,
    unknown_field,
    unsupported_dtype,
)
from app.wire.little_endian_items import Charge, view_of

_FIELDS: Final = frozenset(("indices", "updates", "reduction"))


def read_scatter(body: Buffer, limits: Limits, charge: Charge | None = None) -> ScatterCall:
    """The scatter that `body` asks for: indices, updates and reduction. See `read_call` for order and `charge`."""
    try:
        return _read_scatter(body, limits, charge)
    except (GatherError, WrongTensors) as error:
        raise_first_fault(error, body, charge)
        raise


def _read_scatter(body: Buffer, limits: Limits, charge: Charge | None) -> ScatterCall:
    view = view_of(body)
    found = FoundArrays._make(scan_tensors(view))
    document = read_document(body, found, charge)
    if type(document) is not dict:
        raise invalid_field("", "the body must be a JSON object")
    if not document.keys() <= _FIELDS:
        raise unknown_field("", document, _FIELDS)
    given = {name: given_tensor(name, document, body, view, found.places, charge) for name in ("indices", "updates")}
    reduction = document.get("reduction", "none")
    if type(reduction) is not str or reduction not in REDUCTIONS:
        raise not_one_of("reduction", REDUCTIONS)
    if len(document) + sum(members for _, _, members in given.values()) != found.members:
        check_framing(body, charge)
    for name, (_, unknown, _) in given.items():
        if unknown is not None:
            raise unsupported_dtype(name, unknown)
    sources = [source for source, _, _ in given.values()]
    indices, updates = (source.read(charge) for source in sources)
    if indices is None or updates is None:
        raise WrongTensors(sources)
    for tensor in (indices, updates):
        if isinstance(tensor, PackedStrings) and (over_limit := too_long_string(tensor, limits)) is not None:
            raise over_limit
    return ScatterCall(indices, updates, reduction)
