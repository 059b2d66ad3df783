"""The routes of resident tensors as OpenAPI and generated clients see them; `app.api.routes.tensors` answers them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, NoReturn

from fastapi import FastAPI, Path, Response
from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from app.api.openapi_document import EVERYWHERE, operation, problem_responses
from app.api.routes.tensors import MAX_LIST
from app.api.schemas.gather_request import DTypeName, OpenModel, Size, Tensor
from app.errors import Code
from app.tensors.dtypes import DTYPES
from app.tensors.tensor_name import PATTERN, RESERVED
from app.wire.body_formats import TENSORS

_TAG: Final = "tensors"
NPY, SAFETENSORS, RAW = TENSORS
_BINARY: Final = {"type": "string", "format": "binary"}
Name = Annotated[
    str, Path(description=f"Name of the tensor; not {', '.join(RESERVED[:-1])} or {RESERVED[-1]}.", pattern=PATTERN)
]
_EVERYWHERE: Final[tuple[Code, ...]] = (*EVERYWHERE, "unauthorized", "invalid_field")
_READ: Final[tuple[Code, ...]] = ("tensor_not_found", "tensor_damaged")
_BODY: Final[tuple[Code, ...]] = (
    "payload_too_large", "unsupported_media_type", "unsupported_dtype", "value_not_representable",
    "element_count_mismatch", "limit_exceeded", "overloaded", "insufficient_storage", "precondition_failed",
)  # fmt: skip
_ETAG: Final = {"ETag": {"description": "Names the content.", "schema": {"type": "string"}}}


class ResidentTensor(OpenModel):
    """What is known of a resident tensor."""

    name: str
    dtype: DTypeName
    shape: list[Size]
    bytes: Size = Field(description="Bytes of its items; strings with a length of 4 bytes each.")
    etag: str = Field(
        description="Names this content and no other, of this tensor or any, at any time; in quotes as in the header."
    )
    sha256: str = Field(
        description="SHA-256 of dtype, shape and items as uploaded, in hex: equal for every format of the upload, and "
        "not changed by scatters."
    )
    created: str = Field(
        description="When the name came into being (RFC 3339).", json_schema_extra={"format": "date-time"}
    )
    modified: str = Field(description="When the content last changed.", json_schema_extra={"format": "date-time"})
    prefault: bool = Field(description="Whether the content is read into memory ahead of requests.")
    lock: bool = Field(description="Whether the content is to be kept in memory.")
    damaged: bool | SkipJsonSchema[None] = Field(None, description="True, in lists, where the content is damaged.")


class TensorList(OpenModel):
    """Resident tensors in the order of their names."""

    tensors: list[ResidentTensor]
    next: str | None = Field(description="What to give as `after` for the tensors that follow; null at the end.")


class ScatterRequest(BaseModel):
    """A ScatterND into a resident tensor, as ONNX 18 has it."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=OpenModel.model_config["json_schema_extra"])

    indices: Tensor = Field(description="int64; each tuple in the last dimension names an element or slice.")
    updates: Tensor = Field(description="Of the tensor's type and of shape indices.shape[:-1] + tensor.shape[k:].")
    reduction: Literal["none", "add", "mul", "min", "max"] = Field(
        "none",
        description="How an update combines with what is there. Updates count in row-major order: with none the last "
        "one of a place wins, others are applied one after the other. bool, string and complex take none only.",
    )


class ScatterAnswer(OpenModel):
    """The tensor after the scatter."""

    name: str
    etag: str


def add_tensor_routes(app: FastAPI) -> None:
    """Document every route below /tensors."""
    _add_metadata(app)
    _add_changes(app)
    _add_content(app)
    _add_scatter(app)


def _parameter(name: str, where: str, text: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "name": name,
        "in": where,
        "required": False,
        "description": text,
        "schema": schema or {"type": "string"},
    }


_IF_MATCH: Final = _parameter("If-Match", "header", "ETags of which the tensor must have one, or * for any.")
_IF_NONE_MATCH: Final = _parameter(
    "If-None-Match", "header", "* where the tensor must not exist, or ETags it must not have."
)
_IF_CHANGED: Final = _parameter("If-None-Match", "header", "ETags at which the answer is 304 and empty.")


def _answers(codes: Iterable[Code], **ok: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    found: dict[int | str, dict[str, Any]] = {int(status.removeprefix("s")): answer for status, answer in ok.items()}
    return found | problem_responses((*_EVERYWHERE, *codes))


def _add_metadata(app: FastAPI) -> None:
    @operation(
        app,
        "listTensors",
        tags=[_TAG],
        summary="List the resident tensors",
        response_model=TensorList,
        responses=_answers(()),
        openapi_extra={
            "parameters": [
                _parameter(
                    "limit",
                    "query",
                    "Most tensors to list.",
                    {"type": "integer", "minimum": 1, "maximum": MAX_LIST, "default": 100},
                ),
                _parameter("after", "query", "List those whose names come after this one."),
            ]
        },
    )
    def list_tensors() -> NoReturn:
        raise AssertionError("answered by the data plane")

    @operation(
        app,
        "getTensor",
        tags=[_TAG],
        summary="What is known of a tensor",
        response_model=ResidentTensor,
        responses=_answers(
            (*_READ, "precondition_failed"),
            s200={"description": "Its metadata", "headers": _ETAG},
            s304={"description": "It has one of the ETags of If-None-Match"},
        ),
        openapi_extra={"parameters": [_IF_MATCH, _IF_CHANGED]},
    )
    def get_tensor(name: Name) -> NoReturn:
        raise AssertionError("answered by the data plane")


def _add_changes(app: FastAPI) -> None:
    flag = {"type": "boolean", "default": False}
    raw = f"Only with {RAW}, and needed there: "

    @operation(
        app,
        "putTensor",
        tags=[_TAG],
        summary="Upload a tensor, or replace one",
        description="The content becomes visible whole, to every worker, and is durable when the answer comes. Readers "
        "of the old content finish on it.",
        response_model=ResidentTensor,
        responses=_answers(
            _BODY,
            s200={"description": "Replaced", "headers": _ETAG},
            s201={"description": "Created", "headers": _ETAG, "model": ResidentTensor},
        ),
        openapi_extra={
            "parameters": [
                _parameter("dtype", "query", raw + "the element type.", {"type": "string", "enum": list(DTYPES)}),
                _parameter(
                    "shape", "query", raw + "sizes with commas between them, as in 200000,64; empty for a scalar."
                ),
                _parameter("prefault", "query", "Read the content into memory ahead of requests.", flag),
                _parameter("lock", "query", "Keep the content in memory, if the system allows it.", flag),
                _IF_MATCH,
                _IF_NONE_MATCH,
                _parameter("Content-Digest", "header", "sha-256=:BASE64: of the body as sent, which is compared."),
            ],
            "requestBody": {
                "required": True,
                "content": {
                    RAW: {
                        "schema": _BINARY
                        | {
                            "description": "The items, row-major and little endian; bool one byte, 0 or 1; strings "
                            "each a little-endian uint32 length and then UTF-8."
                        }
                    },
                    NPY: {
                        "schema": _BINARY
                        | {"description": "An npy file of numbers, in either order of bytes and of axes."}
                    },
                    SAFETENSORS: {"schema": _BINARY | {"description": "A safetensors file with one tensor."}},
                },
            },
        },
    )
    def put_tensor(name: Name) -> NoReturn:
        raise AssertionError("answered by the data plane")

    @operation(
        app,
        "deleteTensor",
        tags=[_TAG],
        summary="Remove a tensor",
        status_code=204,
        responses=_answers(
            ("tensor_not_found", "precondition_failed", "insufficient_storage"), s204={"description": "Removed"}
        ),
        openapi_extra={"parameters": [_IF_MATCH]},
    )
    def delete_tensor(name: Name) -> None:
        raise AssertionError("answered by the data plane")


def _add_content(app: FastAPI) -> None:
    named = {
        "X-Gathernd-Dtype": {"description": "The element type.", "schema": {"type": "string"}},
        "X-Gathernd-Shape": {"description": "Sizes with commas between them.", "schema": {"type": "string"}},
    }

    @operation(
        app,
        "tensorContent",
        tags=[_TAG],
        summary="Download a tensor, or some of its rows",
        description=f"As {RAW} (the items, as an upload has them), {NPY} or {SAFETENSORS}, as Accept asks for. Where a "
        "scatter changes a large tensor during the download, the connection is closed early: ask again.",
        response_class=Response,
        responses=_answers(
            (*_READ, "precondition_failed", "range_not_satisfiable", "unsupported_dtype", "overloaded"),
            s200={
                "description": "The content",
                "headers": _ETAG | named,
                "content": {kind: {"schema": _BINARY} for kind in (RAW, NPY, SAFETENSORS)},
            },
            s304={"description": "It has one of the ETags of If-None-Match"},
        ),
        openapi_extra={
            "parameters": [
                _parameter("rows", "query", "a:b, the rows from a up to b of the first dimension, 0 <= a <= b <= n."),
                _IF_MATCH,
                _IF_CHANGED,
            ]
        },
    )
    def tensor_content(name: Name) -> Response:
        raise AssertionError("answered by the data plane")


def _add_scatter(app: FastAPI) -> None:
    @operation(
        app,
        "scatterTensor",
        tags=[_TAG],
        summary="Change elements or slices of a tensor (ScatterND)",
        description="Gathers see all of a scatter or nothing, and it is durable when the answer comes.",
        response_model=ScatterAnswer,
        responses=_answers(
            (
                *_READ, *_BODY, "rank_too_small", "index_depth_out_of_range", "updates_shape_mismatch",
                "index_out_of_bounds", "not_ready",
            ),
            s200={"description": "Carried out", "headers": _ETAG},
        ),
        openapi_extra={
            "parameters": [
                _parameter(
                    "reduction",
                    "query",
                    "Only with a safetensors body; a JSON request has this field in its body.",
                    {"type": "string", "enum": ["none", "add", "mul", "min", "max"]},
                ),
                _IF_MATCH,
                _parameter(
                    "Idempotency-Key",
                    "header",
                    "1 to 256 visible characters. A request that comes again with its key within 24 hours is answered "
                    "again and not carried out again.",
                ),
            ],
            "requestBody": {
                "content": {
                    SAFETENSORS: {
                        "schema": _BINARY | {"description": "A safetensors body with `indices` and `updates`."}
                    }
                }
            },
        },
    )  # fmt: skip
    def scatter_tensor(name: Name, body: ScatterRequest) -> NoReturn:
        raise AssertionError("answered by the data plane")
