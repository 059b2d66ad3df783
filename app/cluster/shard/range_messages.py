"""The messages between shards about a range: a line of JSON, followed by log frames exactly as they are in the file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from app.cluster.replication.primary import Join, JoinAnswer
from app.cluster.replication.replica import Append, AppendAnswer, Appended, CopyOrder, Refused
from app.errors import invalid_field
from app.store.publish_and_remove_versions import CarriedKey
from app.tensors.buffer_type import Buffer

Message = TypeVar("Message")


@dataclass(frozen=True, slots=True)
class Admission:
    """A primary's response to a request to join. Records are sent as an Append together with its frames."""

    answer: JoinAnswer
    copy: CopyOrder | None = None
    records: Append | None = None
    frames: Annotated[bytes, Field(exclude=True)] = b""

    def pieces(self) -> list[Buffer]:
        """Return the response body."""
        return [_ADMISSION.dump_json(self) + b"\n", self.frames]

    @staticmethod
    def from_body(body: bytes) -> Admission:
        """Parse a response body. Raises ValueError."""
        line, _, frames = body.partition(b"\n")
        return replace(_read(_ADMISSION, line, "answer to a wish to join"), frames=frames)


_APPEND: Final = TypeAdapter(Append)
_APPEND_ANSWER: Final = TypeAdapter[AppendAnswer](Appended | Refused)
_JOIN: Final = TypeAdapter(Join)
_ADMISSION: Final = TypeAdapter(Admission)
_KEYS: Final = TypeAdapter(list[CarriedKey])


def _read(message: TypeAdapter[Message], text: bytes, what: str) -> Message:
    """Parse a message.

    Unknown members are ignored. Raises ValueError, which says that the text is not a valid `what`.
    """
    try:
        return message.validate_json(text, extra="ignore")
    except ValidationError as problem:
        raise ValueError(f"no {what}: {problem.errors(include_url=False)[0]['msg']}") from None


def append_pieces(message: Append, frames: bytes) -> list[Buffer]:
    """Return the body of an Append whose records are in `frames`."""
    return [_APPEND.dump_json(message) + b"\n", frames]


def read_append(body: Buffer) -> tuple[Append, bytes]:
    """Parse an Append and its frames. Raises invalid_field."""
    line, _, frames = bytes(body).partition(b"\n")
    try:
        return _read(_APPEND, line, "Append"), frames
    except ValueError as error:
        raise invalid_field("/body", f"the line of JSON is {error}") from None


def append_answer_json(answer: AppendAnswer) -> bytes:
    """Return the response body for an Append."""
    return _APPEND_ANSWER.dump_json(answer)


def read_append_answer(body: bytes) -> AppendAnswer:
    """Parse the response to an Append. Raises ValueError."""
    return _read(_APPEND_ANSWER, body, "answer to an Append")


def join_json(join: Join) -> bytes:
    """Return the body of a request to join."""
    return _JOIN.dump_json(join)


def read_join(body: Buffer) -> Join:
    """Parse a request to join. Raises invalid_field."""
    try:
        return _read(_JOIN, bytes(body), "wish to join")
    except ValueError as error:
        raise invalid_field("/body", f"the JSON is {error}") from None


def keys_json(keys: Sequence[CarriedKey]) -> bytes:
    """Return the Idempotency-Keys of a range as JSON. Only keys of changes by key have `counts`."""
    return _KEYS.dump_json([*keys], exclude_none=True)


def read_keys(body: bytes) -> list[CarriedKey]:
    """Parse Idempotency-Keys. Raises ValueError."""
    return _read(_KEYS, body, "Idempotency-Keys")
