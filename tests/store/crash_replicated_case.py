"""Stopping the store at every step of what it does with a replicated content, and looking at what is found.

After each death, the log has the records before or after the change that was under way, no other; readers see a prefix
of what was told to be committed, unless the content is unsettled; the keys of exactly those records are known; and the
change is made again, and all others after it, with the result that they have without a death. MODE is `kill`, `half`,
or a loss of power, as `tests.store.crash` says; `survivor` kills one of two workers, and the other one goes on;
`refused` ends nothing: one step meets an error of the disk, and the change comes again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any, Protocol

from app.errors import GatherError
from app.store import LocalStore
from app.store.maintenance.check_store import check
from tests.store.crash import COMPLAINTS, LOGS, forked, opened
from tests.store.power import LOSSES, Power
from tests.store.replicated import TENSOR, digest


class Logged(Protocol):
    """A record of a model."""

    @property
    def sequence(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def key(self) -> str: ...


MODES = ("kill", "half", *LOSSES, "survivor", "refused")


@dataclass(frozen=True)
class Model:
    """What a store is to have: the highest epoch, all records, and how many of them are committed."""

    epoch: int = 0
    records: tuple[Logged, ...] = ()
    applied: int = 0

    def tail_epochs(self, applied: int) -> tuple[int, ...]:
        return tuple(one.epoch for one in self.records[applied:])


Work = Callable[[LocalStore], object]


@dataclass(frozen=True)
class Change:
    """One change of a store, and the model after it."""

    name: str
    work: Work
    after: Model


class Course:
    """A course of changes, each made of the model before it. `at(n)` is the model before change number n."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.keys = 0

    def at(self, number: int) -> Model:
        return self.changes[number - 1].after if number else Model()

    @property
    def now(self) -> Model:
        return self.at(len(self.changes))

    def add(self, name: str, work: Work, after: Model) -> None:
        self.changes.append(Change(name, work, after))

    def epoch(self, epoch: int) -> None:
        def work(store: LocalStore) -> None:
            with store.replicated.open(TENSOR) as content:
                content.set_epoch(epoch)

        self.add(f"epoch {epoch}", work, replace(self.now, epoch=epoch))

    def commit(self, sequence: int) -> None:
        def work(store: LocalStore) -> None:
            with store.replicated.open(TENSOR) as content:
                content.commit_to(sequence)

        self.add(f"commit {sequence}", work, replace(self.now, applied=sequence))

    def drop(self, after: int) -> None:
        def work(store: LocalStore) -> None:
            with store.replicated.open(TENSOR) as content:
                content.drop_tail(after)

        self.add(f"drop {after}", work, replace(self.now, records=self.now.records[:after]))


@dataclass(frozen=True)
class Contents:
    """What a case is about: how the content comes to be, how it changes, and how it is compared with the model."""

    put: Callable[[LocalStore], object]
    course: Callable[[], Course]
    read: Callable[[bytes], object]
    """What frames say; `told` is what they are to say."""
    told: Callable[[Sequence[Any]], object]
    values: Callable[[LocalStore], bytes]
    """The content; `after` is what it is to be after some records."""
    after: Callable[[Sequence[Any]], bytes]


class Case:
    """The course, stopped at step number `last`."""

    def __init__(self, room: Path, mode: str, last: int, rng: random.Random, contents: Contents) -> None:
        self.folder, self.image, self.done_file, self.died = (
            room / "store", room / "image", room / "done", room / "died",
        )  # fmt: skip
        self.mode, self.last, self.rng = mode, last, rng
        self.contents = contents
        self.course = contents.course()
        self.name = f"{mode}, step {last}"
        store = opened(self.folder)
        contents.put(store)
        store.close()

    def run(self) -> bool:
        """Whether the step was reached."""
        if self.mode == "survivor":
            code = forked(self.survive)
            assert code == 0, (self.name, code)
            return self.died.exists()
        code = forked(self.refused if self.mode == "refused" else self.change)
        assert code in (0, 137), (self.name, code)
        left = self.image if self.image.exists() else self.folder
        if code == 137 and self.rng.random() < 0.5:
            second = self.rng.randrange(1, 30)
            forked(lambda: self.die_on_opening(left, second))
        store = opened(left)
        self.judge(store, self.done(), is_lost=self.mode in LOSSES)
        store.close()
        store = opened(left)  # what was settled once stays so
        self.look(store, self.course.now, 0, is_lost=False)
        store.close()
        return self.died.exists()

    def done(self) -> int:
        return self.done_file.stat().st_size if self.done_file.exists() else 0

    def go_on(self, store: LocalStore, first: int) -> None:
        for change in self.course.changes[first:]:
            change.work(store)
            with self.done_file.open("ab") as file:
                file.write(b"x")

    def change(self) -> None:
        store = opened(self.folder)
        power = Power(self.folder, self.image)
        power.dying = self.died.touch
        power.arm(self.mode, self.last)
        self.go_on(store, 0)
        if self.mode in LOSSES:
            power.draw()

    def die_on_opening(self, folder: Path, last: int) -> None:
        Power(folder, folder).arm("kill", last)
        with opened(folder).replicated.open(TENSOR):
            pass

    def survive(self) -> None:
        store = opened(self.folder)

        def work() -> None:
            own = opened(self.folder, store.group.token)
            power = Power(self.folder, self.image)
            power.dying = self.died.touch
            power.arm(self.rng.choice(("kill", "half")), self.last)
            self.go_on(own, 0)

        store._catalogue.close()  # SQLite's connections must not be there in two processes
        assert forked(work) in (0, 137), self.name
        self.judge(store, self.done(), is_lost=False)
        store.close()

    def refused(self) -> None:
        store = opened(self.folder)
        beside = opened(self.folder, store.group.token)
        power = Power(self.folder, self.image)
        power.arm("refused", self.last)
        for number, change in enumerate(self.course.changes):
            error = tried(change.work, store)
            if error is not None:
                assert power.refused, error
                assert isinstance(error, OSError) or error.code in ("insufficient_storage", "shard_unavailable"), error
                power.counts = False
                self.look(beside, self.course.at(number), number, is_lost=False)
                change.work(store)
            power.counts = False
            for each in (store, beside):
                self.look(each, change.after, number + 1, is_lost=False)
            power.counts = True
            with self.done_file.open("ab") as file:
                file.write(b"x")
        COMPLAINTS.texts.clear()  # a checkpoint that was refused is told, and tried again
        if power.count >= self.last:
            self.died.touch()

    def judge(self, store: LocalStore, done: int, *, is_lost: bool) -> None:
        """Look at what is there after `done` changes and the death, make the other changes, and look at the end."""
        before, after = self.course.at(done), self.course.at(min(done + 1, len(self.course.changes)))
        case = f"{self.name}, after {done} changes"
        found = self.look(store, before, done, is_lost=is_lost)
        assert found in (before, after), case
        store.verify(Event(), 0)
        assert not store.metadata(TENSOR).damaged, case
        with store.replicated.open(TENSOR) as content:
            content.commit_to(found.applied)  # its primary tells it again
        changes = self.course.changes[done + (found == after and found != before) :]
        for change in changes:
            change.work(store)
        self.look(store, self.course.now, len(self.course.changes), is_lost=is_lost)
        logs = sum(path.stat().st_size for path in (store.folder / "logs").iterdir())
        assert logs < LOGS, f"{case}: the logs have grown to {logs} bytes"
        store.verify(Event(), 0)
        assert not COMPLAINTS.texts, (case, COMPLAINTS.texts)
        damage = [finding for finding in check(store.folder) if finding.level == "damage"]
        assert not damage, (case, damage)

    def look(self, store: LocalStore, before: Model, done: int, *, is_lost: bool) -> Model:
        """Which model this is: that before change number `done`, or after it."""
        after = self.course.at(min(done + 1, len(self.course.changes))) if done else before
        if not done:
            after = self.course.changes[0].after if before == Model() else before
        case = f"{self.name}, after {done} changes"
        with store.replicated.open(TENSOR) as content:
            state, tail = content.state(), content.frames_after(content.state().applied)
        keys = store.replicated.keys(TENSOR)
        matching = [
            model
            for model in (after, before)
            if model.epoch == state.epoch
            and state.last == len(model.records)
            and state.tail == model.tail_epochs(state.applied)
            and (0 if is_lost else min(before.applied, after.applied)) <= state.applied <= model.applied
            and tail is not None
            and self.contents.read(tail) == self.contents.told(model.records[state.applied :])
        ]
        assert matching, f"{case}: {state} is neither {brief(before)} nor {brief(after)}"
        model = matching[0] if state.applied == matching[0].applied else matching[-1]
        known = model.records[: state.applied]
        if state.settled or not is_lost:
            assert self.contents.values(store) == self.contents.after(known), f"{case}: {state} has other rows"
        # Keys that a checkpoint has entered are known after a loss of power though their records are in the tail again.
        committed = max(one.applied for one in matching) if is_lost else len(known)
        least, most = {one.key for one in known}, {one.key for one in model.records[:committed]}
        if done < len(self.course.changes) and self.course.changes[done].name == "adopt":
            # The keys of a copy are entered before it is there: a replica that copies is not in sync, and answers none.
            most |= {one.key for one in after.records}
        assert least <= {one.key for one in keys} <= most, f"{case}: {state} has keys {keys}"
        for one in model.records:
            answer = store.find_answer(TENSOR, one.key, digest(one.key))
            assert answer is None if one.key not in most else answer is not None or one.key not in least, (case, one)
            assert answer is None or answer.etag.endswith(f'-{one.sequence}"'), (case, one)
        return model


def brief(model: Model) -> str:
    return f"{model.epoch}, {model.applied} of {[one.epoch for one in model.records]}"


def tried(work: Work, store: LocalStore) -> GatherError | OSError | None:
    """The error that a change meets."""
    try:
        work(store)
    except (GatherError, OSError) as error:
        return error
    return None
