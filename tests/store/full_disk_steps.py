"""Changes, backups and restores during which the disk fills up, at each step that they take on the disk.

Whatever meets the full disk is carried out, or refused whole with the code `insufficient_storage` and gives its room
back; once there is room it comes again and is carried out. Nothing that was acknowledged is lost, also where the
process is killed on the full disk, and the store starts there.

    python -m tests.store.full_disk_steps SUBJECT FOLDER STRIDE SEED    at every STRIDE-th step

It prints how many steps that were, and how often a full disk was met. SUBJECT is a sequence of `tests.store.crash`
(contents, versions, imports), or `backups`, of which the last is restored.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.errors import GatherError
from app.store import LocalStore, StoreRefused, import_records
from app.store.files import disk_writes
from app.store.files.disk_writes import FULL
from app.store.maintenance.backup import back_up
from app.store.maintenance.check_store import check
from app.store.maintenance.restore import restore
from tests.store.crash import (
    MEMORY,
    MOST_RECORDS,
    SEQUENCES,
    Course,
    Etags,
    KnownRecords,
    State,
    Tables,
    carry_out,
    compile_once,
    forked,
    found,
    judge,
    key_of,
    opened,
    state_of,
    tried,
)
from tests.store.crash_backup import first, second
from tests.store.filler import Filler
from tests.store.helpers import files
from tests.store.power import STEPS

DIED = 137
REACHED = 3
"""How a process ends in which the step came."""
REFUSALS = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")
"""One number, which all processes share: how often a full disk was met."""


class StepThatFills:
    """Fills the disk before step number `last` on it, counted from `begin` on."""

    def __init__(self, filler: Filler, last: int) -> None:
        self.filler, self.last = filler, last
        self.count = 0
        self.counts = self.reached = False
        for name in STEPS:
            setattr(disk_writes, name, self._wrapped(getattr(disk_writes, name)))

    def _wrapped(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            if self.counts:
                self.count += 1
                if self.count == self.last:
                    self.reached = True
                    self.filler.fill()
            return real(*arguments, **options)

        return step

    @contextmanager
    def counting(self) -> Iterator[None]:
        """The steps taken meanwhile are counted."""
        self.counts = True
        try:
            yield
        finally:
            self.counts = False


def each_step(case: Callable[[int], int], filler: Filler, stride: int, seed: int) -> int:
    """Run `case` in a process of its own for every `stride`-th step, until one is not reached; how many were."""
    last = 1 + random.Random(seed).randrange(stride)
    for count in range(10_000):
        ended = forked(lambda: os._exit(case(last)))  # noqa: B023  (called at once)
        filler.empty()
        if ended == 0:
            return count
        assert ended == REACHED, (last, ended)
        last += stride
    raise AssertionError("there is no end of steps")


def is_refusal(error: GatherError | OSError) -> bool:
    """Whether an error says that the disk is full."""
    if isinstance(error, OSError):
        return error.errno in FULL
    return error.code == "insufficient_storage" and os.strerror(errno.ENOSPC) in error.detail


def refusal(work: Callable[[], object]) -> OSError | None:
    """The error of the disk that `work` meets, if any."""
    try:
        work()
    except OSError as error:
        return error
    return None


# Changes of a store


class Changes:
    """A sequence of changes: the disk fills up at a step of one of them, and is full before each that follows."""

    def __init__(self, place: Path, filler: Filler, sequence: str) -> None:
        self.folder, self.filler = place / "store", filler
        self.changes = SEQUENCES[sequence]()
        self.course = Course({}, self.changes)
        self.done = mmap.mmap(-1, mmap.PAGESIZE)

    def run(self, last: int) -> int:
        """Whether step number `last` was reached, as `each_step` asks for it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.filler.empty()
        opened(self.folder).close()
        ended = forked(lambda: self.work(last))
        assert ended in (0, DIED), (last, ended)
        if ended == 0:
            return 0
        done = self.done[0]
        state = self.course.states[self.course.at[done]]
        self.filler.fill()
        assert forked(lambda: self.look(state)) == 0, (last, done)
        self.filler.empty()
        imports = {name for kind, name, _ in self.changes if kind.startswith("import")}
        records = KnownRecords(self.course.records[done], imports, MOST_RECORDS, forgotten=True)
        judge(self.folder, [state], f"full at step {last}", Etags(), [], None, records)
        return REACHED

    def look(self, state: dict[str, str]) -> None:
        """A start on the full disk finds `state`."""
        store = opened(self.folder)
        assert found(store, Etags()) == state
        store.close()

    def work(self, last: int) -> None:
        store = opened(self.folder)
        beside = opened(self.folder, store.group.token)
        full = StepThatFills(self.filler, last)
        more = last % 5
        for number, change in enumerate(self.changes):
            if full.reached:
                if not more:
                    break
                more -= 1
                self.filler.fill()
            before = {record.id for record in store.imports.page(1000, None)[0]}
            with full.counting():
                _, error = tried(store, change, key_of(number))
            if error is not None:
                assert full.reached, error
                assert is_refusal(error), (last, number, error)
                REFUSALS[0] += 1
                for each in (store, beside):
                    assert found(each, Etags()) == self.course.states[self.course.at[number]], (last, number, change[0])
                self.check_refused(store, before, self.course.at[number], f"step {last}, {change[0]}")
                self.filler.empty()
                carry_out(store, change, key_of(number))
            for each in (store, beside):
                assert found(each, Etags()) == self.course.states[self.course.at[number + 1]], (last, number)
            self.done[0] = number + 1
        if full.reached:
            self.filler.fill()
            os._exit(DIED)

    def check_refused(self, store: LocalStore, before: set[str], at: int, case: str) -> None:
        """What was refused has left nothing but the record of an import, which says why."""
        assert not [path for path in files(self.folder) if path.startswith("incoming/")], case
        store.remove_leftovers(at_once=True)
        versions = [key for key in self.course.states[at] if key[0] != "="]
        contents = [path for path in files(self.folder) if path.startswith("tensors/")]
        assert len(contents) == len(versions), case
        for record in store.imports.page(1000, None)[0]:
            if record.id not in before:
                assert record.state == "failed", (case, record)
                assert record.error is not None, (case, record)
                assert record.error.code == "insufficient_storage", (case, record)


# Backups and restores


class Backups:
    """Two backups onto the disk of the store, and a restore there, during one of which it fills up."""

    def __init__(self, place: Path, filler: Filler) -> None:
        self.place, self.filler = place, filler
        self.store, self.backup, self.new = (place / name for name in ("store", "backup", "new"))

    def run(self, last: int) -> int:
        """Whether step number `last` was reached, as `each_step` asks for it."""
        for folder in (self.store, self.backup, self.new):
            shutil.rmtree(folder, ignore_errors=True)
        self.filler.empty()
        full = StepThatFills(self.filler, last)
        store = opened(self.store)
        states: list[State] = []
        tables: Tables = {}
        for key, changes in (("first", first()), ("second", second())):
            course = Course(tables, changes)
            tables = course.tables[-1]
            for number, change in enumerate(changes):
                carry_out(store, change, f"{key}-{number}")
            self.command(full, lambda: back_up(self.store, self.backup), lambda: self.check_backup(states[-1:]))
            states.append(state_of(tables))
            self.check_backup(states[-1:])
        self.command(full, lambda: restore(self.backup, self.new), self.check_no_store)
        assert restored_state(self.new) == states[-1], last
        assert found(store, Etags()) == states[-1], last
        store.close()
        return REACHED if full.reached else 0

    def command(self, full: StepThatFills, work: Callable[[], object], check_refused: Callable[[], object]) -> None:
        """Give a command; where the disk is full it is refused, and comes again once there is room."""
        with full.counting():
            error = refusal(work)
        if error is not None:
            assert full.reached, error
            assert is_refusal(error), (full.last, error)
            REFUSALS[0] += 1
            check_refused()
            self.filler.empty()
            work()
        self.filler.empty()

    def check_backup(self, states: list[State]) -> None:
        """The backup is of the last of these states; where there is none it is refused."""
        with tempfile.TemporaryDirectory(dir=MEMORY) as room:
            copy = Path(room) / "store"
            if not states:
                with pytest.raises(StoreRefused):
                    restore(self.backup, copy)
                return
            assert [one for one in check(self.backup) if one.level == "damage"] == []
            restore(self.backup, copy)
            assert restored_state(copy) == states[-1]

    def check_no_store(self) -> None:
        """No service starts on half a restore."""
        if any(self.new.glob("tensors/*")):
            with pytest.raises(StoreRefused):
                opened(self.new)


def restored_state(folder: Path) -> State:
    assert list(check(folder)) == []
    store = opened(folder)
    state = found(store, Etags())
    store.close()
    return state


SUBJECTS = (*SEQUENCES, "backups")


def subject(what: str, place: Path, filler: Filler) -> Changes | Backups:
    """What a name of SUBJECTS means."""
    if what in SEQUENCES:
        return Changes(place, filler, what)
    return Backups(place, filler)


def main(what: str, place: Path, stride: int, seed: int) -> None:
    import_records.REMEMBERED = MOST_RECORDS  # type: ignore[misc]
    compile_once()
    filler = Filler(place / "filler")
    sys.stdout.write(json.dumps([each_step(subject(what, place, filler).run, filler, stride, seed), REFUSALS[0]]))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
