"""Compile the functions of a kernel, and set where their code is cached.

A kernel has two compiled functions: its entry, which Python calls for a whole job, and the function for one chunk,
which the job's owner and its helpers call by address (`chunked_job`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numba
from numba import cfunc, njit, types

from app import compilation, kernels
from app.compilation.array_header import check_layout
from app.compilation.decorators import folder_of
from app.compilation.intrinsics import Address
from app.compilation.numba_passes import RememberingCompiler
from app.kernels import check_lookup
from app.operators import backward_plan, scatter_plan
from app.tensors import dtypes, operator_signature

REFUSED: Final = -2
"""Returned instead of a component if the arrays do not match the plan."""
_njit: Any = njit
_OPTIONS: Final[dict[str, Any]] = {"cache": True, "error_model": "numpy", "pipeline_class": RememberingCompiler}
_COMPILED_FROM: Final = (kernels, check_lookup, backward_plan, scatter_plan, dtypes, operator_signature)
"""Modules with constants used in compiled code, in addition to this folder and `app.compilation`."""


class CompiledKernel(NamedTuple):
    """The compiled functions of a kernel."""

    run: Callable[..., int]
    """The entry. It bypasses Numba's dispatch, because there is only one signature, which accepts any object."""
    chunk: Address
    """Address of the function for a chunk; 0 if there is none."""
    functions: tuple[Any, ...]
    """The Numba objects that own the code."""


def configure(cache_dir: Path) -> Path:
    """Cache the compiled code under `cache_dir` for the next startup. Call this before anything is compiled.

    Returns the folder for the code. Raises RuntimeError if functions have already been compiled with another folder.
    """
    # Numba's cache detects changes only to the file that contains the compiled function, so the folder's name depends
    # on all files.
    folders = (Path(__file__).parent, Path(str(compilation.__file__)).parent)
    sources = [str(path) for folder in folders for path in folder.glob("*.py")]
    folder = folder_of(cache_dir, "numba", [*sources, *(str(one.__file__) for one in _COMPILED_FROM)])
    if _compiled and str(folder) != numba.config.CACHE_DIR:  # type: ignore[attr-defined]
        raise RuntimeError("the kernel has its cache directory already: configure it first")
    numba.config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]
    return folder


_compiled: Final[list[str]] = []
"""Names of the functions that were compiled or loaded from the cache."""


def compile_entry(function: Callable[..., object], arguments: tuple[Any, ...]) -> Any:
    """Compile a function for the given Numba argument types, or load it from the cache. It runs without the GIL."""
    _compiled.append(function.__name__)
    dispatcher: Any = _njit(**_OPTIONS, nogil=True, no_cfunc_wrapper=True)(function)
    dispatcher.compile(arguments)
    dispatcher.disable_compile()  # a request never compiles
    return dispatcher


def compile_kernel(
    entry: Callable[..., int], arguments: tuple[Any, ...], chunk: Callable[[Address, int], int]
) -> CompiledKernel:
    """Compile the functions of a kernel, or load them from the cache folder set by `configure`.

    Raises RuntimeError if the memory layout of NumPy arrays differs from what compiled code expects.
    """
    check_layout()
    compiler: Any = cfunc(types.int64(types.int64, types.int64), **_OPTIONS)
    chunk_function, dispatcher = compiler(chunk), compile_entry(entry, arguments)
    run = dispatcher.overloads[dispatcher.signatures[0]].entry_point
    return CompiledKernel(run, chunk_function.address, (dispatcher, chunk_function))
