"""What the OpenAPI file says of the native binary format and of explanations, beside the JSON of the gather routes.

JSON stands first wherever both are listed: generated clients take the first media type. The query fields have no
defaults there, since a client that sent them with a JSON body would be refused.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel

from app.tensors.operator_signature import Signature
from app.tensors.tensor_name import PATTERN
from app.wire import body_formats

MEDIA_TYPE: Final = body_formats.SAFETENSORS.media_type.decode()
_BINARY: Final = {"type": "string", "format": "binary"}
_ONLY: Final = "Only with a safetensors body; a JSON request has this field in its body."


def _field(name: str, text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "description": f"{text} {_ONLY}", "schema": schema}


def request_parameters(signature: Signature, model: type[BaseModel]) -> list[dict[str, Any]]:
    """The query fields of a binary request, of whose JSON `model` is the schema."""
    text = (model.model_fields[signature.parameter].description or "").removesuffix(".")
    dialects = {"type": "string", "enum": list(signature.dialects)}
    return [
        _field(signature.parameter, f"{text}; 0 if left out.", {"type": "integer", "format": "int64"}),
        _field("dialect", f"Whose rules hold; {signature.default_dialect} if left out.", dialects),
        _field("device", "Where to run; auto if left out.", {"type": "string", "enum": ["auto", "cpu", "gpu"]}),
        _field(
            "tensor",
            "Name of a resident tensor, in place of `data` in the body.",
            {"type": "string", "pattern": PATTERN},
        ),
        _field(
            "output_encoding",
            "Form of the output's items where Accept asks for JSON; values if left out.",
            {"type": "string", "enum": ["values", "base64"]},
        ),
        {
            "name": "explain",
            "in": "query",
            "required": False,
            "description": "With true, and with either body: validate, and answer in JSON what the output would be, "
            "without its values, and in `explanation` the plan, the time predicted for each route, and the choice. "
            "Nothing runs, and the values of the indices are not looked at. False if left out.",
            "schema": {"type": "boolean"},
        },
    ]


def request_content() -> dict[str, Any]:
    """The body of a binary request."""
    return {
        MEDIA_TYPE: {
            "schema": _BINARY
            | {
                "description": "A safetensors body with the tensors `data` (left out where the query names a resident "
                "tensor) and `indices`; complex128 and string travel in JSON only."
            }
        }
    }


def answer_content() -> dict[str, Any]:
    """The body of a binary answer."""
    return {MEDIA_TYPE: {"schema": _BINARY | {"description": "A safetensors body with the tensor `output`."}}}


def answer_headers() -> dict[str, Any]:
    """What a binary answer says in its header."""
    return {
        "X-Gathernd-Dialect": _header("The dialect that was followed; binary answers only."),
        "X-Gathernd-Device": _header("Where the gather ran, cpu or gpu; binary answers only."),
        "X-Gathernd-Data-ETag": _header("ETag of the resident data that was read; binary answers only."),
    }


def _header(text: str) -> dict[str, Any]:
    return {"description": text, "schema": {"type": "string"}}
