"""Every second, check files that may be replaced while the service is running, such as API keys and certificates.

Changes are detected by comparing contents. Times and sizes are not enough, because they may be those of a file that was
previously unreadable or is incomplete. If new contents cannot be used, the last good ones stay in force, and each
problem is logged once. A parent of workers also watches the files, and passes the last good contents to each worker
that starts.
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
"""Upper bound on the bytes read from a file (about seven thousand keys), so that a wrong path cannot fill the
memory.
"""
Contents = Mapping[Path, bytes]
LastGood = Mapping[str, Mapping[str, str]]
"""The contents that a parent's watchers have in force: for each watcher's name, the paths of its files and their
contents as text.
"""
Loaded = TypeVar("Loaded")
_AS_TEXT: Final = "latin-1"
"""An encoding in which all bytes are valid text."""


def read_small_file(path: Path, largest: int = LARGEST_FILE) -> bytes:
    """Return the contents of a regular file of at most `largest` bytes; links are followed.

    Raises OSError, including for other kinds of files. A named pipe is opened without waiting for a writer.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    with os.fdopen(fd, "rb") as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise OSError(errno.EFBIG, f"it has more than {largest} bytes", str(path))
    return content


class FileWatcher(Generic[Loaded]):
    """Watches the files that `read` reads, and parses their contents with `load`.

    Both functions raise exceptions of type `refusal` for files that cannot be used. Log lines begin with `name`, and
    use `kept` to say what stays in force. `problem` is the text of the last refusal, or "" once the files are valid
    again.
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

    def read_first(self, last_good: LastGood | None = None) -> Loaded:
        """Read the files for the first time. Raises the refusal if they cannot be used.

        In that case, a worker uses the contents in `last_good` instead, which its parent read earlier.
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
        """Return the contents in force, by path. They are this watcher's part of `LastGood`."""
        return {str(path): content.decode(_AS_TEXT) for path, content in self._in_force.items()}

    def read_if_changed(self) -> Loaded | None:
        """Load and return the new contents, or return None if they are unchanged or cannot be used.

        Does blocking I/O.
        """
        try:
            contents = self._read()
            loaded = None if contents == self._in_force else self._load(contents)
        except self._refusal as error:
            self._log_error(error)
            return None
        if self.problem:
            logger.info("%s: the problem has gone", self.name)
            self.problem = ""
        self._in_force = contents
        return loaded

    def _log_error(self, error: Exception) -> None:
        if str(error) != self.problem:
            self.problem = str(error)
            logger.error("%s: %s; %s", self.name, error, self._kept)

    async def watch(self, take: Callable[[Loaded], object], interval: float = 1.0) -> None:
        """Call `take` in the event loop with the loaded contents of changed files. Runs until it is canceled."""
        while True:
            await asyncio.sleep(interval)
            # Read the files in a thread, because file systems may hang.
            found = await asyncio.to_thread(self.read_if_changed)
            if found is not None:
                take(found)
