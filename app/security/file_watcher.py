"""Small files that may be replaced while the service runs, such as API keys and certificates: read once a second.

What counts is their contents, since times and sizes may be those of a file that could not be read, or not yet. Contents
that cannot be used leave the last good ones in force, and are logged once for each problem.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Generic, TypeVar

logger = logging.getLogger("gathernd")

LARGEST_FILE: Final = 1 << 20
"""Most bytes that are read of a file: some seven thousand keys, so that a wrong path does not fill the memory."""
Contents = Mapping[Path, bytes]
Loaded = TypeVar("Loaded")


class FileTooLarge(Exception):
    """A file has more than LARGEST_FILE bytes."""


def read_small_file(path: Path) -> bytes:
    """The contents of a file, also by a link. Raises FileTooLarge, and OSError, also for what is no file.

    A named pipe is opened without waiting for somebody to write to it.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    with os.fdopen(fd, "rb") as file:
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise FileTooLarge
    return content


class FileWatcher(Generic[Loaded]):
    """Watches the files that `read` reads, and makes of their contents what `load` returns.

    Both raise exceptions of the type `refusal` for files that cannot be used. `name` begins the log lines, and `kept`
    says in them what stays in force then. `problem` is the text of the last refusal, "" once the files are good again.
    """

    def __init__(
        self,
        read: Callable[[], Contents],
        load: Callable[[Contents], Loaded],
        refusal: type[Exception],
        name: str,
        kept: str,
    ) -> None:
        self.problem = ""
        self._read = read
        self._load = load
        self._refusal = refusal
        self._name = name
        self._kept = kept
        self._in_force: Contents | None = None

    def first(self) -> Loaded:
        """Read the files for the first time. Raises the refusal of files that cannot be used."""
        contents = self._read()
        loaded = self._load(contents)
        self._in_force = contents
        return loaded

    def changed(self) -> Loaded | None:
        """What the files say now; None where their contents are those in force or cannot be used. May block."""
        try:
            contents = self._read()
            loaded = None if contents == self._in_force else self._load(contents)
        except self._refusal as error:
            self._note(error)
            return None
        if self.problem:
            logger.info("%s: the problem has gone", self._name)
            self.problem = ""
        self._in_force = contents
        return loaded

    def _note(self, error: Exception) -> None:
        if str(error) != self.problem:
            self.problem = str(error)
            logger.error("%s: %s; %s", self._name, error, self._kept)

    async def watch(self, take: Callable[[Loaded], object], interval: float = 1.0) -> None:
        """Hand what changed files say to `take`, from the event loop. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(interval)
            # Read in a thread, since a file system may hang.
            found = await asyncio.to_thread(self.changed)
            if found is not None:
                take(found)
