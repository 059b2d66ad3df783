"""A program that stops backups and restores at every step that they take on the disk, and looks at what is found then.

    python -m tests.store.crash_backup MODE STRIDE SEED    die at every STRIDE-th step of two backups and a restore

The store is one that a service uses (here: this process), which goes on between the two backups. After each death the
store is as it was; the folder of the backup has the last backup that was answered, or the next one, whole, or is
refused where none was answered; a restore that was answered is there, and on one that was not no service starts, unless
it is whole. Backups and restores that are given again succeed.

MODE is that of `tests.store.crash`: `kill`, `half`, four losses of power, or `refused`, where one step meets an error
of the disk, the command is given again, and the power fails after it.
"""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from app.store import LocalStore, StoreRefused
from app.store.maintenance.backup import back_up
from app.store.maintenance.check_store import check
from app.store.maintenance.restore import restore
from tests.store.crash import (
    Change,
    Course,
    Etags,
    State,
    carry_out,
    compile_once,
    deaths,
    forked,
    found,
    opened,
    state_of,
    table,
)
from tests.store.helpers import strings
from tests.store.power import LOSSES, Power

MODES = ("kill", "half", *LOSSES, "refused")


def first() -> list[Change]:
    """What the first backup finds: kept versions, aliases, strings, scatters in logs, and a name that is gone."""
    rows = [[0], [299]], np.full((2, 64), -1, np.float32), "none"
    return [
        ("keep", "t", (2, table(1))),
        ("keep", "t", (2, table(2))),
        ("put", "s", strings("a", "bé", "", "d" * 300)),
        ("put", "u", table(3)),
        ("delete", "u", None),
        ("alias", "a", "t@1"),
        ("scatter", "a", rows),
    ]


def second() -> list[Change]:
    """What has changed by the second: contents that stay, change, come and go."""
    rows = [[1], [298]], np.full((2, 64), 5, np.float32), "add"
    return [
        ("scatter", "t@1", rows),
        ("scatter", "s", ([[3]], strings("longer than before"), "none")),
        ("keep", "t", (1, table(4))),
        ("put", "u", table(5)),
        ("alias", "b", "t@3"),
        ("alias", "a", "t@3"),
    ]


class Folders:
    """The folders of a case within `room`."""

    def __init__(self, room: Path) -> None:
        self.store, self.backup, self.new, self.third = (room / name for name in ("store", "backup", "new", "third"))


class Case:
    """Two backups and a restore that are stopped at their step number `last`."""

    def __init__(self, room: Path, mode: str, last: int, rng: random.Random) -> None:
        self.mode, self.last = mode, last
        self.loss = rng.choice(LOSSES)
        self.name = f"{mode}, step {last}" + (f", then {self.loss}" if mode == "refused" else "")
        self.disk, self.image, self.report = room / "disk", room / "image", room / "report"
        self.disk.mkdir()
        self.report.write_text("")
        self.courses = [Course({}, first())]
        self.courses.append(Course(self.courses[0].tables[-1], second()))
        self.states = [state_of(course.tables[-1]) for course in self.courses]

    def run(self) -> bool:
        """Whether the step was reached."""
        code = forked(self.work)
        assert code in (0, 137), (self.name, code)
        left = self.image if self.image.exists() else self.disk
        assert forked(lambda: self.judge(Folders(left), self.report.read_text().split())) == 0, self.name
        return "died" in self.report.read_text()

    def tell(self, what: str) -> None:
        with self.report.open("a") as file:
            file.write(what + "\n")

    def work(self) -> None:
        folders = Folders(self.disk)
        store = opened(folders.store)
        power = Power(self.disk, self.image)
        power.arm(self.mode, self.last)
        power.dying = lambda: self.tell("died")

        def change(changes: list[Change], key: str) -> None:
            power.counts = False
            for number, one in enumerate(changes):
                carry_out(store, one, f"{key}-{number}")
            power.counts = True
            self.tell(key)

        def command(work: Callable[[], object], key: str) -> None:
            try:
                work()
            except (OSError, StoreRefused) as error:
                if not power.refused:
                    raise AssertionError(self.name) from error
                self.judge_refused(folders, store)
                work()
            self.tell(key)

        change(first(), "first")
        command(lambda: back_up(folders.store, folders.backup), "backup")
        change(second(), "second")
        command(lambda: back_up(folders.store, folders.backup), "backup")
        command(lambda: restore(folders.backup, folders.new), "restored")
        if self.mode == "refused":
            if power.refused:
                self.tell("died")
            power.mode = self.loss
            power.dying = lambda: None
            power.die()
        if self.mode in LOSSES:
            power.draw()

    def judge_refused(self, folders: Folders, store: LocalStore) -> None:
        """After an error: the service goes on, and what the command was to replace is as it was."""
        told = self.report.read_text().split()
        assert found(store, Etags()) == self.states["second" in told], self.name
        assert not (folders.new / "format").exists() or "restored" in told

    def judge(self, folders: Folders, told: list[str]) -> None:
        done = told.count("backup")
        state = self.states[min("second" in told, 1)]
        if "first" in told:
            self.judge_backup(folders, [self.states[done - 1]] if done else [], self.states[done : done + 1])
        self.judge_new(folders, must="restored" in told)
        store = opened(folders.store)
        if "first" in told:
            assert found(store, Etags()) == state, self.name
        back_up(folders.store, folders.backup)
        assert [one for one in check(folders.backup) if one.level == "damage"] == [], self.name
        self.judge_restored(folders.backup, folders.third, [found(store, Etags())])
        assert [one for one in check(folders.store) if one.level == "damage"] == [], self.name
        numbers = {name: carry_and_number(store, name) for name in "stuv"}
        new = opened(folders.third)
        assert {name: carry_and_number(new, name) for name in "stuv"} == numbers, self.name
        new.close()
        store.close()

    def judge_backup(self, folders: Folders, before: list[State], after: list[State]) -> None:
        """The backup is one that was answered, or the next; where none was, it may be refused."""
        try:
            self.judge_restored(folders.backup, folders.third, before + after)
        except StoreRefused as error:
            if before:
                raise AssertionError(f"{self.name}: the backup is gone") from error
        shutil.rmtree(folders.third, ignore_errors=True)

    def judge_restored(self, backup: Path, new: Path, allowed: list[State]) -> None:
        restore(backup, new)
        assert list(check(new)) == [], self.name
        store = opened(new)
        assert found(store, Etags()) in allowed, self.name
        store.close()

    def judge_new(self, folders: Folders, *, must: bool) -> None:
        if (folders.new / "format").exists():
            store = opened(folders.new)
            assert found(store, Etags()) == self.states[1], self.name
            store.close()
            return
        assert not must, f"{self.name}: a restore that was answered is gone"
        if any(folders.new.glob("tensors/*")):  # without contents it is as good as empty
            with suppress(StoreRefused):
                opened(folders.new)
                raise AssertionError(f"{self.name}: a service starts on half a restore")
        if (folders.new / "restoring").exists():
            self.judge_restored(folders.backup, folders.new, [self.states[1]])


def carry_and_number(store: LocalStore, name: str) -> int:
    """The number of the next version of a name."""
    carry_out(store, ("keep", name, (9, table(9))), "")
    return store.version_numbers(name)[-1]


def main() -> None:
    mode, stride, seed = sys.argv[1:]
    compile_once()
    count = deaths(int(stride), int(seed), lambda room, last, rng: Case(room, mode, last, rng).run())
    sys.stdout.write(f"{count}\n")


if __name__ == "__main__":
    main()
