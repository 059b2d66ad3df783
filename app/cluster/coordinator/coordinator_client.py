"""What a router asks the coordinator: for newer maps, for changes, and to publish. It blocks, and is for threads.

What has no answer is asked again, equal to the first time, until the request's time is over; see `publish_request` and
docs/cluster-protocol.md for why that is safe.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Condition, Thread
from typing import Final, Literal, TypeVar
from uuid import uuid4

from app import __version__
from app.cluster.coordinator.coordinator_link import CoordinatorLink, exchange
from app.cluster.coordinator.message_json import BadMessage
from app.cluster.coordinator.messages import Change, Changed, MapAnswer, MapRequest, Message, Publish, Refused, Target
from app.cluster.coordinator.publish_request import PublishRequest
from app.cluster.coordinator.releases import MISMATCH
from app.cluster.shard_map import ShardMap
from app.errors import CODES, GatherError

ASK_AGAIN_S: Final = 1.0
ANSWER_S: Final = 15.0
"""How long a change, and the end of a publishing, may take."""
_PAUSE_S: Final = 0.2
Result = TypeVar("Result")


class StaleMap(Exception):
    """What was asked for was judged by a map that is too old."""


class CoordinatorClient:
    """One router's. `take` is given each map that an answer brings, which is newer or not."""

    def __init__(self, link: CoordinatorLink, take: Callable[[ShardMap], None]) -> None:
        self.link = link
        self.take = take
        self._name = f"map-{uuid4().hex}"

    def newer_map(self, known: int) -> ShardMap | None:
        """The map if it is newer than generation `known`. Raises OSError where the coordinator does not answer."""
        try:
            found = exchange(self.link, self._name, [MapRequest(known, __version__)])
        except BadMessage as error:
            raise OSError(str(error)) from None
        for message in found:
            if isinstance(message, Refused) and message.code == MISMATCH:
                raise OSError(f"it does not take this service, since {message.detail}")
        maps = [message.map for message in found if isinstance(message, MapAnswer)]
        return max(maps, key=lambda one: one.generation, default=None)

    def change(
        self,
        what: Literal["put_alias", "remove_alias", "remove", "drain", "undrain"],
        subject: str,
        value: str,
        known: int,
    ) -> ShardMap:
        """Make a change that was judged by the map of generation `known`: the map that has it.

        Raises StaleMap, shard_unavailable where the coordinator does not answer, and the error that it refuses with.
        """
        asked = Change(uuid4().hex, what, subject, value, known, time.time_ns())
        end = time.monotonic() + ANSWER_S
        while time.monotonic() < end:
            for message in self._try(asked.request_id, asked):
                match message:
                    case Changed(request_id, found) if request_id == asked.request_id:
                        self.take(found)
                        return found
                    case Refused(request_id, code, detail) if request_id == asked.request_id:
                        raise refused(code, detail)
        raise silent()

    def _try(self, sender: str, asked: Message) -> list[Message]:
        """Ask once, and wait for a while for what comes of it; nothing where the coordinator does not answer."""
        try:
            return exchange(self.link, sender, [asked], ASK_AGAIN_S)
        except (OSError, BadMessage):
            time.sleep(_PAUSE_S)
            return []

    def publish(self, asked: Publish) -> RunningPublication:
        """Begin to publish a version."""
        return RunningPublication(self, asked)


class RunningPublication:
    """A version that is being published: a thread asks the coordinator for it again and again, until `end`."""

    def __init__(self, client: CoordinatorClient, asked: Publish) -> None:
        self._client = client
        self._asked = asked
        self._request = PublishRequest(asked)
        self._changed = Condition()
        self._said: Publish | None = None
        """What the coordinator was told last."""
        self._over = False
        self._thread = Thread(target=self._run, name="publish", daemon=True)
        self._thread.start()

    def targets(self) -> Sequence[Target]:
        """Which shards are to get which rows. Raises what the coordinator refuses with, StaleMap, shard_unavailable."""
        return self._wait(lambda: self._request.targets or None)

    def check(self, placed: Sequence[Target]) -> None:
        """Raises unless the rows still go to where they were `placed`: a coordinator that began anew may move them."""
        with self._changed:
            self._raise_refusal()
            if {(one.node, one.key) for one in self._request.targets} != {(one.node, one.key) for one in placed}:
                raise unavailable("the rows would go to other machines now, since the coordinator began anew")

    def commit(self, expected: str, digest: str) -> Callable[[], tuple[int, ShardMap]]:
        """The rows may now be whole: the version becomes current if `expected` is (see `Publish.expected`). `digest` is
        that of all of them.

        The coordinator knows of it when this returns; call what it gives, once all rows are written, for the version's
        number and the map that has it. Both raise as `targets` does.
        """
        with self._changed:
            created = time.time_ns()
            asked = self._request.asked = replace(self._asked, expected=expected, sha256=digest, created=created)
        self._wait(lambda: self._said is asked or self._request.published or None)

        def published() -> tuple[int, ShardMap]:
            found = self._wait(lambda: self._request.published)
            self._client.take(found[1])
            return found

        return published

    def end(self) -> None:
        """Ask no more. What is not published by now is given up."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _wait(self, look: Callable[[], Result | None]) -> Result:
        end = time.monotonic() + ANSWER_S
        with self._changed:
            while True:
                self._raise_refusal()
                found = look()
                if found is not None:
                    return found
                left = end - time.monotonic()
                if left <= 0:
                    raise silent()
                self._changed.wait(left)

    def _raise_refusal(self) -> None:
        if self._request.outcome == "refused":
            raise refused(*self._request.refusal)

    def _run(self) -> None:
        sender = f"publish-{self._asked.content_id}"
        at = 0.0
        while True:
            with self._changed:
                if self._over or self._request.outcome is not None:
                    return
                asked = self._request.asked
            now = time.monotonic()
            is_due = asked is not self._said or now - at >= ASK_AGAIN_S
            try:
                found = exchange(self._client.link, sender, [asked] if is_due else [], 0.0 if is_due else _PAUSE_S)
            except (OSError, BadMessage):
                time.sleep(_PAUSE_S)
                continue
            with self._changed:
                if is_due:
                    self._said, at = asked, now
                for message in found:
                    self._request.receive(message)
                self._changed.notify_all()


def refused(code: str, detail: str) -> Exception:
    """What a refusal of the coordinator is raised as."""
    if code == "stale_map":
        return StaleMap(detail)
    if code == "shard_unavailable":
        return unavailable(detail)
    return GatherError(code if code in CODES else "internal", detail)


def unavailable(detail: str) -> GatherError:
    """shard_unavailable for a change of the map."""
    return GatherError("shard_unavailable", detail, retry_after=1)


def silent() -> GatherError:
    """shard_unavailable where the coordinator does not answer: whether the change is made is not known."""
    return unavailable("the coordinator of the cluster does not answer; whether the change is made is not known")
