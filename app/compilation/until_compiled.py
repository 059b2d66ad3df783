"""A plain function in whose place a compiled one is used once it is ready.

The plain one is for right answers and not for speed: it says what both do, it runs under `--kernel numpy` and while the
first start compiles, and tests hold the compiled one to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Generic, ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


class UntilCompiled(Generic[_P, _R]):
    """`run` is the function to call: `plain` until somebody stores the compiled one there, which does the same.

    `are_due` is true while compiled ones are being made: what would take long then waits for them.
    """

    __slots__ = ("plain", "run")
    are_due: ClassVar[bool] = False

    def __init__(self, plain: Callable[_P, _R]) -> None:
        self.plain = plain
        self.run: Callable[_P, _R] = plain
