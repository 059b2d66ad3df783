"""The gather on an NVIDIA GPU, through CuPy. No other module imports CuPy (extra `gpu`).

Indices, and data that is not on the device yet, are sent in pieces through pinned memory: one piece is copied into it
while the previous one is transferred. The kernel checks and gathers in one pass (gather.cu). The word with the first
invalid position comes back together with the beginning of the output; the rest follows only if all positions are valid.
For a small gather, the kernel writes the word and the output across the bus directly into pinned memory, so they need
no copy.

Each concurrent gather has its own stream and pinned memory, so the copies of one gather overlap the kernel of another.
Device memory comes from a pool whose limit leaves memory for other processes.

The device with index 0 is used. Select it with CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ctypes import addressof, c_char_p
from queue import SimpleQueue
from typing import Any, Final

import cupy
import numpy as np
from cupy.cuda import driver, runtime
from numpy.typing import NDArray

from app.kernels.check_arrays import check_data, check_indices_and_output, check_sets
from app.kernels.cupy_gpu import kernel_launch
from app.kernels.gpu_interface import DeviceFailed, NoDevice, OutOfDeviceMemory
from app.operators.gather_plan import GatherPlan

STAGE_BYTES: Final = 4 << 20
"""Number of bytes in each half of a stream's pinned memory."""
STREAMS: Final = 4
"""Number of concurrent gathers: the copies of some overlap the kernels of others."""
_SMALL_TUPLES: Final = 1 << 13
"""Maximum number of tuples in a gather whose output the kernel writes across the bus into pinned memory.

The limit exists because each invalid tuple may update the word for the first invalid position there.
"""
_HEADER: Final = 256
"""Bytes for the first invalid position, before the output. This is the alignment of CUDA's own allocations (Programming
Guide, "Device Memory Accesses"), so the output is aligned like a separate allocation.
"""
_MEMORY_SHARE: Final = 0.9
"""Share of the free memory that the service uses by default. The rest is for CUDA itself and other processes."""
_OUT_OF_MEMORY: Final = 2
"""The value of CUDA_ERROR_OUT_OF_MEMORY and of cudaErrorMemoryAllocation."""
_BYTES: Final = np.dtype(np.uint8)
_INT32: Final = np.dtype(np.int32)
_INT64: Final = np.dtype(np.int64)
_HIGHEST: Final = np.uint64(2**63 - 1)


class DeviceCopy:
    """Items in device memory."""

    __slots__ = ("memory", "nbytes", "pointer")

    def __init__(self, memory: Any, nbytes: int) -> None:
        self.memory = memory
        self.nbytes = nbytes
        self.pointer: int = memory.ptr


class CupyDevice:
    """See `app.kernels.gpu_interface.Device`."""

    def __init__(self, memory: int | None = None, streams: int = STREAMS, stage_bytes: int = STAGE_BYTES) -> None:
        """Open the device, and compile the kernel or load it from CuPy's cache.

        `memory` is the maximum number of bytes of device memory to use; it defaults to nine tenths of the memory that
        is free now. Raises NoDevice.
        """
        try:
            if runtime.getDeviceCount() < 1:
                raise NoDevice("this machine has no NVIDIA GPU")
            properties = runtime.getDeviceProperties(0)
            free, _ = runtime.memGetInfo()
            self.memory = int(free * _MEMORY_SHARE) if memory is None else memory
            self._pool = cupy.cuda.MemoryPool()
            self._pool.set_limit(size=self.memory)
            module = cupy.RawModule(code=kernel_launch.SOURCE.read_text(), options=kernel_launch.OPTIONS)
            functions = {entry: module.get_function(entry).kernel for entry in kernel_launch.ENTRIES}
            self._keeps_module_loaded = functions
            self._entries: dict[str, int] = {entry: function.ptr for entry, function in functions.items()}
            self._streams: SimpleQueue[_StagedStream] = SimpleQueue()
            for _ in range(streams):
                self._streams.put(_StagedStream(stage_bytes))
        except (runtime.CUDARuntimeError, driver.CUDADriverError) as error:
            raise NoDevice(f"the GPU cannot be used: {error}") from None
        except cupy.cuda.compiler.CompileException as error:
            raise NoDevice(f"the kernel cannot be compiled for this GPU: {error}") from None
        self._multiprocessors: int = properties["multiProcessorCount"]
        model = properties["name"].decode()
        self.description = f"{model}, {properties['totalGlobalMem'] >> 20} MiB, {self._multiprocessors} multiprocessors"

    def used(self) -> int:
        """See `Device.used`."""
        used: int = self._pool.used_bytes()
        return used

    def upload(self, items: NDArray[Any]) -> DeviceCopy:
        """See `Device.upload`."""
        with self._stream() as staged:
            copy = self._room(items.nbytes)
            staged.send(copy.pointer, items.view(_BYTES))
            staged.stream.synchronize()
            return copy

    def run(self, plan: GatherPlan, data: DeviceCopy | NDArray[Any], indices: NDArray[Any], out: NDArray[Any]) -> int:
        """See `Device.run`."""
        check_sets(plan)
        check_indices_and_output(plan, indices, out)
        if isinstance(data, DeviceCopy):
            if data.nbytes != plan.data_items * plan.item_size:
                raise TypeError(f"data has {data.nbytes} bytes on the device and the plan asks for others")
        else:
            check_data(plan, data)
        if plan.index_items == 0:
            return -1
        travelling = transfer_type(indices.dtype)
        with self._stream() as staged:
            # A single allocation: the indices and, except for small gathers, the first invalid position and the output.
            header = -(-indices.size * travelling.itemsize // _HEADER) * _HEADER
            small = staged.holds(_HEADER + out.nbytes) and plan.index_items <= _SMALL_TUPLES * plan.depth
            work = self._room(header if small else header + _HEADER + out.nbytes)
            if isinstance(data, DeviceCopy):
                there = data
            else:
                there = self._room(data.nbytes)
                staged.send(there.pointer, data.view(_BYTES))
            staged.send(work.pointer, indices, travelling)
            if small:
                first = staged.pinned_for_output()
            else:
                first = work.pointer + header
                runtime.memsetAsync(first, 0xFF, 8, staged.stream.ptr)
            addresses = (there.pointer, work.pointer, first + _HEADER, first)
            self.start(plan, travelling.itemsize, addresses, staged.stream.ptr)
            return staged.wait_for_output(out) if small else staged.receive(first, out)

    def start(self, plan: GatherPlan, index_size: int, addresses: tuple[int, int, int, int], stream: int) -> None:
        """Launch the kernel in `stream`, a CUDA handle, for the arrays at `addresses` (see `kernel_launch.launch`).

        The word for the first invalid position must already contain `kernel_launch.NOTHING`. The service calls `run`;
        benchmarks also call this method in order to exclude transfers to and from the device. The calling thread must
        already have used the device through CuPy. Raises CuPy's own errors.
        """
        prepared = kernel_launch.launch(plan, index_size, addresses, self._multiprocessors)
        if prepared is not None:
            # An array of pointers to the arguments, of which there is only one. The launch has read them by the time it
            # returns.
            arguments = (c_char_p * 1)(prepared.argument)
            block, grid = (kernel_launch.BLOCK, 1, 1), (*prepared.grid, 1)
            driver.launchKernel(self._entries[prepared.entry], *grid, *block, 0, stream, addressof(arguments), 0)

    def _room(self, nbytes: int) -> DeviceCopy:
        return DeviceCopy(self._pool.malloc(max(nbytes, 1)), nbytes)

    @contextmanager
    def _stream(self) -> Iterator[_StagedStream]:
        """Return a context that provides an exclusive stream and translates CUDA errors. The stream is idle on exit."""
        staged = self._streams.get()
        try:
            yield staged
        except cupy.cuda.memory.OutOfMemoryError as error:
            staged.wait()
            raise OutOfDeviceMemory(str(error)) from None
        except (runtime.CUDARuntimeError, driver.CUDADriverError) as error:
            staged.wait()
            if error.status == _OUT_OF_MEMORY:
                raise OutOfDeviceMemory(str(error)) from None
            raise DeviceFailed(str(error)) from None
        except BaseException:
            staged.wait()
            raise
        finally:
            self._streams.put(staged)


class _StagedStream:
    """A stream, with pinned memory in two halves. All transfers to and from the device alternate between them."""

    def __init__(self, half: int) -> None:
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self._half = half
        self._pinned = cupy.cuda.alloc_pinned_memory(2 * half)
        whole = np.frombuffer(self._pinned, _BYTES, 2 * half)
        self._halves = whole[:half], whole[half:]
        self._addresses: tuple[int, int] = self._halves[0].ctypes.data, self._halves[1].ctypes.data
        self._events = cupy.cuda.Event(disable_timing=True), cupy.cuda.Event(disable_timing=True)
        self._turn = 0

    def send(self, pointer: int, source: NDArray[Any], dtype: np.dtype[Any] = _BYTES) -> None:
        """Enqueue the copy of `source` to the device, as items of `dtype`. `source` has been fully read on return.

        Items of another type are converted piece by piece in the pinned memory. A uint64 too large for int64 becomes
        the largest int64.
        """
        step = self._half // dtype.itemsize
        for at in range(0, source.size, step):
            piece = source[at : at + step]
            turn = self._turn
            self._events[turn].synchronize()  # wait until the previous contents have been copied
            size = piece.size * dtype.itemsize
            if source.dtype == np.uint64 and dtype == _INT64:
                np.minimum(piece, _HIGHEST, out=self._halves[turn][:size].view(np.uint64))
            else:
                self._halves[turn][:size].view(dtype)[:] = piece
            self._copy(pointer + at * dtype.itemsize, self._addresses[turn], size, runtime.memcpyHostToDevice)
            self._turn = turn ^ 1

    def holds(self, nbytes: int) -> bool:
        """Return whether `nbytes` fit into half of the pinned memory."""
        return nbytes <= self._half

    def pinned_for_output(self) -> int:
        """Return the host address to which the kernel may write its results.

        The results are the word for the first invalid position and, _HEADER bytes later, the output.
        """
        self._events[self._turn].synchronize()  # wait until the previous contents have been copied
        self._halves[self._turn][:8] = 0xFF
        return self._addresses[self._turn]

    def wait_for_output(self, out: NDArray[Any]) -> int:
        """Wait for the results at `pinned_for_output`, and copy the output to `out`.

        Returns the first invalid position, or -1. If a position is invalid, `out` is unchanged.
        """
        self.stream.synchronize()
        half = self._halves[self._turn]
        first = int(half[:8].view(np.uint64)[0])
        if first != kernel_launch.NOTHING:
            return first
        out.view(_BYTES)[:] = half[_HEADER : _HEADER + out.nbytes]
        return -1

    def receive(self, pointer: int, out: NDArray[Any]) -> int:
        """Copy the results at `pointer` in device memory to the host, and the output to `out`.

        Returns the first invalid position, or -1. `pointer` is the address of the word for that position; the output
        begins _HEADER bytes later. If a position is invalid, `out` is unchanged.
        """
        octets = out.view(_BYTES)
        total = _HEADER + octets.size
        self._fetch(pointer, 0, total)
        for at in range(0, total, self._half):
            turn = self._turn ^ 1  # the half that receives the piece at `at`
            if at + self._half < total:
                self._fetch(pointer, at + self._half, total)
            self._events[turn].synchronize()
            piece = self._halves[turn][: total - at]
            if at == 0:
                first = int(piece[:8].view(np.uint64)[0])
                if first != kernel_launch.NOTHING:
                    self.stream.synchronize()
                    return first
                octets[: piece.size - _HEADER] = piece[_HEADER:]
            else:
                octets[at - _HEADER : at - _HEADER + piece.size] = piece
        return -1

    def wait(self) -> None:
        """Wait, after an error, until the stream is idle and memory can be freed."""
        with suppress(runtime.CUDARuntimeError):
            self.stream.synchronize()

    def _fetch(self, pointer: int, at: int, total: int) -> None:
        self._copy(self._addresses[self._turn], pointer + at, min(self._half, total - at), runtime.memcpyDeviceToHost)
        self._turn ^= 1

    def _copy(self, target: int, source: int, size: int, kind: int) -> None:
        runtime.memcpyAsync(target, source, size, kind, self.stream.ptr)
        self._events[self._turn].record(self.stream)


def transfer_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which indices of type `dtype` are sent: int32 or int64, the smallest that holds every value.

    A uint64 above 2**63 - 1 becomes 2**63 - 1, which is always out of bounds.
    """
    return _INT64 if dtype.itemsize == 8 or dtype == np.uint32 else _INT32
