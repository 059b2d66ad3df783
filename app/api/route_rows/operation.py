"""What OpenAPI says of one operation of the data plane, and the pieces that such rows share.

JSON stands first wherever several media types are listed: generated clients take the first one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel

from app.errors import Code
from app.formats import body_formats

Described = dict[str, Any]
"""A piece of an OpenAPI document."""
Shown = Mapping[str, tuple[str, Any, Any]]
"""Examples by name: a summary, a request, its answer."""
Rows = Mapping[str, Mapping[str, "Operation"]]
"""The operations of a group of routes, by path and method."""
SAFETENSORS: Final = body_formats.SAFETENSORS.decode()


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation by its name in OpenAPI (`operationId`), which its handler has in `app.data_plane_handlers`, too.

    `codes` are the errors beside those of every operation of the data plane. `body` and `answer` are the models of
    JSON, `request` is what more there is to say of the body; `answers` are those that are no errors, by status.
    """

    name: str
    summary: str
    codes: tuple[Code, ...] = ()
    parameters: tuple[Described, ...] = ()
    body: type[BaseModel] | None = None
    request: Described = field(default_factory=dict)
    answer: type[BaseModel] | None = None
    answers: Mapping[int, Described] = field(default_factory=dict)
    status: int = 200
    description: str | None = None
    tag: str = "tensors"


def in_path(name: str, text: str, pattern: str | None = None) -> Described:
    """A segment of the path."""
    schema = {"type": "string", "description": text, "title": name.title()}
    if pattern is not None:
        schema["pattern"] = pattern
    return {"name": name, "in": "path", "required": True, "schema": schema, "description": text}


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


def binary(text: str | None = None) -> Described:
    """A body of bytes."""
    schema = {"type": "string", "format": "binary"}
    return {"schema": schema if text is None else schema | {"description": text}}


def content(examples: Described, text: str) -> Described:
    """A body in JSON, with examples, or in safetensors, which `text` describes."""
    return {"content": {"application/json": {"examples": examples}, SAFETENSORS: binary(text)}}


def requests_of(shown: Shown) -> Described:
    """The requests of examples, as OpenAPI has them."""
    return {name: {"summary": text, "value": request} for name, (text, request, _) in shown.items()}


def answers_of(shown: Shown) -> Described:
    """The answers of examples, as OpenAPI has them."""
    return {name: {"summary": text, "value": answer} for name, (text, _, answer) in shown.items()}
