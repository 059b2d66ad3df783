"""The store on the local disk: which tensors there are, and how they come, change and go.

What a lookup costs when nothing has changed is two comparisons with shared memory and one of the file's size. All that
blocks (everything but `get`) belongs on a thread; any number of threads and processes may call at the same time.

    format          the version of this layout
    lock members state locks/   see `group`
    tensors/        one file for each tensor, see `layout`
    logs/           one redo log for each tensor that scatters have changed
    incoming/       contents that are not yet whole; emptied at start-up
    snapshots/      what downloads keep of contents that scatters change meanwhile, see `snapshot`
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Final

from app.errors import GatherError
from app.store import disk, fence, formats, snapshot
from app.store.base import Resident
from app.store.changes import Change, Changes, Waiting
from app.store.content import Content, Mapped, damaged, identity, is_still
from app.store.group import Group
from app.store.journal import Entry
from app.store.layout import (
    DAMAGED,
    BadFile,
    Description,
    check_name,
    file_name,
    stamp_of,
)
from app.store.model import ALWAYS, Conditions, Metadata, Old, Quota, metadata_of, peek, read_metadata
from app.store.patch import patched
from app.store.scatter import Writable
from app.store.snapshot import Snapshot
from app.store.together import MOST, Take, Together
from app.store.upload import Upload
from app.store.verify import Verifier
from app.tensors.dtypes import DTYPES, DType
from app.tensors.limits import Limits

logger = logging.getLogger("gathernd")
_SHORTAGE: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""What keeps a file from being read though nothing is wrong with it."""


class LocalStore:
    """The store in one folder. Nothing is touched before `open`."""

    def __init__(
        self,
        folder: Path,
        limits: Limits,
        quota: Quota | None = None,
        token: str | None = None,
        memory: int | None = None,
    ) -> None:
        """`token` is that of the process group which this process belongs to, None for the first process of one.

        `memory` is about how many bytes of contents stay in memory, as far as is known.
        """
        self.folder = folder
        self.limits = limits
        self.quota = quota or Quota()
        self._token = token
        self._memory = memory
        self._tensors = folder / "tensors"
        self._logs = folder / "logs"
        self._incoming = folder / "incoming"
        self._snapshots = folder / snapshot.FOLDER
        self._changes = Changes(self._logs, self._incoming)
        self._together = Together(self.scatter_all)
        self._group: Group | None = None
        self._state: memoryview = memoryview(bytes(8)).cast("Q")
        self._entries: dict[str, Mapped] = {}
        self._known: dict[str, tuple[tuple[int, int], Description]] = {}
        self._swept = -1
        self._names: tuple[int, list[str]] = -1, []

    @property
    def group(self) -> Group:
        """The process group that owns the folder, which this process has joined."""
        if self._group is None:
            raise RuntimeError("the store is not open")
        return self._group

    def open(self) -> None:
        """Claim the folder or join its group; whoever claims it puts in order what a crash has left.

        Raises StoreInUse, UnknownFormat and OSError.
        """
        if self._group is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        formats.version_of(self.folder)
        fence.register()
        group = Group(self.folder, self._token)
        try:
            if group.owner:
                formats.prepare(self.folder)
                for folder in (self._tensors, self._logs, self._incoming, self._snapshots):
                    folder.mkdir(exist_ok=True)
                self._recover()
        except BaseException:
            group.close()
            raise
        self._group = group
        self._state = group.state
        # A mapping takes a descriptor; the soft limit is often 1024.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            with suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def close(self) -> None:
        """Leave the group. Contents that are being read stay mapped until they have been."""
        if self._group is not None:
            self._entries.clear()
            self._group.close()
            self._group = None

    # Lookups

    def get(self, name: str) -> Resident | None:
        """The tensor of this name as it is now, or None. Raises tensor_damaged."""
        entry = self._entries.get(name)
        if entry is None or entry.generation != self._state[0]:
            entry = self._load(name)
            if entry is None:
                return None
        entry.resident = resident = entry.content.resident(entry.resident)
        return resident

    def content(self, name: str) -> Content:
        """The mapped content of this name. Raises tensor_not_found and tensor_damaged."""
        check_name(name)
        entry = self._load(name)
        if entry is None:
            raise not_found(name)
        entry.content.resident()
        return entry.content

    def snapshot(self, content: Content) -> Snapshot:
        """The content as it is now, for a reader that scatters do not wait for; to be closed.

        Raises tensor_damaged, overloaded and insufficient_storage.
        """
        with refusing():
            snapshot.clean(self._snapshots)
            with content.hold():
                return Snapshot(content, self._snapshots)

    def _load(self, name: str) -> Mapped | None:
        """Look at the file of `name`, and map it where it is not the one that is mapped. Raises tensor_damaged."""
        # The generation is read first: what changes after that is seen at the next lookup.
        generation = self._state[0]
        entry = self._entries.get(name)
        path = self._tensors / file_name(name)
        try:
            if entry is None or not is_still(entry.content, path):
                self._entries.pop(name, None)
                entry = Mapped(Content(path, name, partial(self._hold, name, path), self._memory))
                self._entries[name] = entry
                if entry.content.description.prefault or entry.content.description.lock:
                    Thread(target=entry.content.settle, name="prefault", daemon=True).start()
        except FileNotFoundError:
            self._entries.pop(name, None)
            return None
        except OSError as error:
            if error.errno in _SHORTAGE and self._entries:
                self._entries.clear()
                return self._load(name)
            raise _unreadable(name, error) from None
        entry.generation = generation
        return entry

    @contextmanager
    def _hold(self, name: str, path: Path) -> Iterator[None]:
        with self.group.lock(path.name):
            # A process that died within a scatter leaves what readers wait for in vain.
            with suppress(OSError), self._changes.open(path, name):
                pass
            yield

    def sweep(self) -> None:
        """Let go of contents that were replaced or removed, so that their space is given back. Cheap if none were."""
        generation = self._state[0]
        if generation != self._swept:
            for name in list(self._entries):
                with suppress(GatherError):
                    self._load(name)
            self._swept = generation

    # What there is

    def names(self) -> list[str]:
        """The names of all tensors, sorted; without those whose file cannot even tell its name."""
        generation, known = self._names
        if generation != self._state[0] or generation < 0:
            generation = self._state[0]
            known = sorted(description.name for description, _ in self._scan())
            self._names = generation, known
        return list(known)

    def metadata(self, name: str) -> Metadata:
        """What is known of a tensor. Raises invalid_field, tensor_not_found and tensor_damaged."""
        check_name(name)
        metadata = self._described(name)
        if metadata.damaged:
            raise damaged(name, "its checksums or its log do not match")
        return metadata

    def _described(self, name: str) -> Metadata:
        try:
            return read_metadata(*peek(self._tensors / file_name(name)))
        except FileNotFoundError:
            raise not_found(name) from None
        except BadFile as problem:
            raise damaged(name, str(problem)) from None
        except OSError as error:
            raise _unreadable(name, error) from None

    def etag(self, name: str) -> str | None:
        """The ETag of a tensor, also of one whose content is damaged; None where there is none."""
        old = self._old(file_name(name))
        return old.etag if old else None

    def page(self, limit: int, after: str | None) -> tuple[list[Metadata], str | None]:
        """At most `limit` tensors in the order of their names, those after `after`; the last name if more follow."""
        names = self.names()
        start = bisect_right(names, after) if after is not None else 0
        found = []
        for name in names[start : start + limit]:
            with suppress(GatherError):
                found.append(self._described(name))
        more = start + limit < len(names)
        return found, names[start + limit - 1] if more else None

    def _scan(self) -> Iterator[tuple[Description, os.stat_result]]:
        known, seen = self._known, {}
        with os.scandir(self._tensors) as entries:
            for entry in entries:
                try:
                    status = entry.stat()
                    if entry.name in known and known[entry.name][0] == identity(status):
                        description = known[entry.name][1]
                    else:
                        description = peek(Path(entry.path))[0]
                except (OSError, BadFile) as problem:
                    # A file that cannot be read is that tensor's affair; want of descriptors or memory is everybody's.
                    if isinstance(problem, OSError) and problem.errno in _SHORTAGE:
                        raise
                    continue
                seen[entry.name] = identity(status), description
                yield description, status
        self._known = seen

    # Changes

    def upload(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        *,
        swap: bool = False,
        fortran: bool = False,
        prefault: bool = False,
        lock: bool = False,
    ) -> Upload:
        """A new content to be received; see `Upload`. Raises limit_exceeded and insufficient_storage."""
        upload = Upload(
            self._incoming, dtype, shape, self.limits, swap=swap, fortran=fortran, prefault=prefault, lock=lock
        )
        if self.quota.total is not None and upload.expected is not None and upload.expected > self.quota.total:
            raise _over_quota("bytes", self.quota.total)
        with refusing(upload.abandon):
            free = os.statvfs(self._incoming)
            if upload.expected is not None and upload.expected > free.f_bavail * free.f_frsize:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            upload.open()
        return upload

    def put(self, name: str, upload: Upload, conditions: Conditions = ALWAYS) -> tuple[Metadata, bool]:
        """Make a finished upload the content of `name`, durably; whether it is new. Abandons the upload on error.

        Raises invalid_field, precondition_failed and insufficient_storage.
        """
        with refusing(upload.abandon):
            check_name(name)
            key = file_name(name)
            with self.group.lock(key):
                old = self._old(key)
                conditions.check(old.etag if old else None)
                now = time.time_ns()
                floor = old.floor if old else 0
                description = upload.describe(name, old.created if old else now, floor)
                with self.group.catalogue():
                    self._check_quota(key, description.file_size)
                    upload.seal(description, 0, now)
                    if old is not None and old.id:
                        self._changes.carry(old.id, upload.id)
                    self._rename(upload.path, key)
                self._entries.pop(name, None)
                if old is not None and old.id:
                    self._changes.forget(old.id)
        return metadata_of(description, 0, now), old is None

    def delete(self, name: str, conditions: Conditions = ALWAYS) -> None:
        """Remove a tensor, durably.

        Raises invalid_field, tensor_not_found, precondition_failed and insufficient_storage.
        """
        check_name(name)
        key = file_name(name)
        with refusing(), self.group.lock(key):
            old = self._old(key)
            if old is None:
                raise not_found(name)
            conditions.check(old.etag)
            with self.group.catalogue():
                disk.unlink(self._tensors / key)
                self.group.changed()
                disk.fsync_folder(self._tensors)
            # Here at once and in other workers at their next sweep, so that the space is given back.
            self._entries.pop(name, None)
            if old.id:
                self._changes.forget(old.id)

    def remembered(self, name: str, key: str, digest: str) -> str | None:
        """The ETag that was answered to a scatter with this Idempotency-Key, None if there was none.

        Raises invalid_field (also where the key came with another request), tensor_not_found and tensor_damaged.
        """
        check_name(name)
        path = self._tensors / file_name(name)
        with refusing(), self.group.lock(path.name), self._open(path, name) as writable:
            return self._changes.answer(writable.description.id, key, digest)

    def scatter(self, name: str, change: Change, conditions: Conditions = ALWAYS) -> str:
        """Change a tensor in place, durably and at once for every reader; the new ETag. See `together`.

        Raises Replaced, tensor_not_found, tensor_damaged, precondition_failed, invalid_field and insufficient_storage.
        """
        check_name(name)
        with refusing():
            return self._together.run(name, Waiting(change, conditions))

    def scatter_all(self, name: str, take: Take) -> None:
        """Carry out and settle the scatters of one tensor that `take` gives. Raises what holds for all of them."""
        path = self._tensors / file_name(name)
        with self.group.lock(path.name), self._open(path, name) as writable:
            if writable.description.dtype != "string":
                self._changes.carry_out(writable, take(MOST))
                return
            (one,) = take(1)
            answered = self._changes.judge(writable, one)
            one.settle(answered or self._scatter_strings(writable, one.change))

    def _open(self, path: Path, name: str) -> Writable:
        try:
            return self._changes.open(path, name)
        except FileNotFoundError:
            raise not_found(name) from None

    def _scatter_strings(self, writable: Writable, change: Change) -> str:
        """Strings differ in length, so a scatter makes a new content of them."""
        about = writable.description
        sequence = max(writable.stamp >> 1, about.floor) + 1
        upload = self.upload(DTYPES[about.dtype], about.shape, prefault=about.prefault, lock=about.lock)
        with refusing(upload.abandon):
            for piece in patched(writable, change):
                upload.write(piece)
            upload.finish()
            now = time.time_ns()
            described = replace(upload.describe(about.name, about.created, about.floor), sha256=about.sha256)
            etag = described.etag(sequence)
            with self.group.catalogue():
                self._check_quota(file_name(about.name), described.file_size)
                upload.seal(described, sequence, now)
                more = (Entry(None, now, change.key, change.digest, etag),) if change.key is not None else ()
                self._changes.carry(about.id, upload.id, more)
                self._rename(upload.path, file_name(about.name))
            self._changes.forget(about.id)
        return etag

    def _rename(self, path: Path, key: str) -> None:
        disk.rename(path, self._tensors / key)
        try:
            disk.fsync_folder(self._tensors)
        finally:
            self.group.changed()

    def _old(self, key: str) -> Old | None:
        try:
            description, page = peek(self._tensors / key)
        except FileNotFoundError:
            return None
        except (BadFile, OSError) as problem:
            if isinstance(problem, OSError) and problem.errno in _SHORTAGE:
                raise
            return Old("", "(damaged)", time.time_ns(), 0)
        sequence = (stamp_of(page) & ~DAMAGED) >> 1
        return Old(description.id, description.etag(sequence), description.created, max(sequence, description.floor))

    def usage(self) -> tuple[int, int]:
        """How many tensors there are, and the bytes of their files."""
        count = total = 0
        with os.scandir(self._tensors) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    total += entry.stat().st_size
                    count += 1
        return count, total

    def _check_quota(self, key: str, size: int) -> None:
        count = total = 0
        with os.scandir(self._tensors) as entries:
            for entry in entries:
                if entry.name != key:
                    count += 1
                    total += entry.stat().st_size if self.quota.total is not None else 0
        if count + 1 > self.quota.tensors:
            raise _over_quota("tensors", self.quota.tensors)
        if self.quota.total is not None and total + size > self.quota.total:
            raise _over_quota("bytes", self.quota.total)

    # Checks

    def verify(self, stop: Event, pace: float = 1.0) -> None:
        """Compare every content with its checksums, once in a life of the process group, and mark what is damaged.

        Rests `pace` times as long as it works. A change of a tensor meanwhile is taken for what it is.
        """
        verifier = Verifier(self.group, self._changes, self._tensors)
        verifier.run(stop, pace)

    # Start-up

    def _recover(self) -> None:
        for path in self._incoming.iterdir():
            disk.unlink(path)
        snapshot.clean(self._snapshots, alone=True)
        living, sound = set(), True
        for path in self._tensors.iterdir():
            try:
                description = peek(path)[0]
                living.add(description.id)
                if (self._logs / description.id).exists():
                    self._changes.recover(path, description)
            except (BadFile, OSError) as problem:
                sound = False
                reason = problem.strerror if isinstance(problem, OSError) else problem
                logger.error("a tensor in %s is damaged: %s", path.name, reason)
        if sound:
            for path in self._logs.iterdir():
                if path.name not in living:
                    disk.unlink(path)


@contextmanager
def refusing(undo: Callable[[], None] | None = None) -> Iterator[None]:
    """Turn what the disk refuses into insufficient_storage; `undo` runs on every error."""
    try:
        yield
    except BaseException as error:
        if undo is not None:
            with suppress(OSError):
                undo()
        if isinstance(error, OSError):
            raise disk.refusal(error) from error
        raise


def not_found(name: str) -> GatherError:
    """The error for a name that no tensor has."""
    return GatherError("tensor_not_found", f"no tensor is named {name!r}", pointer="/name")


def _unreadable(name: str, error: OSError) -> GatherError:
    return damaged(name, f"its file cannot be read: {os.strerror(error.errno or 0)}")


def _over_quota(limit: str, maximum: int) -> GatherError:
    return GatherError(
        "insufficient_storage",
        f"the quota of the store is {maximum} {limit}",
        facts={"limit": f"store_{limit}", "maximum": maximum},
    )
