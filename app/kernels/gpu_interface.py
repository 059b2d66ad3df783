"""The interface of a GPU: copying tensors to its memory, a gather on it, and the three errors it can raise.

`cupy_gpu.device` implements it; nothing else imports CuPy.
"""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from app.operators.gather_plan import GatherPlan


class NoDevice(Exception):
    """There is no GPU that could be used; says why."""


class OutOfDeviceMemory(Exception):
    """The device has not enough free memory at this moment."""


class DeviceFailed(Exception):
    """The device or its driver reported an error: nothing that it does can be trusted any more."""


class Copy(Protocol):
    """Items on the device. Their memory is free once nobody refers to this."""

    nbytes: int


class Device(Protocol):
    """One GPU. All methods block, and any number of threads may call at the same time.

    `description` says what it is, `memory` is the most bytes that the service may use of it.
    """

    description: str
    memory: int

    def upload(self, items: NDArray[Any]) -> Copy:
        """A copy of `items` on the device. Raises OutOfDeviceMemory and DeviceFailed."""
        ...

    def run(self, plan: GatherPlan, data: Copy | NDArray[Any], indices: NDArray[Any], out: NDArray[Any]) -> int:
        """As `app.kernels.Kernel.run`, for data on the device or here; `indices` may be of any integer type.

        Raises OutOfDeviceMemory and DeviceFailed.
        """
        ...

    def used(self) -> int:
        """Bytes of the device's memory that copies and gathers hold now."""
        ...
