"""Files that may be replaced while the service runs, such as API keys and certificates: read once a second.

What counts is their contents, since times and sizes may be those of a file that could not be read, or not yet. Contents
that cannot be used leave the last good ones in force, and are logged once for each problem. The parent of several
workers watches them too, and hands the last good ones on to workers that start.
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
LastGood = Mapping[str, Mapping[str, str]]
"""What a parent's watchers have in force: by the name of each, the paths of its files and their bytes as text."""
Loaded = TypeVar("Loaded")
_AS_TEXT: Final = "latin-1"
"""In which any bytes are text."""


def read_small_file(path: Path, largest: int = LARGEST_FILE) -> bytes:
    """The contents of a file of at most `largest` bytes, also by a link. Raises OSError, also for what is no file.

    A named pipe is opened without waiting for somebody to write to it.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    with os.fdopen(fd, "rb") as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise OSError(errno.EFBIG, f"it has more than {largest} bytes", str(path))
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
        self.name = name
        self.problem = ""
        self._read = read
        self._load = load
        self._refusal = refusal
        self._kept = kept
        self._in_force: Contents = {}

    def first(self, last_good: LastGood | None = None) -> Loaded:
        """Read the files for the first time. Those that cannot be used raise the refusal, unless this process is a
        worker, whose parent has read them before: `last_good`.
        """
        try:
            contents = self._read()
            loaded = self._load(contents)
        except self._refusal:
            if last_good is None or self.name not in last_good:
                raise
            contents = {Path(path): text.encode(_AS_TEXT) for path, text in last_good[self.name].items()}
            loaded = self._load(contents)
        self._in_force = contents
        return loaded

    def text(self) -> dict[str, str]:
        """The files in force, by their paths: a part of LastGood."""
        return {str(path): content.decode(_AS_TEXT) for path, content in self._in_force.items()}

    def changed(self) -> Loaded | None:
        """What the files say now; None where their contents are those in force or cannot be used. May block."""
        try:
            contents = self._read()
            loaded = None if contents == self._in_force else self._load(contents)
        except self._refusal as error:
            self._note(error)
            return None
        if self.problem:
            logger.info("%s: the problem has gone", self.name)
            self.problem = ""
        self._in_force = contents
        return loaded

    def _note(self, error: Exception) -> None:
        if str(error) != self.problem:
            self.problem = str(error)
            logger.error("%s: %s; %s", self.name, error, self._kept)

    async def watch(self, take: Callable[[Loaded], object], interval: float = 1.0) -> None:
        """Hand what changed files say to `take`, from the event loop. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(interval)
            # Read in a thread, since a file system may hang.
            found = await asyncio.to_thread(self.changed)
            if found is not None:
                take(found)
