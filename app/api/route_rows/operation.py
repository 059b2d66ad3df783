"""Routes and their operations, which drive routing, access rules, metrics and OpenAPI. Also parts that rows share.

JSON comes first wherever several media types are listed, because generated clients use the first one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Literal, NamedTuple

from pydantic import BaseModel

from app.errors import Code
from app.formats import body_formats
from app.security.authorizer import Access

Described = dict[str, Any]
"""A piece of an OpenAPI document."""
Answers = Mapping[int | str, Described]
"""Responses by status."""
Shown = Mapping[str, tuple[str, Any, Any]]
"""Examples by name: a summary, a request, and its response."""
SAFETENSORS: Final = body_formats.SAFETENSORS.decode()


class Plane(Enum):
    """Determines whether a route's requests count toward the limit on running requests, and whether they need the
    kernels.
    """

    GATHER = "data plane; needs the kernels, and is found again by the bytes of its header"
    TENSORS = "data plane; uploads and downloads of resident tensors"
    CONTROL = "control plane; answers however many requests run"


GATHER, TENSORS, CONTROL = Plane.GATHER, Plane.TENSORS, Plane.CONTROL


@dataclass(frozen=True, slots=True)
class Operation:
    """The operation of one method of a route.

    `name` is OpenAPI's `operationId`, and the name of the handler in `app.route_handlers`. `codes` lists its errors in
    addition to those common to all operations. `body` and `answer` are the models of JSON bodies, `request` describes
    other forms of the request body, and `answers` are the successful responses by status.
    """

    name: str
    summary: str
    codes: tuple[Code, ...] = ()
    parameters: tuple[Described, ...] = ()
    body: type[BaseModel] | None = None
    request: Described = field(default_factory=dict)
    answer: Any = None
    answers: Answers = field(default_factory=dict)
    status: int = 200
    description: str | None = None
    tag: str = "tensors"
    is_offered: bool = True
    """If False, the interactive page leaves the operation out."""

    @property
    def query(self) -> list[str]:
        """The names of the allowed query fields."""
        return [each["name"] for each in self.parameters if each["in"] == "query"]


class Route(NamedTuple):
    """A path, and its operations by method.

    A segment of `template` in braces matches any single non-empty segment. On the data plane, the segment may also be
    empty, because the handler's error for an invalid name is more specific than "not found".

    `health` marks the paths of health checks and scrapers. An error on a path marked "ready" reports a state of the
    service, not a failure.
    """

    template: str
    plane: Plane
    access: Access
    operations: Mapping[str, Operation]
    health: Literal["alive", "ready"] | None = None

    def operation(self, method: str) -> Operation | None:
        """Return the operation for `method`, or None. HEAD uses the operation for GET."""
        return self.operations.get("GET" if method == "HEAD" else method)

    def allow(self) -> bytes:
        """Return the methods of the path in the format of the Allow field. They always include OPTIONS."""
        head = ("HEAD",) if "GET" in self.operations else ()
        return ", ".join((*self.operations, *head, "OPTIONS")).encode()


def in_path(name: str, text: str, pattern: str | None = None) -> Described:
    """Describe a segment of the path."""
    schema = {"type": "string", "description": text, "title": name.title()}
    if pattern is not None:
        schema["pattern"] = pattern
    return {"name": name, "in": "path", "required": True, "schema": schema, "description": text}


def parameter(name: str, where: str, text: str, schema: Described | None = None) -> Described:
    """Describe an optional parameter; its default schema is a string."""
    return {
        "name": name,
        "in": where,
        "required": False,
        "description": text,
        "schema": schema or {"type": "string"},
    }


def header(text: str) -> Described:
    """Describe a header field of a response."""
    return {"description": text, "schema": {"type": "string"}}


def binary(text: str | None = None) -> Described:
    """Describe a binary body."""
    schema = {"type": "string", "format": "binary"}
    return {"schema": schema if text is None else schema | {"description": text}}


def content(examples: Described, text: str) -> Described:
    """Describe a body that is either JSON, with examples, or safetensors, with the description `text`."""
    return {"content": {"application/json": {"examples": examples}, SAFETENSORS: binary(text)}}


def requests_of(shown: Shown) -> Described:
    """Return the requests of the examples in OpenAPI's format."""
    return {name: {"summary": text, "value": request} for name, (text, request, _) in shown.items()}


def answers_of(shown: Shown) -> Described:
    """Return the responses of the examples in OpenAPI's format."""
    return {name: {"summary": text, "value": answer} for name, (text, _, answer) in shown.items()}
