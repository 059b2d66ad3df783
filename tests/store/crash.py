"""A program that stops the store at every step it takes on the disk, and looks at what a restart finds.

    python -m tests.store.crash steps MODE STRIDE SEED     die at every STRIDE-th step of a fixed sequence of changes
    python -m tests.store.crash kills COUNT SEED           SIGKILL at random moments, then a restart
    python -m tests.store.crash workers COUNT SEED         SIGKILL of one of two workers, then the other one carries on

It imports once and forks for each case. After each death every tensor must be as after the changes that were
acknowledged, or as after one change more, and nothing else may be there.

MODE says what dying means. `kill`: the process ends, what it wrote stays. `half`: so, with the last write done by half.
The others are a loss of power, of which `lost` keeps what fsync has made durable and nothing more; `names` keeps what
has been done to names too (so a file renamed before its fsync is empty); `data` keeps all contents, but of names what
fsync made durable; `first` keeps, besides what is durable, the first page of each file.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.store import LocalStore, disk
from app.store.catalogue import FILE, FILES
from app.store.changes import Waiting
from app.tensors.limits import Limits
from tests.store.helpers import change_of, files, put, read, scatter, scatter_together, strings

STEPS = (
    "create", "append_to", "write", "write_at", "store", "fsync", "fsync_folder", "truncate", "rename", "unlink",
    "commit",
)  # fmt: skip
MODES = ("kill", "half", "lost", "names", "data", "first")
State = dict[str, list[Any]]
Change = tuple[str, str, Any]
CHECKPOINT = 1200
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where the folders are: what dying does is played here, so no real disk needs to be waited for."""


def table(seed: int, rows: int = 300) -> NDArray[np.float32]:
    """A table whose rows tell its version; some hundreds of bytes more than a block of checksums."""
    return (np.arange(rows * 64, dtype=np.float32) + seed * 1000).reshape(rows, 64)


def fixed() -> list[Change]:
    """Every kind of change, the checkpoint of a log among them."""
    words = strings("a", "bé", "", "d" * 300)
    return [
        ("put", "t", table(1)),
        ("put", "s", words),
        ("scatter", "t", ([[0], [299]], np.full((2, 64), -1, np.float32), "none")),
        ("scatter", "t", ([[0], [0], [7]], np.full((3, 64), 2, np.float32), "add")),
        ("put", "t", table(2)),
        ("scatter", "t", ([[5]], np.full((1, 64), 3, np.float32), "mul")),
        ("scatter", "t", ([[k] for k in range(20)], np.full((20, 64), 9, np.float32), "max")),
        ("together", "t", [([[1], [2]], np.full((2, 64), k, np.float32), "add") for k in range(3)]),
        ("scatter", "s", ([[3], [0]], strings("", "longer than before"), "none")),
        ("delete", "s", None),
        ("put", "s", words[:2]),
        ("scatter", "t", ([[298, 3]], np.ones(1, np.float32), "add")),
        ("delete", "t", None),
    ]


def random_changes(rng: random.Random) -> Iterator[Change]:
    """Changes without end that fit each other."""
    there: set[str] = set()
    while True:
        name = rng.choice("tuv")
        if name not in there or rng.random() < 0.2:
            there.add(name)
            yield "put", name, table(rng.randrange(1000))
        elif rng.random() < 0.1:
            there.discard(name)
            yield "delete", name, None
        elif rng.random() < 0.3:
            yield "together", name, [random_scatter(rng) for _ in range(rng.randrange(1, 5))]
        else:
            yield "scatter", name, random_scatter(rng)


def random_scatter(rng: random.Random) -> tuple[list[list[int]], NDArray[np.float32], str]:
    """Some rows, their updates, and how they meet."""
    count = rng.choice((1, 3, 40))
    rows = [[rng.randrange(300)] for _ in range(count)]
    values = np.full((count, 64), rng.randrange(-9, 9), np.float32)
    return rows, values, rng.choice(("none", "add", "max"))


def expected(state: State, change: Change) -> State:
    """What is there after `change`, by plain NumPy."""
    kind, name, what = change
    after = dict(state)
    if kind == "delete":
        del after[name]
        return after
    if kind == "put":
        after[name] = what.tolist()
        return after
    if kind == "together":
        for one in what:
            after = expected(after, ("scatter", name, one))
        return after
    data = np.array(state[name], object if isinstance(state[name][0], str) else np.float32)
    rows, values, reduction = what
    for place, value in zip(rows, values, strict=True):
        at = tuple(place)
        functions: dict[str, Callable[[Any, Any], Any]] = {
            "none": lambda old, new: new,
            "add": np.add,
            "mul": np.multiply,
            "max": np.maximum,
        }
        data[at] = functions[reduction](data[at], value)
    after[name] = data.tolist()
    return after


def carry_out(store: LocalStore, change: Change, key: str | None = None) -> None:
    kind, name, what = change
    if kind == "put":
        put(store, name, what, step=30_000)
    elif kind == "scatter":
        rows, values, reduction = what
        scatter(store, name, rows, values, reduction, key=key)
    elif kind == "together":
        keys = [f"{key}.{number}" if key else None for number in range(len(what))]
        batch = [
            Waiting(change_of(store, name, one[0], one[1], one[2], keyed))
            for one, keyed in zip(what, keys, strict=True)
        ]
        for outcome in scatter_together(store, name, batch):
            assert isinstance(outcome, str), outcome
    else:
        store.delete(name)


def found(store: LocalStore) -> State:
    return {name: read(store, name).tolist() for name in store.names()}


class Power:
    """What of a folder would be left if the power failed now; for `disk`, whose functions it wraps."""

    def __init__(self, folder: Path, mode: str, last: int, image: Path) -> None:
        self.folder, self.mode, self.last, self.image = folder, mode, last, image
        self.count = 0
        self.contents = {path.stat().st_ino: path.read_bytes() for path in folder.rglob("*") if is_ours(path)}
        # SQLite's own files: a transaction that was committed is durable, one that was not is not there.
        connection = sqlite3.connect(folder / FILE)
        self.catalogue = connection.serialize()
        connection.close()
        self.names = {part: self.entries(part) for part in self.folders()}
        for name in STEPS:
            setattr(disk, name, self.wrapped(name, getattr(disk, name)))

    def folders(self) -> list[Path]:
        return [self.folder, *(path for path in self.folder.rglob("*") if path.is_dir())]

    def entries(self, part: Path) -> dict[str, int]:
        return {path.name: path.stat().st_ino for path in part.iterdir() if is_ours(path)}

    def wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any) -> Any:
            self.count += 1
            if self.count == self.last:
                if self.mode == "half" and name in ("write", "write_at"):
                    content = memoryview(arguments[1])
                    real(arguments[0], content[: len(content) // 2], *arguments[2:])
                self.die()
            result = real(*arguments)
            if name == "fsync":
                fd = arguments[0]
                status = os.fstat(fd)
                self.contents[status.st_ino] = os.pread(fd, status.st_size, 0)
            elif name == "fsync_folder":
                self.names[arguments[0]] = self.entries(arguments[0])
            elif name == "commit":
                self.catalogue = arguments[0].serialize()
            return result

        return step

    def die(self) -> None:
        if self.mode not in ("kill", "half"):
            self.draw()
        os._exit(137)

    def draw(self) -> None:
        """Write what is left to `image`."""
        now = {path.stat().st_ino: path for path in self.folder.rglob("*") if is_ours(path)}
        for part in self.folders():
            target = self.image / part.relative_to(self.folder)
            target.mkdir(parents=True, exist_ok=True)
            names = self.entries(part) if self.mode == "names" else self.names.get(part, {})
            for name, inode in names.items():
                durable = self.contents.get(inode, b"")
                if self.mode == "data" and inode in now:
                    durable = now[inode].read_bytes()
                elif self.mode == "first" and inode in now and len(durable) >= 4096:
                    durable = now[inode].read_bytes()[:4096] + durable[4096:]
                (target / name).write_bytes(durable)
        (self.image / FILE).write_bytes(self.catalogue)


def is_ours(path: Path) -> bool:
    """Whether a path is a file, and not one of SQLite's."""
    return path.is_file() and path.name not in FILES


def forked(work: Callable[[], None]) -> int:
    """The exit code of `work` in a child."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001  (told in the child's name)
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def opened(folder: Path, token: str | None = None) -> LocalStore:
    store = LocalStore(folder, Limits(), token=token)
    store.open()
    store._changes.checkpoint_bytes = CHECKPOINT
    return store


def retries(done: list[Change]) -> list[tuple[str, Change]]:
    """The scatters that a client might send again, with their keys: those of tensors not removed since."""
    found: list[tuple[str, Change]] = []
    for number, change in enumerate(done):
        if change[0] == "delete":
            found = [(key, kept) for key, kept in found if kept[1] != change[1]]
        elif change[0] == "scatter":
            found.append((f"key-{number}", change))
        elif change[0] == "together":
            found += [(f"key-{number}.{part}", change) for part in range(len(change[2]))]
    return found


def judge(folder: Path, allowed: list[State], case: str, again: Sequence[tuple[str, Change]] = ()) -> None:
    """A restart finds one of the states that are allowed, sound and tidy, and twice the same; and the store works.

    Scatters that were acknowledged and come `again` with their keys change nothing.
    """
    for _ in range(2):
        store = opened(folder)
        state = found(store)
        assert state in allowed, f"{case}: {summary(state)} is none of {[summary(one) for one in allowed]}"
        allowed = [state]
        assert {path.split("/")[0] for path in files(folder)} <= {"tensors", "logs"}, (case, files(folder))
        assert len([path for path in files(folder) if path.startswith("tensors/")]) == len(state), case
        store.verify(Event(), 0)
        for name in store.names():
            store.metadata(name)
        for key, change in again:
            if change[1] in state:
                assert store.remembered(change[1], key, "digest") is not None, (case, key)
        put(store, "after", np.arange(3))
        scatter(store, "after", [[0]], np.array([5]))
        assert read(store, "after").tolist() == [5, 1, 2]
        store.delete("after")
        store.close()


def summary(state: State) -> str:
    return str({name: (len(value), hash(str(value)) % 10_000) for name, value in state.items()})


def steps(mode: str, stride: int, seed: int) -> int:
    """Die at every `stride`-th step of the fixed sequence; how many deaths there were."""
    changes = fixed()
    states: list[State] = [{}]
    for change in changes:
        states.append(expected(states[-1], change))
    rng = random.Random(seed)
    deaths, last = 0, 1 + rng.randrange(stride)
    while True:
        with tempfile.TemporaryDirectory(dir=MEMORY) as room:
            folder, image, acknowledged = Path(room) / "store", Path(room) / "image", Path(room) / "acknowledged"
            opened(folder).close()
            acknowledged.write_text("")

            def work(
                folder: Path = folder, image: Path = image, acknowledged: Path = acknowledged, last: int = last
            ) -> None:
                store = opened(folder)
                power = Power(folder, mode, last, image)
                with acknowledged.open("a") as file:
                    for number, change in enumerate(changes):
                        carry_out(store, change, f"key-{number}")
                        file.write("x")
                        file.flush()
                if mode not in ("kill", "half"):
                    power.draw()

            code = forked(work)
            assert code in (0, 137), code
            done = len(acknowledged.read_text())
            left = image if mode not in ("kill", "half") else folder
            case = f"{mode}, step {last}, after {done} changes"
            if code == 137 and rng.random() < 0.5:
                # The restart dies too.
                forked(lambda left=left: die_in_recovery(left, rng.randrange(1, 12)))  # type: ignore[misc]
            judge(left, [states[done], *states[done + 1 : done + 2]], case, retries(changes[:done]))
            if code == 0:
                assert done == len(changes)
                return deaths
            deaths += 1
        last += stride


def die_in_recovery(folder: Path, last: int) -> None:
    Power(folder, "kill", last, folder)
    opened(folder)


def kills(count: int, seed: int) -> int:
    """SIGKILL a process that changes tensors at random moments, over and over in one folder; how many changes lived."""
    rng = random.Random(seed)
    state: State = {}
    total = 0
    with tempfile.TemporaryDirectory(dir=MEMORY) as room:
        folder = Path(room) / "store"
        for turn in range(count):
            changes, after = planned(state, rng)
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                change_and_tell(opened(folder), changes, writer)
            done = killed(child, reader, writer, rng)
            allowed = after[done : done + 2]
            judge(folder, allowed, f"kill {turn}, after {done} changes")
            store = opened(folder)
            state = found(store)
            store.close()
            total += done
    return total


def workers(count: int, seed: int) -> int:
    """SIGKILL a worker; another one of its group finds what it left, without a restart."""
    rng = random.Random(seed)
    state: State = {}
    total = 0
    with tempfile.TemporaryDirectory(dir=MEMORY) as room:
        folder = Path(room) / "store"
        store = opened(folder)
        for turn in range(count):
            changes, after = planned(state, rng)
            reader, writer = os.pipe()
            store._catalogue.close()  # SQLite's connections must not be there in two processes
            child = os.fork()
            if child == 0:
                change_and_tell(opened(folder, store.group.token), changes, writer)
            done = killed(child, reader, writer, rng)
            for name in store.names():
                content = store.content(name)
                with content.hold():
                    content.resident()
            state = found(store)
            assert state in after[done : done + 2], f"worker {turn}, after {done} changes"
            total += done
        store.close()
        judge(folder, [state], "workers")
    return total


def planned(state: State, rng: random.Random) -> tuple[list[Change], list[State]]:
    """Changes from `state` on, and the states that they go through, `state` itself first."""
    changes: list[Change] = [("delete", name, None) for name in state]
    source = random_changes(rng)
    changes += [next(source) for _ in range(60)]
    after = [state]
    for change in changes:
        after.append(expected(after[-1], change))
    return changes, after


def change_and_tell(store: LocalStore, changes: list[Change], writer: int) -> None:
    os.write(writer, b"o")
    for change in changes:
        carry_out(store, change)
        os.write(writer, b"x")
    os._exit(0)


def killed(child: int, reader: int, writer: int, rng: random.Random) -> int:
    """Kill `child` some time after it has opened the store; how many changes it told of."""
    os.close(writer)
    assert os.read(reader, 1) == b"o"
    time.sleep(rng.random() * 0.15)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    told = b""
    while piece := os.read(reader, 4096):
        told += piece
    os.close(reader)
    return len(told)


def main() -> None:
    kind, *rest = sys.argv[1:]
    if kind == "steps":
        result = steps(rest[0], int(rest[1]), int(rest[2]))
    else:
        result = {"kills": kills, "workers": workers}[kind](int(rest[0]), int(rest[1]))
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main()
