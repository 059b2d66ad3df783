"""A function that exists twice: in Python, from the start, and compiled, which takes over once it is ready."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


class CompiledLater(Generic[_P, _R]):
    """`run` is the function to call: `plain` until somebody stores the compiled one there, which does the same."""

    __slots__ = ("plain", "run")

    def __init__(self, plain: Callable[_P, _R]) -> None:
        self.plain = plain
        self.run: Callable[_P, _R] = plain
