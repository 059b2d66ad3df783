"""Typed wrappers of Numba's decorators, and the folder that caches compiled code.

The annotations of a compiled function are the Python types: int, float and bool. Numba does not read them.
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
    """Numba's dispatcher for a function that Python calls (`numba.core.dispatcher.Dispatcher`)."""

    py_func: Any
    signatures: list[Any]
    overloads: Any

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R_co: ...
    def compile(self, signature: tuple[Any, ...]) -> object: ...
    def disable_compile(self) -> None: ...
    def enable_caching(self) -> None: ...


_njit: Any = partial(numba.njit, no_rewrites=True, pipeline_class=RememberingCompiler)
"""The decorator, with options that skip Numba's rewriting passes, which take 4% of the compile time.

So the code must not rely on array expressions being fused into one loop, or on branches being removed because an
argument is None or a constant.
"""
_njit_inner: Any = partial(
    _njit, no_cpython_wrapper=True, no_cfunc_wrapper=True, pipeline_class=numba_passes.InnerFunctionCompiler
)
_config: Any = numba.config


def inner(function: Callable[_P, _R]) -> Compiled[_P, _R]:
    """Compile a function that only compiled functions call. This saves a third of the compile time.

    It must not raise.
    """
    return cast(Compiled[_P, _R], _njit_inner(function))


def inlined(function: Callable[_P, _R]) -> Compiled[_P, _R]:
    """Like `inner`, for the few functions that must be inlined into the loop that calls them."""
    return cast(Compiled[_P, _R], _njit_inner(forceinline=True)(function))


def spliced(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Copy the body of a function into each compiled function that calls it, before compilation."""
    return cast(Callable[_P, _R], _njit_inner(inline="always")(function))


def entry(function: Callable[_P, _R]) -> Compiled[_P, _R]:
    """Compile a function that Python calls. It runs without the GIL."""
    return cast(Compiled[_P, _R], _njit(nogil=True, no_cfunc_wrapper=True)(function))


def short_entry(function: Callable[_P, _R]) -> Compiled[_P, _R]:
    """Like `entry`, but keeps the GIL: for functions that take less time than releasing it."""
    return cast(Compiled[_P, _R], _njit(no_cfunc_wrapper=True)(function))


def folder_of(cache_dir: Path, name: str, sources: Iterable[str]) -> Path:
    """Return the folder in `cache_dir` for code compiled from these files. Its name changes if any of them changes."""
    digest = sha256()
    for path in sorted(sources):
        digest.update(Path(path).read_bytes())
    return cache_dir / f"{name}-{digest.hexdigest()[:16]}"


def cache_compiled(
    cache_dir: Path, name: str, modules: Iterable[ModuleType], functions: Sequence[Compiled[..., object]]
) -> Path:
    """Cache the code of these functions in a folder of `cache_dir` for the next startup. Returns the folder.

    Numba's cache detects changes only to the file that contains the compiled function. The folder's name therefore
    depends on the files of these functions and of all other `modules` that are compiled with them.
    """
    paths = {str(module.__file__) for module in (*modules, numba_passes)} | {__file__}
    folder = folder_of(cache_dir, name, paths | {function.py_func.__code__.co_filename for function in functions})
    before = _config.CACHE_DIR
    _config.CACHE_DIR = str(folder)
    for function in functions:
        function.enable_caching()  # uses the folder that is currently set
    _config.CACHE_DIR = before
    return folder
