"""Functions that only compiled ones call, and what Numba makes of them."""

from __future__ import annotations

from typing import Any

import pytest
from numba.core.codegen import JITCodeLibrary

from app import inner_function_compiler
from app.llvm_intrinsics import entry, inlined, inner, spliced


@spliced
def plus_one(number: int) -> int:
    return number + 1


@inlined
def doubled(number: int) -> int:
    return 2 * plus_one(number)


@inner
def squared(number: int) -> int:
    return doubled(number) ** 2 if number < 100 else squared_of_large(number)


@inner
def squared_of_large(number: int) -> int:
    total = 0
    for _ in range(number):
        total += number
    return total


@entry
def whole(number: int) -> int:
    return squared(number) + doubled(number)


def library_of(function: Any) -> Any:
    (overload,) = function.overloads.values()
    return overload.library


def test_inner_functions_are_part_of_those_that_call_them() -> None:
    assert [whole(number) for number in (0, 3, 200)] == [4 + 2, 64 + 8, 40_000 + 402]


def test_an_inner_function_is_made_native_only_where_it_is_called() -> None:
    whole(1)
    engine = library_of(whole).codegen._engine
    for function, native in ((squared, False), (doubled, False), (whole, True)):
        library = library_of(function)
        own = [one.name for one in library.get_defined_functions() if function.py_func.__name__ in one.name]
        assert own
        assert isinstance(library, inner_function_compiler._LinkedLibrary) is not native
        assert any(engine.is_symbol_defined(name) for name in own) is native


def test_what_is_left_out_of_numbas_steps_is_still_among_them() -> None:
    """Otherwise Numba would do them all the same, and a first start would take longer."""
    for name in ("_optimize_final_module", "_finalize_final_module", "_finalize_dynamic_globals"):
        assert callable(getattr(JITCodeLibrary, name))


def test_a_call_from_python_is_refused() -> None:
    whole(1)
    with pytest.raises((TypeError, ValueError), match=r"index|list"):
        squared(2)
