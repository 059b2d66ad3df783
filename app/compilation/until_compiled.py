"""A plain function that is replaced by a compiled one when the compiled one is ready.

The plain function is the reference and need not be fast. It defines the behavior of both. It runs with `--kernel numpy`
and while the first startup is compiling, and tests compare the compiled function with it.
"""

from __future__ import annotations

from collections.abc import Callable
from time import sleep
from typing import ClassVar, Final, Generic, ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")
_POLL_S: Final = 0.02


class UntilCompiled(Generic[_P, _R]):
    """To call the function, call `run`, which is `plain` until it is replaced by the equivalent compiled function.

    `are_due` is true while functions are being compiled. Calls that would take long then wait for them.
    """

    __slots__ = ("plain", "run")
    are_due: ClassVar[bool] = False

    def __init__(self, plain: Callable[_P, _R]) -> None:
        self.plain = plain
        self.run: Callable[_P, _R] = plain

    @property
    def is_overtaken(self) -> bool:
        """Whether the compiled function is ready while others are still being compiled.

        When this is True, `plain` passes the rest of its work to the compiled function.
        """
        return UntilCompiled.are_due and self.run is not self.plain

    def wait(self) -> None:
        """Wait until the compiled function is ready, or is no longer being compiled.

        Call this before long work, in a thread that may block. The plain function would take longer, and would take a
        core away from the compiler.
        """
        while UntilCompiled.are_due and self.run is self.plain:
            sleep(_POLL_S)
