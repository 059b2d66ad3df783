"""A coordinator's records as files of a folder, for clusters whose head keeps its own disk.

A record is written beside its place, synced, and given its name by a hard link, which fails where the name is taken:
so a number is used once, however many coordinators there are. Old records are emptied and keep their names, so that a
coordinator that slept for long finds its number taken. The folder must be on a file system of its machine.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final
from uuid import uuid4

KEPT: Final = 16
"""So many of the newest records keep their content."""
_NAME: Final = re.compile(r"record-([1-9][0-9]{0,18})")


class RecordFiles:
    """The records below `folder`, which is made if it is not there. All methods block on the disk; raise OSError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob("new-*"):
            left.unlink(missing_ok=True)

    def latest(self) -> bytes | None:
        """The record with the highest number, None where there is none."""
        numbers = self._numbers()
        return self.find(max(numbers)) if numbers else None

    def find(self, number: int) -> bytes | None:
        """The record of a number, None where there is none; b"" where it is an old one."""
        try:
            return self._path(number).read_bytes()
        except FileNotFoundError:
            return None

    def create(self, number: int, record: bytes) -> bytes | None:
        """Create a record durably: None, or the record that has this number already."""
        written = self._write(record)
        try:
            os.link(written, self._path(number))
        except FileExistsError:
            self._sync()  # it may be this one, of which the folder was not synced
            return self.find(number)
        finally:
            written.unlink(missing_ok=True)
        self._sync()
        self._empty(number - KEPT)
        return None

    def _empty(self, number: int) -> None:
        path = self._path(number)
        if number > 0 and path.exists() and path.stat().st_size:
            self._write(b"").rename(path)

    def _write(self, content: bytes) -> Path:
        path = self._folder / f"new-{uuid4().hex}"
        try:
            with path.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:  # a full disk, which what is left would keep full
            path.unlink(missing_ok=True)
            raise
        return path

    def _sync(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _path(self, number: int) -> Path:
        return self._folder / f"record-{number}"

    def _numbers(self) -> list[int]:
        found = (_NAME.fullmatch(entry.name) for entry in os.scandir(self._folder))
        return [int(match[1]) for match in found if match is not None]
