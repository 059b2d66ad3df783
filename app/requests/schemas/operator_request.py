"""Build the request model of an operator or gradient from its kind and its signature."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from pydantic import Field, create_model

from app.requests.schemas.backward_request import BackwardRequest, sparse_field
from app.requests.schemas.common_fields import dialect_field
from app.requests.schemas.dialect_fields import dialect_fields, parameter_note
from app.requests.schemas.gather_request import GatherRequest, GivenData, Tensor, parameter_field
from app.requests.schemas.key_fields import KEY_MEMBERS, KEYS_DESCRIPTION
from app.requests.schemas.member_types import ABSENT, RequestModel
from app.requests.schemas.scatter_request import ScatterCallRequest
from app.tensors.by_key import KEYS
from app.tensors.operator_signature import Signature

_MEMBERS: Final[dict[str, type[RequestModel]]] = {
    "gather": GatherRequest,
    "scatter": ScatterCallRequest,
    "gradient": BackwardRequest,
}


@lru_cache(64)
def operator_request(signature: Signature) -> type[RequestModel]:
    """Return the model of the JSON requests. The first parameter is the field `parameter`, aliased to its own name."""
    base = _MEMBERS[signature.kind]
    own: dict[str, Any] = {parameter.name: parameter_field(parameter) for parameter in signature.parameters[1:]}
    own |= dialect_fields(signature)
    if signature.parameters:
        first = signature.parameters[0]
        own = {"parameter": parameter_field(first, parameter_note(signature), alias=first.name)} | own
    if signature.kind == "gather":
        for name in signature.further:
            may_be_resident = GivenData if name in signature.residents else Tensor
            own[name] = may_be_resident, Field(ABSENT if name in signature.optional else ...)
        if signature.keyed:
            own |= {"indices": (Tensor, ABSENT), KEYS: (Tensor, Field(ABSENT, description=KEYS_DESCRIPTION))}
            own |= KEY_MEMBERS
    if signature.kind == "gradient":
        own.pop("out_of_bounds", None)
        own["sparse"] = sparse_field(signature)
    name, text = signature.schema
    dialect = dialect_field(signature.dialects, signature.default_dialect)
    return create_model(name, __base__=base, __module__=base.__module__, __doc__=text, **own, dialect=dialect)
