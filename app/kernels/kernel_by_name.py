"""The CPU kernel that a setting names."""

from __future__ import annotations

from app.kernels import CpuKernel


def kernel_named(name: str) -> CpuKernel:
    """The CPU kernel of this name, `numba` or `numpy`: only of the former Numba is imported."""
    if name == "numba":
        from app.kernels import numba_cpu  # noqa: PLC0415

        return numba_cpu
    from app.kernels import reference  # noqa: PLC0415

    return reference
