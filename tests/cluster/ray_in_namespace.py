"""A Ray cluster of a head and a node in a network namespace that has loopback alone; tests/cluster/test_placement.py.

A version is published, the coordinator is killed, and the one that Ray starts in its place goes on from the records.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from typing import Any

import ray
from ray.cluster_utils import Cluster

from app.cluster.coordinator.cluster_options import ClusterOptions
from app.cluster.coordinator.message_json import message_from_json, message_to_json, record_from_json, record_to_json
from app.cluster.coordinator.messages import Held, Hold, MapAnswer, MapRequest, Message, Publish, Published
from app.cluster.placement import NAMESPACE, HeadRecords, start_coordinator
from app.cluster.shard.held_ranges import HeldRanges

SMALL = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
MACHINES = {f"{node}:80": HeldRanges(node, f"{node}:80", 1, 1000) for node in "ab"}


def exchange(actor: Any, sender: str, *messages: Message) -> list[Message]:
    """One call, again while the actor is being restarted."""
    texts = [message_to_json(message) for message in messages]
    for _ in range(60):
        try:
            found = ray.get(actor.exchange.remote(sender, texts), timeout=10)
        except ray.exceptions.RayError:
            time.sleep(0.5)
            continue
        return [message_from_json(text) for text in found]
    raise AssertionError("the coordinator does not answer")


def until(actor: Any, kind: type[Message], *asked: Message) -> Any:
    """Ask as a router, with machines that hold whatever they are told to, until an answer of this kind comes."""
    for _ in range(100):
        for address, machine in MACHINES.items():
            sent: list[Message] = [machine.inventory()]
            while sent:
                got = exchange(actor, address, *sent)
                sent = [Held(machine.node, one.key, one.stamp, "d") for one in got if isinstance(one, Hold)]
        for message in exchange(actor, "r:80", *asked):
            if isinstance(message, kind):
                return message
        time.sleep(0.2)
    raise AssertionError(f"no {kind.__name__} came")


def depose(generation: int) -> None:
    """Create the next record as another coordinator would: the actor's finds it, ends, and Ray starts one anew."""
    records = HeadRecords()
    found = records.find(generation)
    while (last := records.find(generation + 1)) is not None:
        generation, found = generation + 1, last
    assert found is not None
    state = record_from_json(found)
    number = generation + 1
    other = replace(state, map=replace(state.map, generation=number), term=number, coordinator="other")
    assert records.create(number, record_to_json(other)) is None


def main() -> None:
    """Raises AssertionError where something is not as it should be."""
    cluster = Cluster(initialize_head=True, head_node_args={**SMALL, "include_dashboard": False})
    cluster.add_node(**SMALL)
    assert cluster.address.startswith("127.0.0.1:"), cluster.address
    ray.init(address=cluster.address, namespace=NAMESPACE, log_to_driver=False)
    actor = start_coordinator(ClusterOptions(ranges=2))
    published = until(actor, Published, Publish("c1", "items", "float32", (10,), 4, 1, 0))
    assert published.number == 1
    pid = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))
    os.kill(pid, 9)
    again = until(actor, MapAnswer, MapRequest(published.map.generation))
    assert again.map.tables == published.map.tables
    assert again.map.generation > published.map.generation
    second = until(actor, Published, Publish("c2", "items", "float32", (10,), 4, 1, again.map.generation))
    assert second.number == 2
    depose(second.map.generation)
    third = until(actor, Published, Publish("c3", "items", "float32", (10,), 4, 1, second.map.generation + 1))
    assert third.number == 3
    second = third
    records = HeadRecords()
    assert records.create(1, b"mine") == records.find(1) != b"mine"
    for number in range(second.map.generation + 1, second.map.generation + 40):
        assert records.create(number, b"%d" % number) is None
    assert records.latest() == b"%d" % (second.map.generation + 39)
    assert records.find(1) == b""
    ray.shutdown()
    cluster.shutdown()
    print("all of it holds")  # noqa: T201


if __name__ == "__main__":
    main()
    sys.exit()
