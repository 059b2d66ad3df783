"""LLVM instructions as functions for compiled code, for operations that Numba does not have or compiles into slow code.

All integers are int64, because Numba converts an operation on int64 and uint64 to float. Functions that treat an
argument as unsigned have the same names as in LLVM (`ult`, `udiv`, `lshr`). Addresses are int64 and unchecked: the
caller must ensure that the bytes exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from typing import Any, Final, TypeAlias, cast

import numba.core.cgutils
import numba.extending
import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

Address: TypeAlias = int
"""Address of a byte in memory."""
Bytes: TypeAlias = NDArray[np.uint8]
Integers: TypeAlias = NDArray[np.int64]
Builder: TypeAlias = Any
"""llvmlite's `IRBuilder`, as passed by Numba. Its values are also typed `Any`."""
Build: TypeAlias = Callable[..., Any]
"""A function (builder, *argument values) that returns the value of the result, or None if there is none."""

_intrinsic: Any = numba.extending.intrinsic
_external: Any = types.ExternalFunction
_cgutils: Any = numba.core.cgutils


def signed(bits: int) -> int:
    """Return the int64 with the same bits as the uint64 `bits`."""
    return bits - 2**64 if bits >= 2**63 else bits


def repeat_byte(byte: int) -> int:
    """Return the int64 whose eight bytes all equal `byte`."""
    return signed(byte * 0x0101010101010101)


def intrinsic(result: Any, arguments: Sequence[Any], build: Build) -> Any:
    """Build a function for compiled code from Numba's result and argument types. `build` emits its instructions."""

    def function(typing_context: Any, *given: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            value = build(builder, *values)
            return context.get_dummy_value() if value is None else value

        return result(*arguments), generate

    return with_arguments(function, len(arguments))


def with_arguments(function: Callable[..., Any], count: int) -> Any:
    """Build a Numba intrinsic from a function that takes the typing context and `count` arguments as `*given`."""
    # Numba inspects the signature for the number of arguments, and does not support `*given`.
    names = ["typing_context", *(f"argument_{number}" for number in range(count))]
    signature = Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names])
    function.__signature__ = signature  # type: ignore[attr-defined]
    return _intrinsic(function)


_BYTE: Final = ir.IntType(8)
_WORD: Final = ir.IntType(64)
_int64: Final = types.int64


def stack_words(words: int) -> Callable[[], Address]:
    """Build an intrinsic that returns the address of `words` int64 items on the stack of the calling function.

    The items are not initialized, so unused ones cost nothing.
    """

    def build(builder: Builder) -> Any:
        with builder.goto_entry_block():
            return builder.ptrtoint(builder.alloca(ir.ArrayType(_WORD, words)), _WORD)

    return cast(Callable[[], Address], intrinsic(_int64, (), build))


def _load(kind: Any) -> Callable[[Address], int]:
    def build(builder: Builder, address: Any) -> Any:
        value = builder.load(builder.inttoptr(address, kind.as_pointer()), align=1, typ=kind)
        return value if kind.width == _WORD.width else builder.zext(value, _WORD)

    return cast(Callable[[Address], int], intrinsic(_int64, (_int64,), build))


def _store_integer(kind: Any) -> Callable[[Address, int], None]:
    def build(builder: Builder, address: Any, value: Any) -> None:
        item = value if kind.width == _WORD.width else builder.trunc(value, kind)
        builder.store(item, builder.inttoptr(address, kind.as_pointer()), align=1)

    return cast(Callable[[Address, int], None], intrinsic(types.none, (_int64, _int64), build))


def _store_float(kind: Any) -> Callable[[Address, float], None]:
    def build(builder: Builder, address: Any, value: Any) -> None:
        item = value if value.type == kind else builder.fptrunc(value, kind)
        builder.store(item, builder.inttoptr(address, kind.as_pointer()), align=1)

    return cast(Callable[[Address, float], None], intrinsic(types.none, (_int64, types.float64), build))


def _mulhi_u64(builder: Builder, first: Any, second: Any) -> Any:
    wide = ir.IntType(128)
    product = builder.mul(builder.zext(first, wide), builder.zext(second, wide))
    return builder.trunc(builder.lshr(product, wide(64)), _WORD)


def _f32_bits(builder: Builder, value: Any) -> Any:
    return builder.zext(builder.bitcast(builder.fptrunc(value, ir.FloatType()), ir.IntType(32)), _WORD)


def _find_any(characters: bytes) -> Callable[[Address], int]:
    """Build a function that returns a 64-bit mask: bit i is set if byte i at an address is one of `characters`."""
    kind = ir.VectorType(_BYTE, 64)

    def build(builder: Builder, address: Any) -> Any:
        block = builder.load(builder.inttoptr(address, kind.as_pointer()), align=1, typ=kind)
        found = None
        for character in characters:
            same = builder.icmp_unsigned("==", block, ir.Constant(kind, [_BYTE(character)] * 64))
            found = same if found is None else builder.or_(found, same)
        return builder.bitcast(found, _WORD)

    return cast(Callable[[Address], int], intrinsic(_int64, (_int64,), build))


def _find_non_digits(builder: Builder, address: Any) -> Any:
    kind = ir.VectorType(_BYTE, 32)
    block = builder.load(builder.inttoptr(address, kind.as_pointer()), align=1, typ=kind)
    values = builder.sub(block, ir.Constant(kind, [_BYTE(ord("0"))] * 32))
    others = builder.icmp_unsigned(">", values, ir.Constant(kind, [_BYTE(9)] * 32))
    return builder.zext(builder.bitcast(others, ir.IntType(32)), _WORD)


def _prefetch(builder: Builder, address: Any) -> None:
    flag = ir.IntType(32)
    pointer = builder.inttoptr(address, _BYTE.as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, flag, flag, flag])
    function = _cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    reads, second_cache, data = flag(0), flag(2), flag(1)
    builder.call(function, [pointer, reads, second_cache, data])


def _find_words(builder: Builder, address: Any, word: Any, mask: Any) -> Any:
    kind = ir.VectorType(_WORD, 8)
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), 8), None)
    wanted, kept = (
        builder.shuffle_vector(
            builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.IntType(32)(0)),
            ir.Constant(kind, ir.Undefined),
            lanes,
        )
        for value in (word, mask)
    )
    block = builder.load(builder.inttoptr(address, kind.as_pointer()), align=8, typ=kind)
    same = builder.icmp_unsigned("==", builder.and_(block, kept), wanted)
    return builder.zext(builder.bitcast(same, _BYTE), _WORD)


int64: Final = cast(Callable[[Any], int], np.int64)
"""Convert an integer to Numba's int64.

This is needed because a literal has its own type, and a function with a literal argument would be compiled again.
"""
float64: Final = cast(Callable[[Any], float], np.float64)
"""Convert an integer to the nearest float64."""


@_intrinsic  # type: ignore[untyped-decorator]
def _address_of(typing_context: Any, array: Any) -> Any:
    def generate(context: Any, builder: Builder, signature: Any, values: Any) -> Any:
        items = context.make_array(signature.args[0])(context, builder, values[0])
        return builder.ptrtoint(items.data, _WORD)

    return _int64(array), generate


address_of: Final[Callable[[NDArray[Any]], Address]] = _address_of
"""Return the address of the first item of a contiguous array."""
load_u8: Final = _load(_BYTE)
"""Return the byte at an address."""
load_u32: Final = _load(ir.IntType(32))
load_u64: Final = _load(_WORD)
"""Return the 4 or 8 bytes at an address, which need not be aligned."""
store_u8: Final = _store_integer(_BYTE)
store_u16: Final = _store_integer(ir.IntType(16))
store_u32: Final = _store_integer(ir.IntType(32))
store_u64: Final = _store_integer(_WORD)
"""Store the low bytes of an integer at an address."""
store_f32: Final = _store_float(ir.FloatType())
store_f64: Final = _store_float(ir.DoubleType())
"""Round a float64 once to the width, and store it at an address."""
count_trailing_zeros: Final[Callable[[int], int]] = intrinsic(
    _int64, (_int64,), lambda builder, value: builder.cttz(value, ir.IntType(1)(0))
)
"""Return the number of zero bits below the lowest bit that is set; 64 for 0."""
count_leading_zeros: Final[Callable[[int], int]] = intrinsic(
    _int64, (_int64,), lambda builder, value: builder.ctlz(value, ir.IntType(1)(0))
)
"""Return the number of zero bits above the highest bit that is set; 64 for 0."""
lshr: Final[Callable[[int, int], int]] = intrinsic(
    _int64, (_int64, _int64), lambda builder, value, count: builder.lshr(value, count)
)
"""Shift right, unsigned, by less than 64."""
ult: Final[Callable[[int, int], bool]] = intrinsic(
    types.boolean, (_int64, _int64), lambda builder, left, right: builder.icmp_unsigned("<", left, right)
)
"""Return whether left < right, both unsigned."""
udiv: Final[Callable[[int, int], int]] = intrinsic(
    _int64, (_int64, _int64), lambda builder, value, divisor: builder.udiv(value, divisor)
)
"""Return the unsigned quotient, truncated. The divisor must not be 0."""
mulhi_u64: Final[Callable[[int, int], int]] = intrinsic(_int64, (_int64, _int64), _mulhi_u64)
"""Return the upper 64 bits of the product of two unsigned integers."""
f64_bits: Final[Callable[[float], int]] = intrinsic(
    _int64, (types.float64,), lambda builder, value: builder.bitcast(value, _WORD)
)
f64_from_bits: Final[Callable[[int], float]] = intrinsic(
    types.float64, (_int64,), lambda builder, value: builder.bitcast(value, ir.DoubleType())
)
"""Convert a float64 to its bits, and back."""
f32_bits: Final[Callable[[float], int]] = intrinsic(_int64, (types.float64,), _f32_bits)
"""Return the bits of the float32 nearest to a float64, half to even."""
find_structure: Final = _find_any(b'"[]{}')
"""Return a mask: bit i is set if byte i of the 64 at an address is a quote, a bracket or a brace."""
find_string_ends: Final = _find_any(b'"\\')
"""Return a mask: bit i is set if byte i of the 64 at an address is a quote or a backslash."""
find_non_digits: Final[Callable[[Address], int]] = intrinsic(_int64, (_int64,), _find_non_digits)
"""Return a mask: bit i is set if byte i of the 32 at an address is not a digit."""
prefetch: Final[Callable[[Address], None]] = intrinsic(types.none, (_int64,), _prefetch)
"""Prefetch the cache line at `address` into the L2 cache. An unmapped address does no harm.

The L2 cache can wait for more lines at a time than the L1 cache.
"""
find_words: Final[Callable[[Address, int, int], int]] = intrinsic(_int64, (_int64,) * 3, _find_words)
"""(address, word, mask): return a mask whose bit i is set if item i of 8 int64 equals `word` in the bits that `mask`
selects.

The address must be a multiple of 8.
"""
memcmp: Final[Callable[[Address, Address, int], int]] = _external("memcmp", types.int32(_int64, _int64, _int64))
"""The C library's memcmp: 0 if the bytes at two addresses are equal."""
strtod: Final[Callable[[Address, int], float]] = _external("strtod", types.float64(_int64, _int64))
"""The C library's strtod: the float64 nearest to the decimal at an address, in the current rounding direction.

The second argument must be 0.
"""
fesetround: Final[Callable[[int], int]] = _external("fesetround", types.int32(types.int32))
"""The C library's fesetround: set the rounding direction of this thread."""
