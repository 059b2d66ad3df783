"""Unix sockets that the service listens on. The mode and owner of their files determine who may connect.

A socket is created in a folder that only this user may enter, and gets its mode and owner there. It moves to its path
when it accepts connections. Nobody can therefore connect before the mode is set, and if two services start at the same
time, one sees the other's socket. A file left behind by a killed service is replaced. The service refuses to start if
another program is listening at the path, or if the path is another kind of file.
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
"""Longest path of a Unix socket on Linux in bytes (sockaddr_un), without the final zero."""
_CONNECT_S: Final = 1.0
_NAME: Final = "socket"
_KEEP: Final = -1
"""chown's value to leave the owner unchanged."""


@dataclass(frozen=True)
class Permissions:
    """A socket file's mode, and its owner as `user`, `user:group` or `:group`. None keeps the process's owner."""

    mode: int
    owner: str | None

    def ids(self) -> tuple[int, int]:
        """Return the user and group ids; -1 leaves an id unchanged. Raises CannotListen if a name is unknown."""
        user, _, group = (self.owner or "").partition(":")
        return _number(user, "user"), _number(group, "group")


class UnixSocket:
    """A path at which the service listens. `setting` is the environment variable that sets it, for messages.

    The socket is bound to `folder_address`, and `put_in_place` moves it to its path. When used as a context manager, it
    removes the file at the end.
    """

    def __init__(self, path: Path, permissions: Permissions, setting: str) -> None:
        """Check the path, and that a socket can be created there. Raises CannotListen."""
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
        # The path through the descriptor is short even if the folder's path is long. The descriptor stays open until
        # the process ends, because gRPC removes the file at its socket's address when its server ends. By that time,
        # there is no file at this address.
        self._folder_fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def folder_address(self) -> str:
        """The address to bind the socket to. `put_in_place` then moves the socket to its path."""
        return f"/proc/self/fd/{self._folder_fd}/{_NAME}"

    def listen(self) -> socket.socket:
        """Return a socket that accepts connections at the path. Raises CannotListen."""
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
        """Set the mode and owner of the socket, which is listening at `folder_address`, and move it to its path.

        Raises CannotListen.
        """
        made = self._folder / _NAME
        try:
            made.chmod(self._mode)
            if self._ids != (_KEEP, _KEEP):
                os.chown(made, *self._ids)
            # If two services start at the same time, the second sees the socket of the first.
            with self._lock_folder():
                self._check_free()
                found = made.stat()
                made.rename(self.path)
            self._folder.rmdir()
        except OSError as error:
            raise self._refusal(error.strerror or "the socket cannot be made") from None
        self._placed = found.st_dev, found.st_ino

    def remove(self) -> None:
        """Remove the socket's file, unless it has been replaced, and the leftovers of any failed attempt."""
        with suppress(OSError), self._lock_folder():
            found = self.path.lstat()
            if (found.st_dev, found.st_ino) == self._placed:
                self.path.unlink()
        with suppress(OSError):
            (self._folder / _NAME).unlink()
        with suppress(OSError):
            self._folder.rmdir()

    @contextmanager
    def _lock_folder(self) -> Iterator[None]:
        """Lock the folder, so that no other service adds or removes a socket meanwhile."""
        parent = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(parent, fcntl.LOCK_EX)
            yield
        finally:
            os.close(parent)

    def _check_free(self) -> None:
        """Raise CannotListen if the path holds anything except the socket of a service that has ended."""
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._refusal(error.strerror or "the path cannot be looked at") from None
        if not stat.S_ISSOCK(found.st_mode):
            raise self._refusal("the path exists and is not a socket")
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
        raise self._refusal("another program is listening there")

    def _refusal(self, reason: str) -> CannotListen:
        return CannotListen(f"cannot listen on {self.path}: {reason}; {self._setting} sets another path")


def is_private(mode: int) -> bool:
    """Return whether only the user and group may connect to a socket of this mode.

    Connecting needs write permission.
    """
    return not mode & stat.S_IWOTH


def _number(name: str, kind: str) -> int:
    if not name:
        return _KEEP
    if name.isdecimal():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid if kind == "user" else grp.getgrnam(name).gr_gid
    except KeyError:
        raise CannotListen(f"the {kind} {name!r} of GATHERND_UDS_OWNER does not exist") from None
