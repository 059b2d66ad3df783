"""The model of the requests to any operator, by the kind that its signature says it is of."""

from __future__ import annotations

from app.requests.schemas.gather_request import gather_request
from app.requests.schemas.members import RequestModel
from app.requests.schemas.scatter_request import scatter_call_request
from app.tensors.operator_signature import Signature


def operator_request(signature: Signature) -> type[RequestModel]:
    """The model of the requests to an operator."""
    return gather_request(signature) if signature.kind == "gather" else scatter_call_request(signature)
