"""Messages and records as JSON, so that two versions of the service, one minor apart, work together.

A member that the reader does not know is left out, and one that the writer did not know has its default: a later minor
version may add members with defaults, and never changes what one means. What a record has beside that is kept and
written back, so that an older coordinator loses nothing that a newer one has written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final, get_args

import orjson
from pydantic import TypeAdapter

from app.cluster.coordinator.cluster_state import ClusterState
from app.cluster.coordinator.messages import Message

_MESSAGES: Final[Mapping[str, TypeAdapter[Any]]] = {made.__name__: TypeAdapter(made) for made in get_args(Message)}
_RECORD: Final = TypeAdapter(ClusterState)
_MEMBERS: Final = {one.name for one in fields(ClusterState)} - {"unknown"}


class BadMessage(ValueError):
    """JSON that is no message or record of the protocol; the text says why."""


def message_to_json(message: Message) -> bytes:
    """One message."""
    name = type(message).__name__
    return orjson.dumps({"message": name, **_members(_MESSAGES[name], message)})


def message_from_json(text: bytes) -> Message:
    """The message that JSON says. Raises BadMessage."""
    try:
        found: Message = _read(_MESSAGES[orjson.loads(text)["message"]], text)
    except (ValueError, KeyError, TypeError) as error:
        raise BadMessage(f"no message of the protocol: {error}") from None
    return found


def record_to_json(state: ClusterState) -> bytes:
    """One record of the coordinator."""
    members = _members(_RECORD, replace(state, unknown={})) | {"draining": sorted(state.draining)}
    del members["unknown"]
    return orjson.dumps({**state.unknown, **members})


def record_from_json(text: bytes) -> ClusterState:
    """The record that JSON says; members that are not known are kept. Raises BadMessage."""
    try:
        document = orjson.loads(text)
        unknown = {name: document.pop(name) for name in document.keys() - _MEMBERS}
        found: ClusterState = _read(_RECORD, orjson.dumps({**document, "unknown": unknown}))
    except (ValueError, AttributeError) as error:
        raise BadMessage(f"no record of a coordinator: {error}") from None
    return found


def _members(adapter: TypeAdapter[Any], one: Any) -> dict[str, Any]:
    """The members of a message or record; those that are None are left out, as in a shard map."""
    found: dict[str, Any] = adapter.dump_python(one, mode="json", exclude_none=True)
    return found


def _read(adapter: TypeAdapter[Any], text: bytes) -> Any:
    """The value that JSON says. Raises pydantic's ValidationError, which is a ValueError."""
    return adapter.validate_json(text, strict=True, extra="ignore")
