"""The little of CuPy that `app.kernels.cupy_gpu` uses, on a CPU: memory by address, streams that are late, the kernel.

It is as unfriendly as a device may be. What is put into a stream happens no sooner than somebody waits for it, so that
staging memory which is written again too soon goes wrong; every address must lie in memory that is still held; pinned
memory and device memory begin as rubbish; a limit is kept to the byte.
"""

from __future__ import annotations

import ctypes
import importlib.util
import random
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import numpy as np

from app.kernels.cupy_gpu import kernel_launch
from tests.kernels import emulated

HOST_TO_DEVICE: Final = 1
DEVICE_TO_HOST: Final = 2
_ALIGNMENT: Final = 512


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError {status}")
        self.status = status


class CUDADriverError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"CUDA_ERROR {status}")
        self.status = status


class OutOfMemoryError(MemoryError):
    pass


class CompileException(Exception):
    pass


class Machine:
    """The device and what can be wrong with it. `fails` is called before each operation with its name."""

    def __init__(self) -> None:
        self.devices = 1
        self.free = 1 << 30
        self.source = random.Random(1)
        self.spaces: dict[int, int] = {}  # address and size of memory that is held, of both kinds
        self.fails: Callable[[str], None] = lambda name: None
        self.launches: list[str] = []
        self.sent = 0

    def hold(self, owner: Any, nbytes: int) -> int:
        """Memory for as long as `owner` lives."""
        room = np.frombuffer(self.source.randbytes(nbytes + _ALIGNMENT), np.uint8).copy()
        address = room.ctypes.data + -room.ctypes.data % _ALIGNMENT
        self.spaces[address] = nbytes
        weakref.finalize(owner, self._free, address, room)
        return address

    def _free(self, address: int, room: Any) -> None:
        self.spaces.pop(address)
        room[:] = 0xDD

    def check(self, address: int, nbytes: int) -> None:
        """Raises AssertionError unless all these bytes are held."""
        assert any(
            start <= address and address + nbytes <= start + size for start, size in tuple(self.spaces.items())
        ), f"{nbytes} bytes at {address:#x} are not held"


class Pointer:
    def __init__(self, pool: MemoryPool, nbytes: int) -> None:
        self.ptr = pool.machine.hold(self, nbytes)
        weakref.finalize(self, pool.give_back, nbytes)


class MemoryPool:
    machine: Machine

    def __init__(self) -> None:
        self._used = 0
        self._limit = 0

    def set_limit(self, size: int) -> None:
        self._limit = size

    def used_bytes(self) -> int:
        return self._used

    def malloc(self, nbytes: int) -> Pointer:
        self.machine.fails("malloc")
        if self._used + nbytes > self._limit:
            raise OutOfMemoryError(f"Out of memory allocating {nbytes} bytes (allocated so far: {self._used} bytes)")
        self._used += nbytes
        return Pointer(self, nbytes)

    def give_back(self, nbytes: int) -> None:
        self._used -= nbytes


class Stream:
    machine: Machine

    def __init__(self, non_blocking: bool = False) -> None:
        assert non_blocking, "a stream that waits for all others"
        self.ptr = id(self)
        self.pending: list[Callable[[], None]] = []
        self.done = 0
        _streams[self.ptr] = self

    def put(self, work: Callable[[], None]) -> None:
        self.pending.append(work)

    def run_to(self, place: int) -> None:
        while self.done < place:
            self.pending[self.done]()
            self.done += 1

    def synchronize(self) -> None:
        self.machine.fails("synchronize")
        self.run_to(len(self.pending))


_streams: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()


class Event:
    def __init__(self, disable_timing: bool = False) -> None:
        assert disable_timing
        self._stream: Stream | None = None
        self._place = 0

    def record(self, stream: Stream) -> None:
        self._stream, self._place = stream, len(stream.pending)

    def synchronize(self) -> None:
        if self._stream is not None:
            self._stream.run_to(self._place)


class RawModule:
    machine: Machine

    def __init__(self, code: str, options: tuple[str, ...]) -> None:
        assert code == kernel_launch.SOURCE.read_text()
        assert options == kernel_launch.OPTIONS
        self.machine.fails("compile")

    def get_function(self, entry: str) -> Any:
        assert hasattr(emulated.library(), entry)
        return SimpleNamespace(kernel=SimpleNamespace(ptr=kernel_launch.ENTRIES.index(entry)))


def build(machine: Machine) -> dict[str, ModuleType]:
    """The modules to be imported in the place of CuPy's."""

    def of(kind: type, **members: Any) -> type:
        return type(kind.__name__, (kind,), {"machine": machine, **members})

    def memcpy(target: int, source: int, size: int, kind: int, stream: int) -> None:
        machine.fails("memcpyAsync")
        assert kind in (HOST_TO_DEVICE, DEVICE_TO_HOST)
        machine.sent += size if kind == HOST_TO_DEVICE else 0

        def copy() -> None:
            machine.check(target, size)
            machine.check(source, size)
            ctypes.memmove(target, source, size)

        _streams[stream].put(copy)

    def launch(function: int, *rest: int) -> None:
        *grid_and_block, shared, stream, arguments, extra = rest
        assert grid_and_block[2:] == [1, kernel_launch.BLOCK, 1, 1]
        assert (shared, extra) == (0, 0)
        entry, grid = kernel_launch.ENTRIES[function], (grid_and_block[0], grid_and_block[1])
        argument = ctypes.c_void_p.from_address(arguments)
        octets = ctypes.string_at(argument, kernel_launch.PLAN_BYTES)
        machine.fails("launch")
        machine.launches.append(entry)
        _streams[stream].put(lambda: emulated.launch(entry, grid, octets))

    def memset(pointer: int, value: int, size: int, stream: int) -> None:
        def fill() -> None:
            machine.check(pointer, size)
            ctypes.memset(pointer, value, size)

        _streams[stream].put(fill)

    def get_device_count() -> int:
        machine.fails("getDeviceCount")
        return machine.devices

    class Hidden:
        """Keeps a pinned block in the machine's list for as long as its bytes live."""

    def alloc_pinned(nbytes: int) -> Any:
        machine.fails("alloc_pinned_memory")
        owner = Hidden()
        address = machine.hold(owner, nbytes)
        room: Any = (ctypes.c_uint8 * nbytes).from_address(address)
        room.owner = owner
        return room

    runtime = ModuleType("cupy.cuda.runtime")
    runtime.__dict__.update(
        CUDARuntimeError=CUDARuntimeError,
        getDeviceCount=get_device_count,
        getDeviceProperties=lambda device: {
            "name": b"Emulated", "multiProcessorCount": 3, "totalGlobalMem": machine.free + (1 << 20),
        },
        memGetInfo=lambda: (machine.free, machine.free + (1 << 20)),
        memcpyAsync=memcpy,
        memsetAsync=memset,
        memcpyHostToDevice=HOST_TO_DEVICE,
        memcpyDeviceToHost=DEVICE_TO_HOST,
    )  # fmt: skip
    cuda = ModuleType("cupy.cuda")
    cuda.__dict__.update(
        runtime=runtime,
        MemoryPool=of(MemoryPool),
        Stream=of(Stream),
        Event=Event,
        alloc_pinned_memory=alloc_pinned,
        driver=SimpleNamespace(CUDADriverError=CUDADriverError, launchKernel=launch),
        memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        compiler=SimpleNamespace(CompileException=CompileException),
    )
    cupy = ModuleType("cupy")
    cupy.__dict__.update(cuda=cuda, RawModule=of(RawModule))
    return {"cupy": cupy, "cupy.cuda": cuda, "cupy.cuda.runtime": runtime}


@contextmanager
def cupy_gpu(machine: Machine) -> Iterator[ModuleType]:
    """`cupy_gpu.device` as it would be with CuPy and this machine; the module of that name is not touched."""
    path = kernel_launch.SOURCE.with_name("device.py")
    spec = importlib.util.spec_from_file_location("cupy_gpu_on_fake", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = {name: sys.modules.get(name) for name in ("cupy", "cupy.cuda", "cupy.cuda.runtime")}
    sys.modules.update(build(machine))
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        for name, old in before.items():
            if old is None:
                del sys.modules[name]
            else:
                sys.modules[name] = old
