"""Messages and records as JSON, so that two versions of the service, one minor apart, work together.

A member that the reader does not know is left out, and one that the writer did not know has its default: a later minor
version may add members with defaults, and never changes what one means. What a record has beside that is kept and
written back, so that an older coordinator loses nothing that a newer one has written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import orjson

from app.cluster.coordinator.cluster_state import ClusterState
from app.cluster.coordinator.messages import Message
from app.cluster.shard_map import ShardMap

MESSAGES: Final[Mapping[str, type]] = {made.__name__: made for made in get_args(Message)}


class BadMessage(ValueError):
    """JSON that is no message or record of the protocol; the text says why."""


def message_to_json(message: Message) -> bytes:
    """One message. Rows are written as JSON has them: where they travel by themselves they are to be None."""
    return orjson.dumps({"message": type(message).__name__, **_members(message)})


def message_from_json(text: bytes) -> Message:
    """The message that JSON says. Raises BadMessage."""
    try:
        document = orjson.loads(text)
        made = MESSAGES[document.pop("message")]
        return _read(made, document)  # type: ignore[no-any-return]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadMessage(f"no message of the protocol: {error}") from None


def record_to_json(state: ClusterState) -> bytes:
    """One record of the coordinator."""
    document = _members(state)
    unknown = document.pop("unknown")
    return orjson.dumps({**unknown, **document})


def record_from_json(text: bytes) -> ClusterState:
    """The record that JSON says; members that are not known are kept. Raises BadMessage."""
    try:
        document = orjson.loads(text)
        known = {one.name for one in fields(ClusterState)} - {"unknown"}
        unknown = {name: value for name, value in document.items() if name not in known}
        own = {name: value for name, value in document.items() if name in known}
        return _read(ClusterState, {**own, "unknown": unknown})  # type: ignore[no-any-return]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadMessage(f"no record of a coordinator: {error}") from None


# Values by their declared types


def _members(one: Any) -> dict[str, Any]:
    return {name: _plain(getattr(one, name)) for name in _hints(one.__class__)}


def _plain(value: Any) -> Any:
    if isinstance(value, ShardMap):
        return orjson.loads(value.to_json())
    if is_dataclass(value) or hasattr(value, "_fields"):
        return _members(value)
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


@cache
def _hints(made: Any) -> Mapping[str, Any]:
    names = [one.name for one in fields(made)] if is_dataclass(made) else made._fields
    found = get_type_hints(made)
    return {name: found[name] for name in names}


def _read(wanted: Any, value: Any) -> Any:
    """A value of the declared type `wanted`. Raises ValueError, KeyError or TypeError."""
    if wanted is ShardMap:
        return ShardMap.from_json(orjson.dumps(value), strict=False)
    if is_dataclass(wanted) or hasattr(wanted, "_fields"):
        hints = _hints(wanted)
        return wanted(**{name: _read(hints[name], one) for name, one in value.items() if name in hints})
    origin, own = get_origin(wanted), get_args(wanted)
    if origin is Mapping or origin is dict:
        return {key: _read(own[1], one) for key, one in value.items()}
    if origin is frozenset:
        return frozenset(_read(own[0], one) for one in value)
    if origin is tuple:
        return tuple(_read(own[0], one) for one in value)
    if origin is Literal:
        if value not in own:
            raise ValueError(f"{value!r} is none of {own}")
        return value
    if wanted in (int, str) and type(value) is not wanted:
        raise TypeError(f"{value!r} is not of type {wanted.__name__}")
    return value
