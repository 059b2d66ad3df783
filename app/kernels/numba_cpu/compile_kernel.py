"""How the functions of a kernel are compiled, and where their code is kept.

A kernel has two compiled functions: its entry, which Python calls for a whole job, and the function for one chunk of
it, which the job's owner and its helpers call by address (`chunked_job`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numba
from numba import cfunc, njit, types

from app import compilation, kernels
from app.compilation.decorators import folder_of
from app.compilation.intrinsics import Address
from app.compilation.numba_passes import RememberingCompiler
from app.kernels import check_lookup
from app.kernels.numba_cpu.array_header import check_layout
from app.operators import backward_plan, scatter_plan
from app.tensors import dtypes, operator_signature

REFUSED: Final = -2
"""In place of a component: the arrays are not as the plan says."""
_njit: Any = njit
_OPTIONS: Final[dict[str, Any]] = {"cache": True, "error_model": "numpy", "pipeline_class": RememberingCompiler}
_COMPILED_FROM: Final = (kernels, check_lookup, backward_plan, scatter_plan, dtypes, operator_signature)
"""Compiled code has constants of these files, beside those of the folders of this file and of `app.compilation`."""


class CompiledKernel(NamedTuple):
    """The compiled functions of a kernel."""

    run: Callable[..., int]
    """The entry without Numba's search for a signature that fits: there is one, and it takes any object."""
    chunk: Address
    """Of the function for a chunk; 0 if there is none."""
    functions: tuple[Any, ...]
    """Numba's objects, which own the code."""


def configure(cache_dir: Path) -> Path:
    """Keep the compiled code under `cache_dir`, so that the next start loads it; call before anything is compiled.

    Returns its folder. Raises RuntimeError if something has been compiled with another one.
    """
    # Numba's cache sees a change of the compiled function's own file only, so the folder is named by all of them.
    folders = (Path(__file__).parent, Path(str(compilation.__file__)).parent)
    sources = [str(path) for folder in folders for path in folder.glob("*.py")]
    folder = folder_of(cache_dir, "numba", [*sources, *(str(one.__file__) for one in _COMPILED_FROM)])
    if _compiled and str(folder) != numba.config.CACHE_DIR:  # type: ignore[attr-defined]
        raise RuntimeError("the kernel has its cache directory already: configure it first")
    numba.config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]
    return folder


_compiled: Final[list[str]] = []
"""The names of the functions that were compiled, or loaded from the cache."""


def compile_entry(function: Callable[..., object], arguments: tuple[Any, ...]) -> Any:
    """Compile a function that Python calls without the GIL, for Numba's types of its arguments, or load it."""
    _compiled.append(function.__name__)
    dispatcher: Any = _njit(**_OPTIONS, nogil=True, no_cfunc_wrapper=True)(function)
    dispatcher.compile(arguments)
    dispatcher.disable_compile()  # a request never compiles
    return dispatcher


def compile_kernel(
    entry: Callable[..., int], arguments: tuple[Any, ...], chunk: Callable[[Address, int], int]
) -> CompiledKernel:
    """Compile the functions of a kernel, or load them from the cache that `configure` has named.

    Raises RuntimeError if NumPy's arrays are not laid out as compiled code takes it.
    """
    check_layout()
    compiler: Any = cfunc(types.int64(types.int64, types.int64), **_OPTIONS)
    chunk_function, dispatcher = compiler(chunk), compile_entry(entry, arguments)
    run = dispatcher.overloads[dispatcher.signatures[0]].entry_point
    return CompiledKernel(run, chunk_function.address, (dispatcher, chunk_function))
