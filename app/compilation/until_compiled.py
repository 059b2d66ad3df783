"""A plain function in whose place a compiled one is used once it is ready.

The plain one is for right answers and not for speed: it says what both do, it runs under `--kernel numpy` and while the
first start compiles, and tests hold the compiled one to it.
"""

from __future__ import annotations

from collections.abc import Callable
from time import sleep
from typing import ClassVar, Final, Generic, ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")
_POLL_S: Final = 0.02


class UntilCompiled(Generic[_P, _R]):
    """`run` is the function to call: `plain` until somebody stores the compiled one there, which does the same.

    `are_due` is true while compiled ones are being made: what would take long then waits for them.
    """

    __slots__ = ("plain", "run")
    are_due: ClassVar[bool] = False

    def __init__(self, plain: Callable[_P, _R]) -> None:
        self.plain = plain
        self.run: Callable[_P, _R] = plain

    @property
    def is_overtaken(self) -> bool:
        """Whether the compiled function came while others are being made: then `plain` leaves the rest of its work."""
        return UntilCompiled.are_due and self.run is not self.plain

    def wait(self) -> None:
        """Wait until the compiled function is there or nobody makes it; for threads that may wait, before long work.

        The plain function would take longer, and a core from the compilers.
        """
        while UntilCompiled.are_due and self.run is self.plain:
            sleep(_POLL_S)
