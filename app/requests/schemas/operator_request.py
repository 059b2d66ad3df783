"""The models of the requests to any operator, JSON and query, by the kind that its signature says it is of."""

from __future__ import annotations

from app.requests.schemas.gather_request import gather_request
from app.requests.schemas.members import RequestModel
from app.requests.schemas.query_fields import QueryModel, gather_query, scatter_call_query
from app.requests.schemas.scatter_request import scatter_call_request
from app.tensors.operator_signature import Signature


def operator_request(signature: Signature) -> type[RequestModel]:
    """The model of the JSON requests to an operator."""
    return gather_request(signature) if signature.kind == "gather" else scatter_call_request(signature)


def operator_query(signature: Signature) -> type[QueryModel]:
    """The model of the query of a request to an operator in the native binary format."""
    return gather_query(signature) if signature.kind == "gather" else scatter_call_query(signature)
