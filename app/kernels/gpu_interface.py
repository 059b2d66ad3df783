"""The interface of a GPU: copy tensors to its memory, run gathers there, and its three errors.

`cupy_gpu.device` implements it; no other module imports CuPy.
"""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from app.operators.gather_plan import GatherPlan


class NoDevice(Exception):
    """No usable GPU was found. The message says why."""


class OutOfDeviceMemory(Exception):
    """The device does not have enough free memory now."""


class DeviceFailed(Exception):
    """The device or its driver reported an error. Nothing that the device does can be trusted any more."""


class Copy(Protocol):
    """Items in device memory. The memory is freed when the last reference to this object is gone."""

    nbytes: int


class Device(Protocol):
    """One GPU. All methods block and are thread-safe.

    `description` is its name for people; `memory` is the maximum number of its bytes that the service may use.
    """

    description: str
    memory: int

    def upload(self, items: NDArray[Any]) -> Copy:
        """Copy `items` to the device. May raise OutOfDeviceMemory or DeviceFailed."""
        ...

    def run(self, plan: GatherPlan, data: Copy | NDArray[Any], indices: NDArray[Any], out: NDArray[Any]) -> int:
        """Like `app.kernels.Kernel.run`. `data` is in device or host memory; `indices` may have any integer type.

        May raise OutOfDeviceMemory or DeviceFailed.
        """
        ...

    def used(self) -> int:
        """Return the bytes of device memory that copies and gathers hold now."""
        ...
