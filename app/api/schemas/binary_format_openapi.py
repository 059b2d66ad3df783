"""What the OpenAPI file says of the native binary format and of explanations, beside the JSON of the gather routes.

JSON stands first wherever both are listed: generated clients take the first media type.
"""

from __future__ import annotations

from typing import Any, Final

from app.tensors.operator_signature import Signature
from app.wire import body_formats

MEDIA_TYPE: Final = body_formats.SAFETENSORS.decode()
_BINARY: Final = {"type": "string", "format": "binary"}


def content(description: str) -> dict[str, Any]:
    """A binary body."""
    return {MEDIA_TYPE: {"schema": _BINARY | {"description": description}}}


def request_content(signature: Signature) -> dict[str, Any]:
    """The body of a binary request."""
    others = " and ".join(f"`{name}`" for name in signature.inputs if name != "data")
    return {
        MEDIA_TYPE: {
            "schema": _BINARY
            | {
                "description": "A safetensors body with the tensors `data` (left out where the query names a resident "
                f"tensor) and {others}; complex128 and string travel in JSON only."
            }
        }
    }


def answer_content() -> dict[str, Any]:
    """The body of a binary answer."""
    return {MEDIA_TYPE: {"schema": _BINARY | {"description": "A safetensors body with the tensor `output`."}}}


def answer_headers(*, replaced: bool = True) -> dict[str, Any]:
    """What a binary answer says in its header; `replaced` where indices out of bounds need not be an error."""
    headers = {
        "X-Gathernd-Dialect": _header("The dialect that was followed; binary answers only."),
        "X-Gathernd-Device": _header("Where the gather ran, cpu or gpu; binary answers only."),
        "X-Gathernd-Data-ETag": _header("ETag of the resident data that was read; binary answers only."),
        "X-Gathernd-Data-Version": _header("Number of the version of it that was read; binary answers only."),
    }
    if replaced:
        headers["X-Gathernd-Replaced"] = _header(
            "How many components of the indices were out of bounds; binary answers only, and not under out_of_bounds "
            "error."
        )
    return headers


def _header(text: str) -> dict[str, Any]:
    return {"description": text, "schema": {"type": "string"}}
