"""The coordinator's side of the protocol: nothing is said before it is durable, and only by the one that began last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from app.cluster.coordinator.cluster_options import ClusterOptions
from app.cluster.coordinator.cluster_state import ClusterState
from app.cluster.coordinator.coordinator import (
    Coordinator,
    CoordinatorAction,
    CreateRecord,
    FindRecord,
    ReadLatest,
)
from app.cluster.coordinator.coordinator_client import CoordinatorClient
from app.cluster.coordinator.message_json import message_to_json
from app.cluster.coordinator.messages import (
    Change,
    Changed,
    Drop,
    Held,
    HeldRange,
    Hold,
    Inventory,
    MapAnswer,
    MapRequest,
    Message,
    NotHeld,
    Placed,
    Publish,
    Published,
    RangeKey,
    Refused,
    Send,
    Stamp,
)
from app.cluster.shard_map import Replica

OPTIONS = ClusterOptions(ranges=1, replicas=2, lost_after=5.0, drop_after=1.0, publish_timeout=10.0)
KEY = RangeKey("c1", 0, 10)


class Cluster:
    """A coordinator whose records are durable at once, unless they are held back, and machines that answer by hand."""

    def __init__(self, *nodes: str) -> None:
        self.records: dict[int, ClusterState] = {}
        self.now = 0.0
        self.counts = dict.fromkeys(nodes, 0)
        self.held: dict[str, dict[RangeKey, HeldRange]] = {node: {} for node in nodes}
        self.hold_back = False
        self.sent: list[tuple[str, Message]] = []
        self.coordinator = self.begin("one")
        self.hear(*nodes)

    def begin(self, identity: str) -> Coordinator:
        self.coordinator = Coordinator(identity, OPTIONS)
        assert self.coordinator.start() == [ReadLatest()]
        latest = self.records[max(self.records)] if self.records else None
        self.do(self.coordinator.latest(latest, self.now))
        return self.coordinator

    def do(self, actions: list[CoordinatorAction]) -> None:
        for action in actions:
            match action:
                case Send(to, message):
                    self.sent.append((to, message))
                case CreateRecord(state) if not self.hold_back:
                    if state.generation in self.records:
                        self.do(self.coordinator.exists(self.records[state.generation], self.now))
                    else:
                        self.records[state.generation] = state
                        self.do(self.coordinator.created(state.generation, self.now))
                case FindRecord(generation) if generation in self.records:
                    self.do(self.coordinator.exists(self.records[generation], self.now))

    def hear(self, *nodes: str) -> None:
        for node in nodes:
            self.counts[node] += 1
            held = tuple(self.held[node].values())
            self.tell(Inventory(node, f"{node}:80", 1, self.counts[node], 1000, held))

    def tell(self, message: Message, sender: str = "r:80") -> list[tuple[str, Message]]:
        """What is sent after a message."""
        self.sent = []
        self.do(self.coordinator.receive(sender, message, self.now))
        return self.sent

    def tick(self, seconds: float = 1.0) -> list[tuple[str, Message]]:
        """What is sent after a while, in which all machines of `counts` are heard."""
        self.now += seconds
        self.hear(*self.counts)
        self.sent = []
        self.do(self.coordinator.tick(self.now))
        return self.sent

    def hold(self, node: str, stamp: Stamp, key: RangeKey = KEY, digest: str = "d") -> list[tuple[str, Message]]:
        """A machine has a range."""
        self.held[node][key] = HeldRange(key, stamp, whole=True)
        return self.tell(Held(node, key, stamp, digest), f"{node}:80")

    @property
    def state(self) -> ClusterState:
        return self.records[max(self.records)]

    def nodes_of(self, table: str = "items") -> list[str]:
        return [replica.node for replica in self.state.map.tables[table].current.ranges[0].replicas]


def publish(content_id: str = "c1", *, known: int = 10**6, url: str = "") -> Publish:
    return Publish(content_id, "items", "float32", (10,), 4, 1, known, url)


def stamps(sent: list[tuple[str, Message]]) -> dict[str, Stamp]:
    """The stamp for each machine's target."""
    (placed,) = [message for _, message in sent if isinstance(message, Placed)]
    return {target.node: target.stamp for target in placed.targets}


def published(*nodes: str) -> Cluster:
    """A cluster with one version, on two of its machines."""
    one = Cluster(*nodes)
    for node, stamp in stamps(one.tell(publish())).items():
        one.hold(node, stamp)
    return one


def test_a_version_is_published_when_its_last_replica_is_whole() -> None:
    one = Cluster("a", "b", "c")
    (first, second) = stamps(one.tell(publish())).items()
    assert one.hold(*first) == []
    assert one.state.map.tables == {}
    (answer,) = one.hold(*second)
    assert answer[0] == "r:80"
    assert isinstance(answer[1], Published)
    assert (answer[1].number, answer[1].map.generation) == (1, one.state.generation)
    assert sorted(one.nodes_of()) == sorted((first[0], second[0]))


def test_nothing_is_said_before_the_record_is_durable() -> None:
    one = Cluster("a", "b")
    (first, second) = stamps(one.tell(publish())).items()
    one.hold(*first)
    one.hold_back = True
    assert one.hold(*second) == []
    assert one.tell(MapRequest(one.state.generation)) == []
    one.hold_back = False
    assert [type(message) for _, message in one.tick()] == [Published]


def test_replicas_with_different_rows_are_not_published() -> None:
    one = Cluster("a", "b")
    (first, second) = stamps(one.tell(publish())).items()
    one.hold(*first)
    ((_, answer),) = one.hold(*second, digest="other")
    assert isinstance(answer, Refused)
    assert one.state.map.tables == {}


def test_an_answer_to_an_older_order_does_not_count() -> None:
    one = Cluster("a", "b")
    (first, second) = stamps(one.tell(publish())).items()
    one.hold(*first)
    assert one.hold(second[0], Stamp(0, 7)) == []
    assert one.state.map.tables == {}


def test_publishing_the_same_content_again_is_answered_with_its_number() -> None:
    one = published("a", "b")
    ((_, answer),) = one.tell(publish())
    assert isinstance(answer, Published)
    assert answer.number == 1


def test_a_late_repetition_of_what_was_removed_is_refused() -> None:
    one = published("a", "b")
    known = one.state.generation
    one.tell(Change("x", "remove", "items", "1", known))
    ((_, answer),) = one.tell(publish(known=known))
    assert isinstance(answer, Refused)
    assert answer.code == "stale_map"


def test_too_few_machines_refuse_a_version() -> None:
    one = Cluster("a")
    assert one.tell(publish()) == []  # others may live, of which nothing has been heard yet
    one.tick(4.0)
    one.hear("a")
    ((_, answer),) = one.tell(publish())
    assert isinstance(answer, Refused)
    assert answer.code == "insufficient_storage"


def test_a_version_is_published_only_over_the_one_that_it_expects() -> None:
    one = published("a", "b")
    known = one.state.generation
    for content_id, expected in (("c2", "other"), ("c3", ""), ("c4", "c1")):
        placed = stamps(one.tell(publish(content_id, known=known)))
        asked = replace(publish(content_id, known=known), expected=expected)
        one.tell(asked)
        sent = [message for node, stamp in placed.items()
                for _, message in one.hold(node, stamp, replace(KEY, content_id=content_id))]  # fmt: skip
        answer = sent[-1]
        if expected == "c1":
            assert isinstance(answer, Published)
        else:
            assert isinstance(answer, Refused)
            assert answer.code == "precondition_failed"


def test_a_machine_without_room_ends_the_publishing() -> None:
    one = Cluster("a", "b")
    (first, _) = stamps(one.tell(publish())).items()
    one.tell(NotHeld(first[0], KEY, first[1]))
    assert one.tick() == []


def test_an_empty_table_is_published_at_once() -> None:
    one = Cluster("a", "b")
    sent = one.tell(replace(publish(), shape=(0,)))
    assert [type(message) for _, message in sent] == [Placed, Published]


def test_an_alias_moves_and_a_late_repetition_of_an_older_move_does_not() -> None:
    one = published("a", "b")
    known = one.state.generation
    first = Change("x", "put_alias", "best", "items@1", known)
    assert [type(message) for _, message in one.tell(first)] == [Changed]
    second = Change("y", "remove_alias", "best", "", one.state.generation)
    assert [type(message) for _, message in one.tell(second)] == [Changed]
    ((_, answer),) = one.tell(first)
    assert isinstance(answer, Refused)
    assert answer.code == "stale_map"
    assert one.state.map.aliases == {}
    assert [type(message) for _, message in one.tell(second)] == [Changed]


def test_a_version_that_an_alias_names_is_not_removed() -> None:
    one = published("a", "b")
    one.tell(Change("x", "put_alias", "best", "items@1", one.state.generation))
    ((_, answer),) = one.tell(Change("y", "remove", "items", "1", one.state.generation))
    assert isinstance(answer, Refused)
    assert answer.code == "tensor_in_use"


def test_a_lost_machine_is_replaced_when_the_copy_is_whole_and_not_before() -> None:
    one = published("a", "b", "c")
    lost = one.nodes_of()[0]
    free = ({"a", "b", "c"} - set(one.nodes_of())).pop()
    del one.counts[lost]
    orders: list[tuple[str, Hold]] = []
    for _ in range(7):
        orders = [(to, message) for to, message in one.tick() if isinstance(message, Hold)] or orders
    assert [to for to, _ in orders] == [f"{free}:80"]
    assert orders[0][1].sources == tuple(f"{node}:80" for node in one.nodes_of() if node != lost)
    assert lost in one.nodes_of()
    one.hold(free, orders[0][1].stamp)
    assert lost not in one.nodes_of()
    assert free in one.nodes_of()


def test_a_drained_machine_drops_its_ranges_only_when_the_map_does_not_list_them() -> None:
    one = published("a", "b", "c")
    drained = one.nodes_of()[0]
    free = ({"a", "b", "c"} - set(one.nodes_of())).pop()
    one.tell(Change("x", "drain", drained, "", one.state.generation))
    sent = [message for _ in range(4) for _, message in one.tick()]
    assert not any(isinstance(message, Drop) for message in sent)
    (stamp,) = {message.stamp for message in sent if isinstance(message, Hold)}
    one.hold(free, stamp)
    assert drained not in one.nodes_of()
    drops = [(to, message) for _ in range(4) for to, message in one.tick() if isinstance(message, Drop)]
    assert {to for to, _ in drops} == {f"{drained}:80"}
    assert min(message.stamp for _, message in drops) > stamp


def test_a_machine_that_lost_its_disk_gets_its_ranges_again() -> None:
    one = published("a", "b")
    one.held["a"].clear()
    orders = [(to, message) for _ in range(2) for to, message in one.tick() if isinstance(message, Hold)]
    assert orders[0][0] == "a:80"
    assert orders[0][1].sources == ("b:80",)
    assert orders[0][1].digest == "d"


def test_an_older_inventory_is_not_heeded() -> None:
    one = published("a", "b")
    one.tell(Inventory("a", "a:80", 1, 0, 1000, ()))
    one.sent = []
    one.do(one.coordinator.tick(one.now))
    assert one.sent == []


def test_a_shard_at_a_new_address_is_listed_there() -> None:
    one = published("a", "b")
    one.tell(Inventory("a", "a:81", 2, 1, 1000, tuple(one.held["a"].values())))
    one.do(one.coordinator.tick(one.now))
    assert Replica("a:81", "a") in one.state.map.tables["items"].current.ranges[0].replicas


def test_a_shard_that_moved_while_rows_were_written_is_listed_where_it_is_now() -> None:
    one = Cluster("a", "b")
    given = stamps(one.tell(publish()))
    one.tell(Inventory("a", "a:81", 2, 1, 1000, ()))
    one.hold("a", given["a"])
    one.hold("b", given["b"])
    assert set(one.state.map.tables["items"].current.ranges[0].replicas) == {Replica("a:81", "a"), Replica("b:80", "b")}


def test_two_shards_that_say_that_they_answer_at_one_address_stop_no_other_change() -> None:
    one = Cluster("a", "b")
    given = stamps(one.tell(publish()))
    one.tell(Inventory("b", "a:80", 2, 1, 1000, ()))
    one.hold("a", given["a"])
    one.hold_back = True
    one.tell(publish("c2"))
    one.hold_back = False
    (refused,) = [message for _, message in one.hold("b", given["b"]) if isinstance(message, Refused)]
    assert (refused.request_id, refused.code) == ("c1", "internal")
    assert one.state.map.tables == {}
    one.tell(Inventory("b", "b:80", 3, 1, 1000, ()))
    for node, stamp in stamps(one.tell(publish("c3"))).items():
        one.hold(node, stamp, RangeKey("c3", 0, 10))
    assert one.state.map.tables["items"].current.content_id == "c3"


def test_the_next_coordinator_goes_on_from_the_last_record() -> None:
    one = published("a", "b")
    before = one.state
    one.begin("two")
    assert (one.state.map.tables, one.state.term) == (before.map.tables, before.generation + 1)
    ((_, answer),) = one.tell(MapRequest(0))
    assert isinstance(answer, MapAnswer)
    assert answer.map == one.state.map


def test_of_two_coordinators_only_the_later_one_makes_records() -> None:
    one = published("a", "b")
    older = one.coordinator
    one.begin("two")
    last = one.state
    one.coordinator = older
    assert one.tell(Change("x", "drain", "a", "", one.state.generation)) == []
    assert older.stopped
    assert one.state == last
    assert one.tick() == []


def test_a_coordinator_that_hears_of_a_later_one_stops() -> None:
    one = published("a", "b")
    older = one.coordinator
    one.begin("two")
    one.coordinator = older
    assert one.tick() == []
    assert older.stopped


def test_two_that_begin_at_once_do_not_take_each_others_record_for_their_own() -> None:
    first, second = Coordinator("one", OPTIONS), Coordinator("two", OPTIONS)
    (created,) = first.latest(None, 0.0)
    (refused,) = second.latest(None, 0.0)
    assert isinstance(created, CreateRecord)
    assert isinstance(refused, CreateRecord)
    assert created.state.generation == refused.state.generation
    assert second.exists(created.state, 0.0) == [ReadLatest()]
    assert first.exists(created.state, 0.0) == []
    assert (first.state, second.stopped) == (created.state, False)


@pytest.mark.parametrize("silent", [True, False])
def test_a_version_whose_router_is_silent_is_given_up(*, silent: bool) -> None:
    one = Cluster("a", "b")
    placed = stamps(one.tell(publish()))
    for _ in range(12):
        one.tick()
        if not silent:
            one.tell(publish())
    for node, stamp in placed.items():
        one.hold(node, stamp)
    assert bool(one.state.map.tables) == (not silent)


@pytest.mark.parametrize(
    ("release", "works"),
    [
        ("", True), ("3.4.0", True), ("3.3.9", True), ("3.5.0rc1", True), ("3.4", True),
        ("3.2.0", False), ("3.6.1", False), ("2.4.0", False), ("4.4.0", False), ("x", False), ("3", False),
    ],
)  # fmt: skip
def test_versions_more_than_one_minor_apart_are_refused(release: str, works: bool) -> None:
    coordinator = Coordinator("one", OPTIONS, "3.4.1")
    coordinator.latest(None, 0.0)
    coordinator.created(1, 0.0)
    asked = coordinator.receive("r", MapRequest(0, release), 0.0)
    told = coordinator.receive("a:1", Inventory("a", "a:1", 1, 1, 100, (), release), 0.0)
    assert coordinator.nodes.known == (["a"] if works else [])
    if works:
        assert (asked, told) == ([Send("r", MapAnswer(coordinator.state.map))], [])
        return
    for action, sender, subject in ((asked[0], "r", ""), (told[0], "a:1", "a")):
        assert isinstance(action, Send)
        assert action.to == sender
        assert isinstance(action.message, Refused)
        assert (action.message.request_id, action.message.code) == (subject, "version_mismatch")
        assert repr(release) in action.message.detail
        assert "'3.4.1'" in action.message.detail


def test_a_router_that_is_refused_says_why() -> None:
    class Link:
        def exchange(self, sender: str, texts: Sequence[bytes], wait_s: float) -> list[bytes]:
            del sender, texts, wait_s
            return [message_to_json(Refused("", "version_mismatch", "it is of version '9.9'"))]

        def close(self) -> None:
            """Nothing is held."""

    with pytest.raises(OSError, match="of version '9"):
        CoordinatorClient(Link(), lambda _: None).newer_map(0)


def test_a_replacement_waits_until_what_it_needs_room_of_is_dropped() -> None:
    """Machines of 1.1 times a range, twice as many as a version needs: a third version has the places of the first."""
    one = Cluster("a", "b", "c", "d")
    size = 36

    def hear() -> None:
        one.hear(*one.counts)
        for node in one.counts:
            one.counts[node] += 1
            held = tuple(replace(found, size=size) for found in one.held[node].values())
            one.tell(Inventory(node, f"{node}:80", 1, one.counts[node], 40, held))

    def put(content_id: str) -> list[str]:
        key = RangeKey(content_id, 0, 9)
        asked = replace(publish(content_id), shape=(9,))
        sent = one.tell(asked)
        placed = stamps(sent) if sent else {}
        for node, stamp in placed.items():
            one.hold(node, stamp, key)
        hear()
        return sorted(placed)

    one.now += 10
    hear()
    one.do(one.coordinator.tick(one.now))
    assert put("v1") == ["a", "b"]
    assert put("v2") == ["c", "d"]
    assert put("v3") == []
    for node in ("a", "b"):
        del one.held[node][RangeKey("v1", 0, 9)]
    hear()
    assert put("v3") == ["a", "b"]
    refused = one.tell(replace(publish("v4"), shape=(11,)))
    assert [(type(message), getattr(message, "code", "")) for _, message in refused] == [
        (Refused, "insufficient_storage")
    ]
