"""Numba's compiler with two changes: it caches the types of calls, and generates no native code for inner functions.

To determine the types of an operator, Numba tries all functions of that name, including NumPy's for arrays, and
discards the result. Caching the result saves a sixth of the compile time at the first startup. Only calls of operators
and of Numba's own functions are cached, because their result types depend only on the argument types: `a + b` of two
int64 is looked up once.

Numba generates native code for every function, optimized together with everything that it calls. For a function that
only compiled functions call, this code is never used: the function is linked into its callers, and is optimized and
compiled again there. Omitting the unused code saves a seventh of the compile time at the first startup. Functions that
need their own native code are refused: recursive ones, and those with `raise`, because Numba stores exception values
next to that code.
"""

from __future__ import annotations

from typing import Any, Final

from numba.core import ir, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.errors import UnsupportedError
from numba.core.typed_passes import NativeLowering

_signatures: Final[dict[tuple[Any, tuple[Any, ...]], Any]] = {}


class _RememberingContext:
    """Numba's typing context. A call that was typed before gets the same signature."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def resolve_function_type(self, function: Any, arguments: Any, keywords: Any) -> Any:
        """Return Numba's signature of a call, or None if there is none. May raise Numba's TypingError."""
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
    """Numba's compiler with cached call types, for the `pipeline_class` option."""

    def define_pipelines(self) -> list[Any]:
        """Return Numba's passes."""
        self.state.typingctx = _RememberingContext(self.state.typingctx)
        return [DefaultPassBuilder.define_nopython_pipeline(self.state)]  # type: ignore[no-untyped-call]


_RAISES: Final = ir.Raise, ir.StaticRaise, ir.DynamicRaise


class _LinkedLibrary(JITCodeLibrary):
    """The code of a function to be linked into others.

    A version of Numba in which the two steps have different names also runs them for inner functions, which is slower
    but correct.
    """

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()  # type: ignore[no-untyped-call]
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)  # type: ignore[no-untyped-call]
class _LowerInnerFunction(NativeLowering):
    """Generate LLVM instructions for a function, in a library that is linked into its callers."""

    _name = "lower_inner_function"

    def run_pass(self, state: Any) -> bool:
        """Run the pass. Raises Numba's UnsupportedError if an inner function uses a feature that is not supported."""
        name = state.func_id.func_qualname
        for block in state.func_ir.blocks.values():
            for statement in block.body:
                if isinstance(statement, _RAISES):
                    raise UnsupportedError(f"the inner function {name} raises", statement.loc)
        state.library = _LinkedLibrary(state.targetctx.codegen(), name)  # type: ignore[no-untyped-call]
        state.flags.no_compile = True
        super().run_pass(state)  # type: ignore[no-untyped-call]
        for variable in state.library._final_module.global_variables:
            if variable.name.startswith(".numba.unresolved$"):
                raise UnsupportedError(f"the inner function {name} is called by one that it calls")
        # Numba looks up the built-in function for calls from Python. Register one that raises a KeyError.
        key = f"{{only compiled functions call {name}}}".format
        state.targetctx.insert_user_function(key, state.cr.fndesc, [state.library])
        state.cr = state.cr._replace(cfunc=key)
        return True


class InnerFunctionCompiler(RememberingCompiler):
    """Numba's compiler for inner functions, for the `pipeline_class` option."""

    def define_pipelines(self) -> list[Any]:
        """Return the passes in order."""
        (passes,) = super().define_pipelines()
        passes.passes = [(_LowerInnerFunction if one is NativeLowering else one, text) for one, text in passes.passes]
        passes.finalize()
        return [passes]
