"""Machine words for compiled code: what Numba's own integers and arrays cannot say, or say slowly.

All integers here are int64, for Numba makes a float of int64 and uint64 together; the functions that take one as
unsigned say so. Addresses are int64 and nothing checks them: whoever calls has made sure that the bytes are there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numba
import numba.extending
from llvmlite import ir
from numba import types

_njit: Any = numba.njit
inner: Any = _njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""For functions that only compiled ones call: a third less to compile."""
inlined: Any = _njit(forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""As `inner`, for those few that must become part of the loop that they are called in."""
entry: Any = _njit(nogil=True, no_cfunc_wrapper=True)
"""For functions that Python calls."""
_intrinsic: Any = numba.extending.intrinsic
_config: Any = numba.config
_BYTE: Final = ir.IntType(8)
_WORD: Final = ir.IntType(64)
_BLOCK: Final = ir.VectorType(_BYTE, 64)
_Build = Callable[..., Any]


def keep_compiled(cache_dir: Path, name: str, modules: Sequence[ModuleType], functions: Sequence[Any]) -> None:
    """Have the code of these functions kept in a folder of `cache_dir`, so that the next start loads it.

    Numba's cache sees a change of the compiled function's own file only: the folder is named by those files and by all
    other `modules` of which something is compiled with them.
    """
    digest = sha256()
    for path in sorted({function.py_func.__code__.co_filename for function in functions}):
        digest.update(Path(path).read_bytes())
    for module in modules:
        digest.update(Path(str(module.__file__)).read_bytes())
    before = _config.CACHE_DIR
    _config.CACHE_DIR = str(cache_dir / f"{name}-{digest.hexdigest()[:16]}")
    for function in functions:
        function.enable_caching()  # takes the folder of this moment
    _config.CACHE_DIR = before


def _unary(result: Any, argument: Any, build: _Build) -> Any:
    @_intrinsic
    def function(typing_context, first):  # type: ignore[no-untyped-def]
        return result(argument), lambda context, builder, signature, arguments: build(builder, *arguments)

    return function


def _binary(result: Any, argument: Any, build: _Build) -> Any:
    @_intrinsic
    def function(typing_context, first, second):  # type: ignore[no-untyped-def]
        return result(argument, argument), lambda context, builder, signature, arguments: build(builder, *arguments)

    return function


def _load(kind: Any) -> _Build:
    def build(builder: Any, address: Any) -> Any:
        value = builder.load(builder.inttoptr(address, kind.as_pointer()), align=1, typ=kind)
        return value if kind.width == _WORD.width else builder.zext(value, _WORD)

    return build


def _store(kind: Any, convert: str) -> Any:
    @_intrinsic
    def function(typing_context, address, value):  # type: ignore[no-untyped-def]
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            item = arguments[1]
            if item.type != kind:
                item = getattr(builder, convert)(item, kind)
            builder.store(item, builder.inttoptr(arguments[0], kind.as_pointer()), align=1)
            return context.get_dummy_value()

        given = types.float64 if convert == "fptrunc" else types.int64
        return types.none(types.int64, given), generate

    return function


def _on_stack(words: int) -> Any:
    @_intrinsic
    def function(typing_context):  # type: ignore[no-untyped-def]
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            with builder.goto_entry_block():
                return builder.ptrtoint(builder.alloca(ir.ArrayType(_WORD, words)), _WORD)

        return types.int64(), generate

    return function


def _high_half(builder: Any, first: Any, second: Any) -> Any:
    wide = ir.IntType(128)
    product = builder.mul(builder.zext(first, wide), builder.zext(second, wide))
    return builder.trunc(builder.lshr(product, wide(64)), _WORD)


def _rounded_to_single(builder: Any, value: Any) -> Any:
    return builder.zext(builder.bitcast(builder.fptrunc(value, ir.FloatType()), ir.IntType(32)), _WORD)


def _marks(*characters: bytes) -> _Build:
    def build(builder: Any, address: Any) -> Any:
        block = builder.load(builder.inttoptr(address, _BLOCK.as_pointer()), align=1, typ=_BLOCK)
        found = None
        for character in characters:
            same = builder.icmp_unsigned("==", block, ir.Constant(_BLOCK, [_BYTE(character[0])] * 64))
            found = same if found is None else builder.or_(found, same)
        return builder.bitcast(found, _WORD)

    return build


def _not_digits(builder: Any, address: Any) -> Any:
    kind = ir.VectorType(_BYTE, 32)
    block = builder.load(builder.inttoptr(address, kind.as_pointer()), align=1, typ=kind)
    values = builder.sub(block, ir.Constant(kind, [_BYTE(48)] * 32))
    marks = builder.icmp_unsigned(">", values, ir.Constant(kind, [_BYTE(9)] * 32))
    return builder.zext(builder.bitcast(marks, ir.IntType(32)), _WORD)


byte = _unary(types.int64, types.int64, _load(_BYTE))
"""The byte at an address."""
half_word = _unary(types.int64, types.int64, _load(ir.IntType(16)))
single_word = _unary(types.int64, types.int64, _load(ir.IntType(32)))
word = _unary(types.int64, types.int64, _load(_WORD))
"""The 2, 4 or 8 bytes at an address, which need not be aligned."""
put_1 = _store(ir.IntType(8), "trunc")
put_2 = _store(ir.IntType(16), "trunc")
put_4 = _store(ir.IntType(32), "trunc")
put_8 = _store(ir.IntType(64), "trunc")
"""Store the low bytes of an integer at an address."""
put_single = _store(ir.FloatType(), "fptrunc")
put_double = _store(ir.DoubleType(), "fptrunc")
"""Store a float64 at an address, rounded once to the width."""
words_128 = _on_stack(128)
"""The address of 128 words of 8 bytes, which the function has until it returns; what they hold is undefined."""
trailing_zeros = _unary(types.int64, types.int64, lambda builder, value: builder.cttz(value, ir.IntType(1)(0)))
"""Zero bits below the lowest one bit; 64 for 0."""
leading_zeros = _unary(types.int64, types.int64, lambda builder, value: builder.ctlz(value, ir.IntType(1)(0)))
shift_right = _binary(types.int64, types.int64, lambda builder, value, count: builder.lshr(value, count))
"""Unsigned shift by less than 64."""
below = _binary(types.boolean, types.int64, lambda builder, left, right: builder.icmp_unsigned("<", left, right))
"""Whether left < right, both unsigned."""
quotient = _binary(types.int64, types.int64, lambda builder, value, divisor: builder.udiv(value, divisor))
"""The unsigned quotient, cut off; the divisor is not 0."""
high_half = _binary(types.int64, types.int64, _high_half)
"""The upper 64 bits of the product of two unsigned integers."""
bits_of = _unary(types.int64, types.float64, lambda builder, value: builder.bitcast(value, _WORD))
single_bits = _unary(types.int64, types.float64, _rounded_to_single)
"""The bits of the float32 nearest to a float64, half to even."""
float_of = _unary(types.float64, types.int64, lambda builder, value: builder.bitcast(value, ir.DoubleType()))
"""A float64 and its bits."""
unsigned_to_float = _unary(types.float64, types.int64, lambda builder, value: builder.uitofp(value, ir.DoubleType()))
structure_marks = _unary(types.int64, types.int64, _marks(b'"', b"[", b"]", b"{", b"}"))
"""Bit i is set where byte i of the 64 at an address is a quote, a bracket or a brace."""
string_marks = _unary(types.int64, types.int64, _marks(b'"', b"\\"))
"""Bit i is set where byte i of the 64 at an address is a quote or a backslash."""
other_marks = _unary(types.int64, types.int64, _not_digits)
"""Bit i is set where byte i of the 32 at an address is no digit."""
