"""A plain function that is replaced by a compiled one once that is ready.

The plain function is the reference, not fast: it defines what both do, it runs under `--kernel numpy` and while the
first start compiles, and tests compare the compiled one with it.
"""

from __future__ import annotations

from collections.abc import Callable
from time import sleep
from typing import ClassVar, Final, Generic, ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")
_POLL_S: Final = 0.02


class UntilCompiled(Generic[_P, _R]):
    """`run` is the function to call: `plain`, until the equivalent compiled one is stored there.

    `are_due` is true while compiled functions are being made: calls that would take long then wait for them.
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
