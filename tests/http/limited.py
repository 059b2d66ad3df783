"""Servers that are kept short: of memory, by a control group or a ulimit, and of disk, by a small file system."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.http.server import GATHERND
from tests.needs import skip_without

ROOT = Path("/sys/fs/cgroup")
SERVE = (GATHERND, "serve")
FILES = 2048
"""How many an ext4 has room for: what fills it up makes so many."""


@dataclass
class MemoryGroup:
    """A control group whose processes may use `limit` bytes together, page cache included."""

    folder: Path
    limit: int
    version: int

    def command(self, command: Sequence[str] = SERVE) -> list[str]:
        """`command`, started within the group."""
        return ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(self.folder), *command]

    def peak(self) -> int:
        """The most bytes that were in use."""
        if self.version == 1:
            return int((self.folder / "memory.max_usage_in_bytes").read_text())
        peak = self.folder / "memory.peak"
        return int((peak if peak.exists() else self.folder / "memory.current").read_text())

    def killed(self) -> int:
        """How many processes were killed for want of memory."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        counts = dict(line.split() for line in (self.folder / name).read_text().splitlines())
        return int(counts.get("oom_kill", 0))


def _parents() -> Iterator[tuple[int, Path]]:
    """Groups below which one with a memory limit may be made: this process's, or one above."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            yield 1, ROOT / "memory" / path.lstrip("/")
        elif not controllers:
            group = ROOT / path.lstrip("/")
            for folder in (group, *group.parents):
                control = folder / "cgroup.subtree_control"
                if control.exists() and "memory" in control.read_text().split():
                    yield 2, folder
                    break


@contextmanager
def memory_group(limit: int) -> Iterator[MemoryGroup]:
    """A new control group with a memory limit in bytes; skips the test where none can be made."""
    for version, parent in _parents():
        folder = parent / f"gathernd-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            if version == 1:
                (folder / "memory.limit_in_bytes").write_text(str(limit))
            else:
                (folder / "memory.max").write_text(str(limit))
                with suppress(OSError):
                    (folder / "memory.swap.max").write_text("0")
            yield MemoryGroup(folder, limit, version)
        finally:
            for _ in range(1000):
                with suppress(OSError):
                    folder.rmdir()
                    break
                time.sleep(0.05)
        return
    pytest.skip("needs control groups with a memory limit that this user may make")


class SmallDisk:
    """A file system of its own, in a mount namespace that a sleeping process keeps and that ends with it."""

    def __init__(self, keeper: subprocess.Popen[bytes], place: Path, user: bool) -> None:
        self.place = place
        self._keeper = keeper
        self._user = user

    def command(self, command: Sequence[str] = SERVE) -> list[str]:
        """`command`, started where the file system is to be seen at `place`."""
        user = ["--user", "--preserve-credentials"] if self._user else []
        return ["nsenter", "--target", str(self._keeper.pid), "--mount", *user, "--", *command]

    @property
    def seen(self) -> Path:
        """The root of the file system, as it is seen from here."""
        return Path(f"/proc/{self._keeper.pid}/root{self.place}")

    def free(self) -> int:
        """Bytes that are free."""
        status = os.statvfs(self.seen)
        return status.f_bavail * status.f_frsize


@contextmanager
def small_disk(place: Path, kind: str, size: int) -> Iterator[SmallDisk]:
    """A file system of `size` bytes, a tmpfs or an ext4, mounted at `place`; skips where this user may not."""
    skip_without(unshare="util-linux", nsenter="util-linux", mount="mount")
    place.mkdir(parents=True)
    user = os.geteuid() != 0
    if kind == "tmpfs":
        mount = f"mount -t tmpfs -o size={size} tmpfs '{place}'"
    else:
        image = place.with_suffix(".img")
        with image.open("wb") as file:
            file.truncate(size)
        make = shutil.which("mkfs.ext4", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        if make is None:
            pytest.skip("needs the Debian package e2fsprogs")
        if user:
            pytest.skip("needs root, who alone may mount an ext4")
        subprocess.run([make, "-q", "-F", "-m", "0", "-N", str(FILES), str(image)], check=True, capture_output=True)
        mount = f"mount -o loop '{image}' '{place}'"
    flags = ["--user", "--map-root-user"] if user else []
    with subprocess.Popen(
        ["unshare", "--mount", *flags, "sh", "-c", f"{mount} && echo mounted && exec sleep 3600"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as keeper:  # fmt: skip
        assert keeper.stdout is not None
        assert keeper.stderr is not None
        try:
            if keeper.stdout.readline() != b"mounted\n":
                pytest.skip(f"needs the right to mount: {keeper.stderr.read().decode().strip()}")
            yield SmallDisk(keeper, place, user)
        finally:
            keeper.kill()


def as_owner(command: Sequence[str] = SERVE) -> list[str]:
    """`command`, for which the permissions of files hold; root's processes do not heed them otherwise."""
    if os.geteuid() != 0:
        return list(command)
    skip_without(setpriv="util-linux")
    return ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--", *command]
