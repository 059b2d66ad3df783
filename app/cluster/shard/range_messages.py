"""The messages between shards about a range: a line of JSON, followed by log frames exactly as in the file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

import orjson

from app.cluster.replication.primary import Join, JoinAnswer
from app.cluster.replication.replica import Append, AppendAnswer, Appended, CopyOrder, Refused, ReplicaState, Why
from app.errors import invalid_field
from app.store.publish_and_remove_versions import CarriedKey
from app.tensors.buffer_type import Buffer


def append_pieces(message: Append, frames: bytes) -> list[Buffer]:
    """Return the body of an Append with the records in `frames`."""
    return [orjson.dumps(asdict(message)) + b"\n", frames]


def read_append(body: Buffer) -> tuple[Append, bytes]:
    """Parse an Append and its frames. Raises invalid_field."""
    head, frames = _split(body)
    try:
        return Append(**{**head, "epochs": tuple(head["epochs"])}), frames
    except (TypeError, KeyError) as error:
        raise invalid_field("/body", f"the line of JSON is no Append: {error}") from None


def append_answer_json(answer: AppendAnswer) -> bytes:
    """Return the response body for an Append."""
    return orjson.dumps(asdict(answer))


def read_append_answer(body: bytes) -> AppendAnswer:
    """Parse the response to an Append. Raises ValueError."""
    try:
        found = orjson.loads(body)
        if "why" in found:
            return Refused(Why(found["why"]), found["epoch"], found["applied"])
        return Appended(found["epoch"], found["applied"], found["matched"])
    except (TypeError, KeyError) as error:
        raise ValueError(f"no answer to an Append: {error}") from None


def join_json(join: Join) -> bytes:
    """Return the body of a request to join."""
    return orjson.dumps(asdict(join))


def read_join(body: Buffer) -> Join:
    """Parse a request to join. Raises invalid_field."""
    try:
        found = orjson.loads(body)
        state = found["state"]
        own = None if state is None else ReplicaState(state["epoch"], state["applied"], tuple(state["tail"]))
        return Join(str(found["node"]), own)
    except (TypeError, KeyError, ValueError) as error:
        raise invalid_field("/body", f"the JSON is no wish to join: {error}") from None


@dataclass(frozen=True, slots=True)
class Admission:
    """A primary's answer to a request to join. Records are sent as an Append with its frames."""

    answer: JoinAnswer
    copy: CopyOrder | None = None
    records: Append | None = None
    frames: bytes = b""

    def pieces(self) -> list[Buffer]:
        """Return the response body."""
        head = {
            "answer": self.answer,
            "copy": self.copy and asdict(self.copy),
            "records": self.records and asdict(self.records),
        }
        return [orjson.dumps(head) + b"\n", self.frames]

    @staticmethod
    def from_body(body: bytes) -> Admission:
        """Parse a response body. Raises ValueError."""
        line, _, frames = body.partition(b"\n")
        try:
            head = orjson.loads(line)
            copy, found = head["copy"], head["records"]
            records = None if found is None else Append(**{**found, "epochs": tuple(found["epochs"])})
            order = None if copy is None else CopyOrder(**copy)
            return Admission(JoinAnswer(head["answer"]), order, records, frames)
        except (TypeError, KeyError) as error:
            raise ValueError(f"no answer to a wish to join: {error}") from None


def _split(body: Buffer) -> tuple[dict[str, Any], bytes]:
    whole = bytes(body)
    line, end, frames = whole.partition(b"\n")
    try:
        head = orjson.loads(line)
    except ValueError as error:
        raise invalid_field("/body", f"the first line is no JSON: {error}") from None
    if not end or not isinstance(head, dict):
        raise invalid_field("/body", "the first line is no object of JSON")
    return head, frames


def keys_json(keys: Sequence[CarriedKey]) -> bytes:
    """Return the Idempotency-Keys of a range as JSON. Only keys of changes by key have `counts`."""
    members = ({name: value for name, value in asdict(key).items() if value is not None} for key in keys)
    return orjson.dumps([*members])


def read_keys(body: bytes) -> list[CarriedKey]:
    """Parse Idempotency-Keys. Unknown members are ignored. Raises ValueError."""
    try:
        return [CarriedKey(**{name: one[name] for name in _OF_KEY & one.keys()}) for one in orjson.loads(body)]
    except (TypeError, AttributeError) as error:
        raise ValueError(f"no Idempotency-Keys: {error}") from None


_OF_KEY: Final = frozenset(one.name for one in fields(CarriedKey))
