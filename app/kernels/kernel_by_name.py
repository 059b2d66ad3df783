"""Find a CPU kernel by its name in the settings."""

from __future__ import annotations

from app.kernels import CpuKernel


def kernel_named(name: str) -> CpuKernel:
    """Return the CPU kernel `numba` or `numpy`. Numba is imported only for the former."""
    if name == "numba":
        from app.kernels import numba_cpu  # noqa: PLC0415

        return numba_cpu
    from app.kernels import reference  # noqa: PLC0415

    return reference
