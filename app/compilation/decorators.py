"""How our functions are compiled: Numba's decorators, typed, and the folder that keeps the code.

A compiled function is annotated with what Python sees of it, int, float and bool, which Numba does not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import numba

from app.compilation import numba_passes
from app.compilation.numba_passes import RememberingCompiler

_P = ParamSpec("_P")
_R = TypeVar("_R")
_R_co = TypeVar("_R_co", covariant=True)


class Compiled(Protocol[_P, _R_co]):
    """What Numba makes of a function that Python calls (`numba.core.dispatcher.Dispatcher`)."""

    py_func: Any
    signatures: list[Any]
    overloads: Any

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R_co: ...
    def compile(self, signature: tuple[Any, ...]) -> object: ...
    def disable_compile(self) -> None: ...
    def enable_caching(self) -> None: ...


_njit: Any = partial(numba.njit, no_rewrites=True, pipeline_class=RememberingCompiler)
"""Without Numba's rewriting passes, 4 % of the work: no code here may rely on expressions of whole arrays becoming one
loop, or on a branch being left out because an argument is None or a constant."""
_njit_inner: Any = partial(
    _njit, no_cpython_wrapper=True, no_cfunc_wrapper=True, pipeline_class=numba_passes.InnerFunctionCompiler
)
_config: Any = numba.config


def inner(function: Callable[_P, _R]) -> Compiled[_P, _R]:
    """Compile a function that only compiled ones call: a third less to compile. It may not raise."""
    return cast(Compiled[_P, _R], _njit_inner(function))


def inlined(function: Callable[_P, _R]) -> Compiled[_P, _R]:
    """As `inner`, for those few that must become part of the loop that they are called in."""
    return cast(Compiled[_P, _R], _njit_inner(forceinline=True)(function))


def spliced(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Have the body of a function stand in each compiled function that calls it, before either is compiled."""
    return cast(Callable[_P, _R], _njit_inner(inline="always")(function))


def entry(function: Callable[_P, _R]) -> Compiled[_P, _R]:
    """Compile a function that Python calls, without the GIL."""
    return cast(Compiled[_P, _R], _njit(nogil=True, no_cfunc_wrapper=True)(function))


def short_entry(function: Callable[_P, _R]) -> Compiled[_P, _R]:
    """As `entry`, with the GIL: for functions that take less time than to release it."""
    return cast(Compiled[_P, _R], _njit(no_cfunc_wrapper=True)(function))


def folder_of(cache_dir: Path, name: str, sources: Iterable[str]) -> Path:
    """The folder of `cache_dir` for what is compiled from these files: another one when any of them has changed."""
    digest = sha256()
    for path in sorted(sources):
        digest.update(Path(path).read_bytes())
    return cache_dir / f"{name}-{digest.hexdigest()[:16]}"


def keep_compiled(
    cache_dir: Path, name: str, modules: Iterable[ModuleType], functions: Sequence[Compiled[..., object]]
) -> Path:
    """Have the code of these functions kept in a folder of `cache_dir`, so that the next start loads it: the folder.

    Numba's cache sees a change of the compiled function's own file only: the folder is named by those files and by all
    other `modules` of which something is compiled with them.
    """
    paths = {str(module.__file__) for module in (*modules, numba_passes)} | {__file__}
    folder = folder_of(cache_dir, name, paths | {function.py_func.__code__.co_filename for function in functions})
    before = _config.CACHE_DIR
    _config.CACHE_DIR = str(folder)
    for function in functions:
        function.enable_caching()  # takes the folder of this moment
    _config.CACHE_DIR = before
    return folder
