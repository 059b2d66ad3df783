"""Copies of resident tensors on the GPU, created on demand and evicted in LRU order when device memory is short.

The key of a copy is the ETag of its data: the upload's content id and the number of scatters since. An ETag never
identifies two versions, so a copy is never stale. `sweep` drops copies whose ETag no longer belongs to any tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TypeVar

from app.dispatch.read_without_writers import ResidentTensor, VersionChanged
from app.kernels.gpu_interface import Copy, Device, OutOfDeviceMemory

Result = TypeVar("Result")


class ContentChanged(VersionChanged):
    """A scatter changed the tensor while it was being copied to the device."""


class TensorCopy:
    """A copy on the device, the number of its current readers, and the names of the tensors with that data."""

    __slots__ = ("items", "names", "readers")

    def __init__(self, items: Copy) -> None:
        self.items = items
        self.names: set[str] = set()
        self.readers = 0


class GpuTensorCopies:
    """The copies on one device. Methods that allocate memory block. All methods are thread-safe."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.evictions = 0
        self._copies: dict[str, TensorCopy] = {}  # by ETag, least recently used first
        self._lock = Lock()
        self._upload_lock = Lock()

    def __contains__(self, etag: str) -> bool:
        return etag in self._copies

    @property
    def nbytes(self) -> int:
        """Total number of bytes in all copies."""
        return sum(copy.items.nbytes for copy in list(self._copies.values()))

    def acquire(self, name: str, content: ResidentTensor) -> TensorCopy:
        """Return the copy of `content`, the data of tensor `name`, and create it if needed. Call `release` afterward.

        May raise OutOfDeviceMemory, DeviceFailed or ContentChanged.
        """
        found = self._find(name, content.etag)
        if found is None:
            with self._upload_lock:  # one upload at a time: several would share the same bandwidth
                found = self._find(name, content.etag)
                if found is None:
                    found = TensorCopy(self._upload(content))
                    found.readers = 1
                    found.names.add(name)
                    with self._lock:
                        self._copies[content.etag] = found
        return found

    def release(self, copy: TensorCopy) -> None:
        """Release a copy after `acquire`."""
        with self._lock:
            copy.readers -= 1

    def _find(self, name: str, etag: str) -> TensorCopy | None:
        with self._lock:
            found = self._copies.pop(etag, None)
            if found is not None:
                self._copies[etag] = found  # most recently used
                found.names.add(name)
                found.readers += 1
            return found

    def _upload(self, content: ResidentTensor) -> Copy:
        items = content.tensor.items
        if items.nbytes > self.device.memory:
            raise OutOfDeviceMemory(f"{items.nbytes} bytes are more than the {self.device.memory} that it has for us")
        if not content.is_consistent:
            raise ContentChanged
        copy = self.with_eviction(lambda: self.device.upload(items))
        if not content.is_consistent:
            raise ContentChanged
        return copy

    def with_eviction(self, work: Callable[[], Result]) -> Result:
        """Return the result of `work`.

        If memory is short, evict copies one at a time and retry, until no copy can be evicted.
        """
        while True:
            try:
                return work()
            except OutOfDeviceMemory:
                if not self._evict():
                    raise

    def _evict(self) -> bool:
        """Drop the least recently used copy without readers. Returns False if there is none."""
        with self._lock:
            for etag, copy in self._copies.items():
                if copy.readers == 0:
                    del self._copies[etag]
                    self.evictions += 1
                    return True
        return False

    def sweep(self, etag_of: Callable[[str], str | None]) -> None:
        """Drop copies whose data no longer belongs to any tensor.

        `etag_of` returns the current ETag of a name. This is cheap.
        """
        with self._lock:
            for etag, copy in list(self._copies.items()):
                copy.names = {name for name in copy.names if etag_of(name) == etag}
                if not copy.names:
                    del self._copies[etag]

    def clear(self) -> None:
        """Drop all copies. Their memory is freed when their readers have finished."""
        self._copies.clear()
