"""Unix sockets that the service listens on: files whose mode and owner decide who may connect.

A socket is made in a folder that only this user may enter, gets its mode and owner there, and moves to its path once it
accepts connections. So nobody connects before the mode is set, and if two services start at once, one sees the other's
socket. A start replaces the file of a killed service. It is refused if another program listens at the path, or if the
path is another kind of file.
"""

from __future__ import annotations

import errno
import fcntl
import grp
import os
import pwd
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from app.server.listening_sockets import BACKLOG, CannotListen

LONGEST_PATH: Final = 107
"""Bytes of a Unix socket's path on Linux (sockaddr_un), without the final zero."""
_CONNECT_S: Final = 1.0
_NAME: Final = "socket"
_KEEP: Final = -1
"""chown's value for an unchanged owner."""


@dataclass(frozen=True)
class Permissions:
    """Mode of a socket's file, and its owner as `user`, `user:group` or `:group`; None keeps the process's owner."""

    mode: int
    owner: str | None

    def ids(self) -> tuple[int, int]:
        """The ids of user and group, -1 for an unchanged one. Raises CannotListen if a name is unknown."""
        user, _, group = (self.owner or "").partition(":")
        return _number(user, "user"), _number(group, "group")


class UnixSocket:
    """One path at which the service listens. `setting` is the variable that names it, for messages.

    `folder_address` is where the socket is bound, and `put_in_place` moves it to its path. As a context manager it
    removes the file at the end.
    """

    def __init__(self, path: Path, permissions: Permissions, setting: str) -> None:
        """Check the path, and that a socket can be made there. Raises CannotListen."""
        self.path = path.absolute()
        self._setting = setting
        self._mode = permissions.mode
        self._ids = permissions.ids()
        self._placed: tuple[int, int] | None = None
        if len(os.fsencode(self.path)) > LONGEST_PATH:
            raise self._refusal(f"the path is longer than {LONGEST_PATH} bytes")
        self._check_free()
        try:
            self._folder = Path(tempfile.mkdtemp(prefix=".gathernd-", dir=self.path.parent))
        except OSError as error:
            raise self._refusal(error.strerror or "the folder cannot be written to") from None
        # Through the descriptor the path is short, however long the folder's is. It stays open until the process ends:
        # gRPC removes the file of its socket when its server ends, and finds none there.
        self._folder_fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def folder_address(self) -> str:
        """Where to bind the socket before it is put in place."""
        return f"/proc/self/fd/{self._folder_fd}/{_NAME}"

    def listen(self) -> socket.socket:
        """A socket that accepts connections at the path. Raises CannotListen."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.bind(self.folder_address)
            made.listen(BACKLOG)
            self.put_in_place()
        except OSError as error:
            made.close()
            raise self._refusal(error.strerror or "the socket cannot be made") from None
        except BaseException:
            made.close()
            raise
        return made

    def put_in_place(self) -> None:
        """Set mode and owner of the socket, which is bound to `folder_address` and listens, and move it to its path.

        Raises CannotListen.
        """
        made = self._folder / _NAME
        try:
            made.chmod(self._mode)
            if self._ids != (_KEEP, _KEEP):
                os.chown(made, *self._ids)
            # If two services start at once, the second sees the socket of the first.
            with self._locked():
                self._check_free()
                found = made.stat()
                made.rename(self.path)
            self._folder.rmdir()
        except OSError as error:
            raise self._refusal(error.strerror or "the socket cannot be made") from None
        self._placed = found.st_dev, found.st_ino

    def remove(self) -> None:
        """Remove the file, unless another has replaced it, and the leftovers of an attempt."""
        with suppress(OSError), self._locked():
            found = self.path.lstat()
            if (found.st_dev, found.st_ino) == self._placed:
                self.path.unlink()
        with suppress(OSError):
            (self._folder / _NAME).unlink()
        with suppress(OSError):
            self._folder.rmdir()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the folder: nobody else adds a socket or removes one meanwhile."""
        parent = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(parent, fcntl.LOCK_EX)
            yield
        finally:
            os.close(parent)

    def _check_free(self) -> None:
        """Raise CannotListen if the path has anything other than the socket of a service that has ended."""
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._refusal(error.strerror or "the path cannot be looked at") from None
        if not stat.S_ISSOCK(found.st_mode):
            raise self._refusal("a file that is no socket is there")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(_CONNECT_S)
            try:
                probe.connect(str(self.path))
            except FileNotFoundError:
                return
            except OSError as error:
                if error.errno == errno.ECONNREFUSED:
                    return
                if not isinstance(error, BlockingIOError | TimeoutError):
                    raise self._refusal(error.strerror or "the socket there cannot be tried") from None
        raise self._refusal("another program listens there")

    def _refusal(self, reason: str) -> CannotListen:
        return CannotListen(f"cannot listen on {self.path}: {reason}; {self._setting} sets another path")


def is_private(mode: int) -> bool:
    """Whether only its user and group may connect to a socket of this mode: to connect is to write."""
    return not mode & stat.S_IWOTH


def _number(name: str, kind: str) -> int:
    if not name:
        return _KEEP
    if name.isdecimal():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid if kind == "user" else grp.getgrnam(name).gr_gid
    except KeyError:
        raise CannotListen(f"there is no {kind} {name!r}; GATHERND_UDS_OWNER names one") from None
