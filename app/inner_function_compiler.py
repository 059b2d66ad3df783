"""How Numba compiles a function that only compiled ones call: not by itself, but as part of those that call it.

Numba makes every function native, and optimizes it for that with all that it calls in turn. Of a function that is
linked into its callers, and optimized and made native there once more, nobody needs that: without it all that is
compiled at the first start takes a seventh less.
"""

from __future__ import annotations

from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering


class _LinkedLibrary(JITCodeLibrary):
    """The code of a function as it is to be linked into others. Should Numba name these steps anew, it takes them."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()  # type: ignore[no-untyped-call]
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)  # type: ignore[no-untyped-call]
class _LowerInnerFunction(NativeLowering):
    """LLVM's instructions for a function; compiled ones find them under a key in place of its address."""

    _name = "lower_inner_function"

    def run_pass(self, state: Any) -> bool:
        """Numba's entry."""
        state.library = _LinkedLibrary(state.targetctx.codegen(), state.func_id.func_qualname)  # type: ignore[no-untyped-call]
        state.flags.no_compile = True
        super().run_pass(state)  # type: ignore[no-untyped-call]
        # Numba takes built-in functions only. Each list has one of its own, which raises where Python calls it.
        key = list[None]().index
        state.targetctx.insert_user_function(key, state.cr.fndesc, [state.library])
        state.cr = state.cr._replace(cfunc=key)
        return True


class InnerFunctionCompiler(CompilerBase):
    """Numba's passes, for its option `pipeline_class`."""

    def define_pipelines(self) -> list[Any]:
        """The passes in their order."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)  # type: ignore[no-untyped-call]
        passes.passes = [(_LowerInnerFunction if one is NativeLowering else one, text) for one, text in passes.passes]
        passes.finalize()
        return [passes]
