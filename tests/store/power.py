"""What of a store's folder would be left if the power failed now, over the lives of several processes.

`Power` wraps the functions of `app.store.files.disk_writes`. It counts the steps that are taken there, ends the process
or refuses at one of them, and knows what fsync has made durable. The catalogue is SQLite's, whose transactions are
taken to be durable once they are committed, so that its files are copied as they are.
"""

from __future__ import annotations

import errno
import inspect
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.store.catalogue.catalogue_database import FILE, FILES
from app.store.files import disk_writes

STEPS = tuple(
    name
    for name, function in vars(disk_writes).items()
    if inspect.isfunction(function) and function.__module__ == disk_writes.__name__
)
LOSSES = ("lost", "names", "data", "first")
PAGE = 4096


class Power:
    """The durable state of `folder`; `image` is where what a loss of power leaves is written to.

    `contents` holds what of each inode is durable, `names` which inodes the names of each folder durably are, and
    `unwritten` the files whose pages a failed fsync has marked clean though they are not on the disk, and `dirty` those
    of the pages that were changed again.
    """

    def __init__(self, folder: Path, image: Path) -> None:
        self.folder, self.image = folder, image
        self.count = self.last = 0
        self.mode = ""
        self.handover: Path | None = None
        self.contents = {path.stat().st_ino: path.read_bytes() for path in folder.rglob("*") if is_ours(path)}
        self.names = {part: self.entries(part) for part in self.folders()}
        self.unwritten: dict[int, bytes] = {}
        self.dirty: dict[int, set[int]] = {}
        self.refused = ""
        self.counts = True
        """Whether steps are counted: while they are not, none is the last one."""
        self.dying: Callable[[], None] = lambda: None
        for name in STEPS:
            setattr(disk_writes, name, self.wrapped(name, getattr(disk_writes, name)))

    def arm(self, mode: str, last: int, handover: Path | None = None) -> None:
        """End the process at the step number `last` from now, as `mode` says, and leave what is durable to `handover`.

        `kill` and `half` leave the folder as it is, the latter with the last write done by half; a mode of LOSSES draws
        `image`; `refused` ends nothing: that step meets EIO.
        """
        self.mode, self.count, self.last, self.handover = mode, 0, last, handover

    def take_over(self, handover: Path) -> None:
        """Go on from what the process that has ended had made durable."""
        self.contents, self.names, self.unwritten = pickle.loads(handover.read_bytes())

    def folders(self) -> list[Path]:
        return [self.folder, *(path for path in self.folder.rglob("*") if path.is_dir())]

    def entries(self, part: Path) -> dict[str, int]:
        return {path.name: path.stat().st_ino for path in part.iterdir() if is_ours(path)}

    def wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            self.count += self.counts
            if self.counts and self.count == self.last:
                if self.mode == "refused":
                    if name != "store_words":
                        self.refuse(name, arguments)
                else:
                    if self.mode == "half" and name in ("write", "write_at"):
                        content = memoryview(arguments[1])
                        real(arguments[0], content[: len(content) // 2], *arguments[2:])
                    self.die()
            if self.unwritten and name in ("store_words", "write", "write_at"):
                self.note_dirty(name, arguments)
            result = real(*arguments, **options)
            if name == "create":
                self.contents.pop(os.fstat(result).st_ino, None)
                self.unwritten.pop(os.fstat(result).st_ino, None)
            elif name == "fsync":
                self.synced(arguments[0])
            elif name == "fsync_folder":
                self.names[arguments[0]] = self.entries(arguments[0])
            return result

        return step

    def synced(self, fd: int) -> None:
        """All of a file is durable but for pages that an earlier fsync failed to write and that have not changed."""
        status = os.fstat(fd)
        content = os.pread(fd, status.st_size, 0)
        failed = self.unwritten.get(status.st_ino)
        if failed is not None:
            old, now = self.contents.get(status.st_ino, b"").ljust(len(content), b"\0"), bytearray(content)
            for at in range(0, len(content), PAGE):
                rewritten = at // PAGE in self.dirty.get(status.st_ino, set())
                if not rewritten and content[at : at + PAGE] == failed[at : at + PAGE]:
                    now[at : at + PAGE] = old[at : at + PAGE]
            content = bytes(now)
        self.contents[status.st_ino] = content

    def note_dirty(self, name: str, arguments: Any) -> None:
        """Note which pages that a failed fsync has marked clean are changed again, to whatever bytes."""
        if name == "store_words":
            mapping, change = arguments
            before = bytes(mapping)
            for path in self.folder.rglob("*"):
                if is_ours(path) and path.stat().st_ino in self.unwritten and path.read_bytes() == before:
                    # Carried out on the inverted bytes first: what differs from them then has been written.
                    mapping[:] = inverted = bytes(255 - octet for octet in before)
                    change(mapping)
                    after = bytes(mapping)
                    mapping[:] = before
                    pages = range(0, len(before), PAGE)
                    found = {at // PAGE for at in pages if after[at : at + PAGE] != inverted[at : at + PAGE]}
                    self.dirty.setdefault(path.stat().st_ino, set()).update(found)
            return
        fd, content, *rest = arguments
        inode = os.fstat(fd).st_ino
        if inode in self.unwritten:
            begin = rest[0] if rest else os.lseek(fd, 0, os.SEEK_CUR)
            pages = range(begin // PAGE, (begin + len(content) - 1) // PAGE + 1)
            self.dirty.setdefault(inode, set()).update(pages)

    def refuse(self, name: str, arguments: Any) -> None:
        self.refused = name
        if name in ("fsync", "flush_range"):
            status = os.fstat(arguments[0])
            self.unwritten[status.st_ino] = os.pread(arguments[0], status.st_size, 0)
            self.dirty.pop(status.st_ino, None)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def die(self) -> None:
        """End the process as `mode` says."""
        self.dying()
        if self.mode in LOSSES:
            self.draw()
        self.hand_over()
        os._exit(137)

    def hand_over(self) -> None:
        """Leave what is durable to the process that goes on."""
        if self.handover is not None:
            self.handover.write_bytes(pickle.dumps((self.contents, self.names, self.unwritten)))

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
                elif self.mode == "first" and inode in now and len(durable) >= PAGE:
                    durable = now[inode].read_bytes()[:PAGE] + durable[PAGE:]
                (target / name).write_bytes(durable)
        for path in self.folder.rglob(FILE + "*"):
            if not path.name.endswith("-shm"):
                (self.image / path.relative_to(self.folder)).write_bytes(path.read_bytes())


def is_ours(path: Path) -> bool:
    """Whether a path is a file, and not one of SQLite's."""
    return path.is_file() and path.name not in FILES
