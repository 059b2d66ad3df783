"""LLVM's instructions as functions for compiled code, for operations that Numba lacks or does slowly.

All integers are int64, because Numba turns an operation on int64 and uint64 into a float. Functions that read an
argument as unsigned have LLVM's names for that (`ult`, `udiv`, `lshr`). Addresses are int64 and unchecked: the caller
ensures that the bytes exist.
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
"""Of a byte of memory."""
Bytes: TypeAlias = NDArray[np.uint8]
Integers: TypeAlias = NDArray[np.int64]
Builder: TypeAlias = Any
"""llvmlite's `IRBuilder`, as Numba hands it on; its values are `Any` too."""
Build: TypeAlias = Callable[..., Any]
"""A function of a `Builder` and the values of the arguments: the value of the result, None if there is none."""

_intrinsic: Any = numba.extending.intrinsic
_external: Any = types.ExternalFunction
_cgutils: Any = numba.core.cgutils


def signed(bits: int) -> int:
    """The int64 that has the bits of the uint64 `bits`."""
    return bits - 2**64 if bits >= 2**63 else bits


def eight(byte: int) -> int:
    """Return the int64 whose eight bytes all equal `byte`."""
    return signed(byte * 0x0101010101010101)


def intrinsic(result: Any, arguments: Sequence[Any], build: Build) -> Any:
    """A function for compiled code, from Numba's types of its result and arguments to the instructions of `build`."""

    def function(typing_context: Any, *given: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            value = build(builder, *values)
            return context.get_dummy_value() if value is None else value

        return result(*arguments), generate

    return with_arguments(function, len(arguments))


def with_arguments(function: Callable[..., Any], count: int) -> Any:
    """Numba's intrinsic of a function that takes `count` arguments behind the typing context, as `*given`."""
    # Numba asks how many arguments there are, and does not take `*given` for an answer.
    names = ["typing_context", *(f"argument_{number}" for number in range(count))]
    signature = Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names])
    function.__signature__ = signature  # type: ignore[attr-defined]
    return _intrinsic(function)


_BYTE: Final = ir.IntType(8)
_WORD: Final = ir.IntType(64)
_int64: Final = types.int64


def stack_words(words: int) -> Callable[[], Address]:
    """Return an intrinsic that gives the address of `words` int64, which the calling function has until it returns.

    They are not cleared: unused ones cost nothing.
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
    """A mask of 64 bits: bit i is set where byte i of the 64 at an address is one of `characters`."""
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
"""Numba's int64 of an integer. A literal is a type of its own, and a function that is handed one compiled once more."""
float64: Final = cast(Callable[[Any], float], np.float64)
"""The float64 nearest to an integer."""


@_intrinsic  # type: ignore[untyped-decorator]
def _address_of(typing_context: Any, array: Any) -> Any:
    def generate(context: Any, builder: Builder, signature: Any, values: Any) -> Any:
        items = context.make_array(signature.args[0])(context, builder, values[0])
        return builder.ptrtoint(items.data, _WORD)

    return _int64(array), generate


address_of: Final[Callable[[NDArray[Any]], Address]] = _address_of
"""The address of the first item of a contiguous array."""
load_u8: Final = _load(_BYTE)
"""The byte at an address."""
load_u32: Final = _load(ir.IntType(32))
load_u64: Final = _load(_WORD)
"""The 4 or 8 bytes at an address, which need not be aligned."""
store_u8: Final = _store_integer(_BYTE)
store_u16: Final = _store_integer(ir.IntType(16))
store_u32: Final = _store_integer(ir.IntType(32))
store_u64: Final = _store_integer(_WORD)
"""Store the low bytes of an integer at an address."""
store_f32: Final = _store_float(ir.FloatType())
store_f64: Final = _store_float(ir.DoubleType())
"""Store a float64 at an address, rounded once to the width."""
count_trailing_zeros: Final[Callable[[int], int]] = intrinsic(
    _int64, (_int64,), lambda builder, value: builder.cttz(value, ir.IntType(1)(0))
)
"""Zero bits below the lowest one bit; 64 for 0."""
count_leading_zeros: Final[Callable[[int], int]] = intrinsic(
    _int64, (_int64,), lambda builder, value: builder.ctlz(value, ir.IntType(1)(0))
)
"""Zero bits above the highest one bit; 64 for 0."""
lshr: Final[Callable[[int, int], int]] = intrinsic(
    _int64, (_int64, _int64), lambda builder, value, count: builder.lshr(value, count)
)
"""Unsigned shift to the right by less than 64."""
ult: Final[Callable[[int, int], bool]] = intrinsic(
    types.boolean, (_int64, _int64), lambda builder, left, right: builder.icmp_unsigned("<", left, right)
)
"""Whether left < right, both unsigned."""
udiv: Final[Callable[[int, int], int]] = intrinsic(
    _int64, (_int64, _int64), lambda builder, value, divisor: builder.udiv(value, divisor)
)
"""The unsigned quotient, cut off; the divisor is not 0."""
mulhi_u64: Final[Callable[[int, int], int]] = intrinsic(_int64, (_int64, _int64), _mulhi_u64)
"""The upper 64 bits of the product of two unsigned integers."""
f64_bits: Final[Callable[[float], int]] = intrinsic(
    _int64, (types.float64,), lambda builder, value: builder.bitcast(value, _WORD)
)
f64_from_bits: Final[Callable[[int], float]] = intrinsic(
    types.float64, (_int64,), lambda builder, value: builder.bitcast(value, ir.DoubleType())
)
"""A float64 and its bits."""
f32_bits: Final[Callable[[float], int]] = intrinsic(_int64, (types.float64,), _f32_bits)
"""The bits of the float32 nearest to a float64, half to even."""
find_structure: Final = _find_any(b'"[]{}')
"""Bit i is set where byte i of the 64 at an address is a quote, a bracket or a brace."""
find_string_ends: Final = _find_any(b'"\\')
"""Bit i is set where byte i of the 64 at an address is a quote or a backslash."""
find_non_digits: Final[Callable[[Address], int]] = intrinsic(_int64, (_int64,), _find_non_digits)
"""Bit i is set where byte i of the 32 at an address is no digit."""
prefetch: Final[Callable[[Address], None]] = intrinsic(types.none, (_int64,), _prefetch)
"""Ask for the cache line at `address`; an address that is not mapped does no harm.

It is asked into the second cache, which can wait for more lines at once than the first.
"""
find_words: Final[Callable[[Address, int, int], int]] = intrinsic(_int64, (_int64,) * 3, _find_words)
"""Bit i is set where int64 number i of the 8 at (address, word, mask) equals `word` in the bits of `mask`.

The address is a multiple of 8.
"""
memcmp: Final[Callable[[Address, Address, int], int]] = _external("memcmp", types.int32(_int64, _int64, _int64))
"""The C library's: 0 if so many bytes at two addresses are equal."""
strtod: Final[Callable[[Address, int], float]] = _external("strtod", types.float64(_int64, _int64))
"""The C library's: the float64 nearest to the decimal at an address, in the direction that is set; the second is 0."""
fesetround: Final[Callable[[int], int]] = _external("fesetround", types.int32(types.int32))
"""The C library's: set the direction of rounding of this thread."""
