"""The routes of resident tensors as OpenAPI and generated clients see them; `app.api.routes.tensors`, `tensors_content`
and `tensors_scatter` answer them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, NoReturn

from fastapi import FastAPI, Path, Response

from app.api.openapi_document import EVERYWHERE, Endpoint, operation, problem_responses
from app.api.routes.tensors import MAX_KEEP, MAX_LIST
from app.api.schemas.tensor_messages import ResidentTensor, ScatterAnswer, TensorList
from app.errors import Code
from app.requests.schemas.members import RESIDENT
from app.requests.schemas.query_fields import ScatterQuery, query_parameters
from app.requests.schemas.scatter_request import ScatterRequest
from app.tensors.dtypes import DTYPES
from app.tensors.tensor_name import PATTERN, REFERENCE_PATTERN, RESERVED
from app.wire.body_formats import TENSORS

NPY, SAFETENSORS, RAW = TENSORS
NewName = Annotated[
    str, Path(description=f"Name of the tensor; not {', '.join(RESERVED[:-1])} or {RESERVED[-1]}.", pattern=PATTERN)
]
Name = Annotated[str, Path(description=f"{RESIDENT}.", pattern=REFERENCE_PATTERN)]
Described = dict[str, Any]
_EVERYWHERE: Final[tuple[Code, ...]] = (*EVERYWHERE, "unauthorized", "invalid_field")
_READ: Final[tuple[Code, ...]] = ("tensor_not_found", "tensor_damaged")
_BODY: Final[tuple[Code, ...]] = (
    "payload_too_large", "unsupported_media_type", "unsupported_dtype", "value_not_representable",
    "element_count_mismatch", "limit_exceeded", "overloaded", "insufficient_storage", "precondition_failed",
)  # fmt: skip


def parameter(name: str, where: str, text: str, schema: Described | None = None) -> Described:
    """A parameter that may be left out, a text unless `schema` says otherwise."""
    return {
        "name": name,
        "in": where,
        "required": False,
        "description": text,
        "schema": schema or {"type": "string"},
    }


def header(text: str) -> Described:
    """A header field of an answer."""
    return {"description": text, "schema": {"type": "string"}}


def _binary(text: str | None = None) -> Described:
    schema = {"type": "string", "format": "binary"}
    return {"schema": schema if text is None else schema | {"description": text}}


_ETAG: Final = {
    "ETag": header("Names the content."),
    "X-Gathernd-Data-Version": header("Number of the version that it is of."),
}
IF_MATCH: Final = parameter("If-Match", "header", "ETags of which the tensor must have one, or * for any.")
IF_NONE_MATCH: Final = parameter(
    "If-None-Match", "header", "* where the tensor must not exist, or ETags it must not have."
)
IF_CHANGED: Final = parameter("If-None-Match", "header", "ETags at which the answer is 304 and empty.")
LOCATION: Final = {"Location": header("Path of what was made.")}
_UNCHANGED_ETAG: Final = {"ETag": header("That of the content as it is.")}
UNCHANGED: Final[dict[int | str, Described]] = {
    304: {"description": "It has one of the ETags of If-None-Match", "headers": _UNCHANGED_ETAG}
}
_BY_ACCEPT: Final = {"Vary": header("Accept, by which the format is chosen.")}


def add_tensor_routes(app: FastAPI) -> None:
    """Describe every route of resident tensors."""
    _add_metadata(app)
    _add_changes(app)
    _add_content(app)
    _add_scatter(app)


def describe_tensor_route(
    app: FastAPI,
    name: str,
    summary: str,
    parameters: list[Described],
    codes: Iterable[Code],
    answers: dict[int | str, Described],
    body: Described | None = None,
    **more: Any,
) -> Callable[[Endpoint], Endpoint]:
    """Registers the operation `name`: its answers by status, and the errors that it may have beside those of all."""
    return operation(
        app,
        name,
        tags=["tensors"],
        summary=summary,
        responses=answers | problem_responses((*_EVERYWHERE, *codes)),
        openapi_extra={"parameters": parameters} if body is None else {"parameters": parameters, "requestBody": body},
        **more,
    )


def _add_metadata(app: FastAPI) -> None:
    limit = {"type": "integer", "minimum": 1, "maximum": MAX_LIST, "default": 100}

    @describe_tensor_route(
        app,
        "listTensors",
        "List the resident tensors",
        [
            parameter("limit", "query", "Most tensors to list.", limit),
            parameter("after", "query", "List those whose names come after this one."),
        ],
        (),
        {},
        response_model=TensorList,
    )
    def list_tensors() -> NoReturn:
        raise AssertionError("answered by the data plane")

    @describe_tensor_route(
        app,
        "getTensor",
        "What is known of a tensor",
        [IF_MATCH, IF_CHANGED],
        (*_READ, "precondition_failed"),
        {200: {"description": "Its metadata", "headers": _ETAG}, **UNCHANGED},
        response_model=ResidentTensor,
    )
    def get_tensor(name: Name) -> NoReturn:
        raise AssertionError("answered by the data plane")


def _add_changes(app: FastAPI) -> None:
    flag = {"type": "boolean", "default": False}
    raw = f"Only with {RAW}, and needed there: "

    @describe_tensor_route(
        app,
        "putTensor",
        "Upload the next version of a tensor",
        [
            parameter("dtype", "query", raw + "the element type.", {"type": "string", "enum": list(DTYPES)}),
            parameter("shape", "query", raw + "sizes with commas between them, as in 200000,64; empty for a scalar."),
            parameter("prefault", "query", "Read the content into memory ahead of requests.", flag),
            parameter("lock", "query", "Keep the content in memory, if the system allows it.", flag),
            parameter(
                "keep",
                "query",
                "How many of the newest versions stay, this one among them, beside those that aliases name; without it "
                "what the service is set to.",
                {"type": "integer", "minimum": 1, "maximum": MAX_KEEP},
            ),
            IF_MATCH,
            IF_NONE_MATCH,
            parameter("Content-Digest", "header", "sha-256=:BASE64: of the body as sent, which is compared."),
        ],
        (*_BODY, "name_conflict", "not_implemented"),
        {
            200: {"description": "The next version of a tensor that was there", "headers": _ETAG},
            201: {"description": "Created", "headers": _ETAG | LOCATION, "model": ResidentTensor},
        },
        {
            "required": True,
            # The bare items stand last: openapi-python-client takes the last of several binary types, and under this
            # one an npy file is read too. A generator that takes the first sends npy, which says its type and shape by
            # itself, so that nothing else is taken for items.
            "content": {
                NPY: _binary("An npy file of numbers, in either order of bytes and of axes."),
                SAFETENSORS: _binary("A safetensors file with one tensor."),
                RAW: _binary(
                    "The items, row-major and little endian; bool one byte, 0 or 1; strings each a little-endian "
                    "uint32 length and then UTF-8. An npy file is read too."
                ),
            },
        },
        description="The content becomes visible whole, to every worker, and is durable when the answer comes. Readers "
        "of the old version finish on it. Numbers of versions are never given again.",
        response_model=ResidentTensor,
    )
    def put_tensor(name: NewName) -> NoReturn:
        raise AssertionError("answered by the data plane")

    @describe_tensor_route(
        app,
        "deleteTensor",
        "Remove a tensor with all its versions, or one version of it",
        [IF_MATCH],
        (
            "tensor_not_found",
            "name_conflict",
            "tensor_in_use",
            "precondition_failed",
            "insufficient_storage",
            "not_implemented",
        ),
        {204: {"description": "Removed"}},
        status_code=204,
    )
    def delete_tensor(name: Name) -> None:
        raise AssertionError("answered by the data plane")


def _add_content(app: FastAPI) -> None:
    named = {
        "X-Gathernd-Dtype": header("The element type."),
        "X-Gathernd-Shape": header("Sizes with commas between them."),
    }

    @describe_tensor_route(
        app,
        "tensorContent",
        "Download a tensor, or some of its rows",
        [
            parameter("rows", "query", "a:b, the rows from a up to b of the first dimension, 0 <= a <= b <= n."),
            IF_MATCH,
            IF_CHANGED,
        ],
        (
            *_READ,
            "precondition_failed",
            "range_not_satisfiable",
            "unsupported_dtype",
            "overloaded",
            "shard_unavailable",
        ),
        {
            200: {
                "description": "The content",
                "headers": _ETAG | named | _BY_ACCEPT,
                "content": {kind: _binary() for kind in (RAW, NPY, SAFETENSORS)},
            },
            304: UNCHANGED[304] | {"headers": _UNCHANGED_ETAG | _BY_ACCEPT},
        },
        description=f"As {RAW} (the items, as an upload has them), {NPY} or {SAFETENSORS}: the best of those that "
        "Accept admits and that carry the type. All of it is of one content, that of its ETag, however many scatters "
        "come meanwhile.",
        response_class=Response,
    )
    def tensor_content(name: Name) -> Response:
        raise AssertionError("answered by the data plane")


def _add_scatter(app: FastAPI) -> None:
    @describe_tensor_route(
        app,
        "scatterTensor",
        "Change elements or slices of a tensor (ScatterND)",
        [
            *query_parameters(ScatterQuery),
            IF_MATCH,
            parameter(
                "Idempotency-Key",
                "header",
                "1 to 256 visible characters. A request that comes again with its key within 24 hours is answered "
                "again and not carried out again.",
            ),
        ],
        (
            *_READ, *_BODY, "rank_too_small", "index_depth_out_of_range", "updates_shape_mismatch",
            "index_out_of_bounds", "not_ready", "not_implemented",
        ),
        {200: {"description": "Carried out", "headers": _ETAG}},
        {"content": {SAFETENSORS: _binary("A safetensors body with `indices` and `updates`.")}},
        description="Gathers see all of a scatter or nothing, and it is durable when the answer comes.",
        response_model=ScatterAnswer,
    )  # fmt: skip
    def scatter_tensor(name: Name, body: ScatterRequest) -> NoReturn:
        raise AssertionError("answered by the data plane")
