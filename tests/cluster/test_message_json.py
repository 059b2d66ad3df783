"""Messages and records as JSON: nothing is lost, nothing unknown is an error, nothing wrong is taken."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import get_args

import orjson
import pytest

from app.cluster.coordinator.cluster_state import ClusterState
from app.cluster.coordinator.message_json import (
    BadMessage,
    message_from_json,
    message_to_json,
    record_from_json,
    record_to_json,
)
from app.cluster.coordinator.messages import Message
from tests.cluster.simulation.schedule import Schedule
from tests.cluster.simulation.world import World


def _schedule(seed: int) -> tuple[list[Message], list[ClusterState]]:
    """All messages and records of a schedule."""
    schedule = Schedule(seed)
    sent: list[Message] = []

    def seen(message: Message) -> Message:
        sent.append(message)
        return message

    schedule.world.rewrite_messages(seen)
    schedule.run()
    return sent, schedule.checks.history


RECORDED = Path(__file__).parent / "recorded_0_1.jsonl"
"""A message of each kind, and a record of a coordinator, as the last minor version wrote them."""


@cache
def run_schedules() -> tuple[list[Message], list[ClusterState]]:
    """All messages and records of a few schedules."""
    sent, records = [], []
    for seed in (0, 1, 15):
        messages, recorded = _schedule(seed)
        sent += messages
        records += recorded
    return sent, records


@pytest.fixture
def sent() -> list[Message]:
    return run_schedules()[0]


@pytest.fixture
def records() -> list[ClusterState]:
    return run_schedules()[1]


def test_schedules_send_every_kind_of_message(sent: list[Message]) -> None:
    assert {type(message) for message in sent} == set(get_args(Message))


def test_a_message_comes_back_equal(sent: list[Message]) -> None:
    for message in sent:
        assert message_from_json(message_to_json(message)) == message


def test_a_record_comes_back_equal(records: list[ClusterState]) -> None:
    assert len(records) > 20
    for record in records:
        assert record_from_json(record_to_json(record)) == record


def test_members_that_a_later_version_added_are_left_out(sent: list[Message]) -> None:
    for message in {type(message): message for message in sent}.values():
        document = orjson.loads(message_to_json(message)) | {"of_a_later_version": [1, {"a": 2}]}
        assert message_from_json(orjson.dumps(document)) == message


def test_members_that_a_later_version_added_to_a_map_are_left_out(records: list[ClusterState]) -> None:
    record = records[-1]
    document = orjson.loads(record_to_json(record))
    table = next(iter(document["map"]["tables"].values()))
    version = table["versions"][0]
    for place in (document["map"], table, version, version["ranges"][0], version["ranges"][0]["replicas"][0]):
        place["of_a_later_version"] = 1
    assert record_from_json(orjson.dumps(document)) == record


def test_members_that_an_earlier_version_did_not_write_have_their_defaults(sent: list[Message]) -> None:
    document = orjson.loads(message_to_json(next(one for one in sent if type(one).__name__ == "Hold")))
    for name in ("sources", "url", "digest"):
        del document[name]
    found = message_from_json(orjson.dumps(document))
    assert message_to_json(found) != b""


def test_what_a_later_version_wrote_into_a_record_is_written_back(records: list[ClusterState]) -> None:
    document = orjson.loads(record_to_json(records[-1])) | {"of_a_later_version": {"a": [1, 2]}}
    again = orjson.loads(record_to_json(record_from_json(orjson.dumps(document))))
    assert again == document


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b"1",
        b'{"message": "Nothing"}',
        b'{"message": "MapRequest"}',
        b'{"message": "MapRequest", "known": "1"}',
        b'{"message": "MapRequest", "known": true}',
        b'{"message": "Drop", "key": {"content_id": "a", "start": 0}, "stamp": {"term": 1, "number": 1}}',
        b'{"message": "Drop", "key": ["a", 0, 1], "stamp": {"term": 1, "number": 1}}',
        b'{"message": "MapAnswer", "map": {"tables": {"a": {}}}}',
        b'{"message": "Change", "request_id": "a", "what": "format", "subject": "", "value": "", "known": 0}',
    ],
)
def test_what_is_no_message_is_refused(text: bytes) -> None:
    with pytest.raises(BadMessage):
        message_from_json(text)


@pytest.mark.parametrize("text", [b"", b"[]", b'{"map": 1}', b'{"draining": 3}', b'{"term": "1"}'])
def test_what_is_no_record_is_refused(text: bytes) -> None:
    with pytest.raises(BadMessage):
        record_from_json(text)


def test_a_cluster_of_two_versions_holds_what_it_must() -> None:
    """Every message passes through JSON; those of half of them come from a version that adds a member."""

    def over_the_wire(world: World, message: Message) -> Message:
        if world.random.random() < 0.5:
            return message
        document = orjson.loads(message_to_json(message))
        if world.random.random() < 0.5:
            document["of_a_later_version"] = 1
        return message_from_json(orjson.dumps(document))

    for seed in range(6):
        schedule = Schedule(seed)
        schedule.world.rewrite_messages(lambda message, world=schedule.world: over_the_wire(world, message))  # type: ignore[misc]
        schedule.run()


def test_what_the_minor_version_before_wrote_is_read_and_means_the_same(sent: list[Message]) -> None:
    """Every member that it wrote comes back with the value that it had: later ones are beside them, with defaults."""
    kinds = set()
    for line in RECORDED.read_bytes().splitlines():
        document = orjson.loads(line)
        kinds.add(document.get("message", "record"))
        again = message_to_json(message_from_json(line)) if "message" in document else None
        found = orjson.loads(again or record_to_json(record_from_json(line)))
        assert _is_within(document, found), (document, found)
    assert kinds >= {type(message).__name__ for message in sent} | {"record"}


def _is_within(old: object, new: object) -> bool:
    """Whether all members of `old`, at any depth, have the same values in `new`."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(name in new and _is_within(value, new[name]) for name, value in old.items())
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_is_within, old, new))
    return old == new
