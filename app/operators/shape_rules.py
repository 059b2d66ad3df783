"""The rules that operators share: types, rank, axis and limits on shapes.

Each rule is a small pure function. If its rule is broken, it raises an error from the catalogue that cites the
dialect's clause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Final

from app.errors import GatherError, Place
from app.operators.dialects import Dialect
from app.tensors.dtypes import DTYPES, DType
from app.tensors.gather_call import Call, ReadingCall
from app.tensors.scatter_call import KeyedCall, ScatterCall
from app.tensors.shape_limits import NUMPY_BYTES, Limits
from app.tensors.tensor import Tensor

NO_TENSORS: Final[Mapping[str, Tensor]] = {}
_LESS_DATA: Final = (
    "Scatter into a part of the data, since the output has its size; POST /tensors/NAME/scatter changes a whole one."
)


def check_dtypes(dialect: Dialect, data: Tensor, indices: Tensor, further: Mapping[str, Tensor] = NO_TENSORS) -> None:
    """Check the input types against the dialect: data first, then indices, then any other inputs.

    Raises unsupported_dtype.
    """
    check_data_dtype(dialect, data)
    check_index_dtype(dialect, indices)
    for name, tensor in further.items():
        taken = dialect.further_dtypes.get(name)
        if taken is not None and tensor.dtype.name not in taken:
            raise GatherError(
                "unsupported_dtype",
                f"{dialect.name} does not accept {name} of type {tensor.dtype.name}; it accepts {', '.join(taken)}",
                pointer=tensor.dtype_pointer,
                rule=dialect.rules[f"{name}_dtype"],
                hint=f"Convert {name} to {taken[0]}.",
            )


def check_data_dtype(dialect: Dialect, data: Tensor) -> None:
    """Check data's type against the dialect. Raises unsupported_dtype."""
    if data.dtype.name not in dialect.data_dtypes:
        name = data.dtype.name
        other = dialect.taken_by.get(name)
        wanted = "float32" if "float32" in dialect.data_dtypes else min(dialect.data_dtypes)
        raise GatherError(
            "unsupported_dtype",
            f"{dialect.name} does not accept data of type {data.dtype.name}",
            pointer=data.dtype_pointer,
            rule=dialect.rules["data_dtype"],
            hint=f"Use the dialect '{other}', which accepts data of type {name}."
            if other is not None
            else f"Convert data to {wanted}, since no dialect accepts {name}.",
        )


def check_index_dtype(dialect: Dialect, indices: Tensor) -> None:
    """Check the type of indices against the dialect. Raises unsupported_dtype."""
    if indices.dtype.name not in dialect.index_dtypes:
        allowed = ", ".join(sorted(dialect.index_dtypes))
        raise GatherError(
            "unsupported_dtype",
            f"{dialect.name} does not accept indices of type {indices.dtype.name}; it accepts {allowed}",
            pointer=indices.dtype_pointer,
            rule=dialect.rules["index_dtype"],
            hint=f"Convert indices to int64, which {dialect.name} accepts.",
        )


def output_type(call: ReadingCall, dtype: DType) -> DType:
    """Return the output's type: `dtype`, the type of the items, unless the call requests another one.

    Raises unsupported_dtype.
    """
    if call.output_dtype is None:
        return dtype
    if dtype.kind != "float":
        raise GatherError(
            "unsupported_dtype",
            f"output_dtype is for data of a float type, but this data is {dtype.name}",
            pointer=call.pointer("output_dtype"),
            hint=f"Leave out 'output_dtype': the output is {dtype.name}, as the data is.",
        )
    return DTYPES[call.output_dtype]


def check_rank(dialect: Dialect, role: str, tensor: Tensor) -> None:
    """Check that the rank is at least 1 (GatherND clause 1; Gather r >= 1). Raises rank_too_small."""
    if not tensor.shape:
        raise GatherError(
            "rank_too_small",
            f"{role} has rank 0, but needs rank 1 or more",
            pointer=tensor.shape_pointer,
            rule=dialect.rules["rank_too_small"],
        )


def check_axis(dialect: Dialect, data: Tensor, axis: int, pointer: str) -> int:
    """Check -r <= axis < r. Returns the axis counted from the front. Raises axis_out_of_range."""
    rank = len(data.shape)
    if not -rank <= axis < rank:
        raise GatherError(
            "axis_out_of_range",
            f"axis = {shorten(axis)} is outside [{-rank}, {rank - 1}], as data has rank {rank}",
            places=[Place(pointer, value=axis, allowed=(-rank, rank - 1))],
            rule=dialect.rules["axis_out_of_range"],
        )
    return axis % rank


def check_updates_type(
    dialect: Dialect, dtype: DType, updates: Tensor, call: Call | ScatterCall | KeyedCall, role: str = "data"
) -> None:
    """Check that updates have data's type, and that a reduction is used only with an arithmetic type.

    Raises unsupported_dtype. ONNX allows every type with every reduction, but does not define reductions such as add or
    max for other types.
    """
    if updates.dtype is not dtype:
        raise GatherError(
            "unsupported_dtype",
            f"updates are of type {updates.dtype.name}, but {role} is of type {dtype.name}",
            pointer=updates.dtype_pointer,
            rule=dialect.rules["data_dtype"],
            hint=f"Convert updates to {dtype.name}.",
        )
    if call.reduction != "none" and not dtype.arithmetic:
        raise GatherError(
            "unsupported_dtype",
            f"{role} of type {dtype.name} accepts only the reduction none",
            pointer=call.pointer("reduction"),
            hint=f"Write 'none' in place of {call.reduction!r}.",
        )


def check_wanted_shape(dialect: Dialect, name: str, tensor: Tensor, wanted: tuple[int, ...]) -> None:
    """Raise updates_shape_mismatch unless updates, scales or zero points have the required shape."""
    if tensor.shape != wanted:
        raise GatherError(
            "updates_shape_mismatch",
            f"{name} has shape {list(tensor.shape)}, but must have {list(wanted)}",
            pointer=tensor.shape_pointer,
            rule=dialect.rules["updates_shape_mismatch"],
            hint=f"Send {name} of shape {list(wanted)}.",
        )


def check_limits(
    inputs: Mapping[str, Tensor], output_shape: Sequence[int], output_dtype: DType, limits: Limits
) -> None:
    """Check sizes exactly, from the shapes alone, before anything is allocated. Call it after the operator's own rules.

    If the output is too large, the error points to indices, which determine the output's shape. For a scatter, it
    points to data, because the output is a copy of data.

    Raises limit_exceeded if the output or one of `inputs` exceeds a limit or if it cannot exist because the product of
    its non-zero dimensions exceeds 2**63 - 1 bytes. Raises output_too_large if the output exceeds
    `limits.output_bytes`.
    """
    first_two = ("data", "indices")
    for name in first_two:
        _check_input(name, inputs[name], limits)
    size = prod(output_shape) * (output_dtype.item_size or 4)
    copies = "updates" in inputs
    pointer = inputs["data" if copies else "indices"].shape_pointer
    hint = _LESS_DATA if copies else None
    check_output_bytes(f"the output of shape {list(output_shape)}", size, limits, pointer, hint)
    check_shape_limits("the output", output_shape, output_dtype, limits, pointer)
    for name, tensor in inputs.items():
        if name not in first_two:
            _check_input(name, tensor, limits)


def _check_input(name: str, tensor: Tensor, limits: Limits) -> None:
    check_shape_limits(name, tensor.shape, tensor.dtype, limits, tensor.shape_pointer)


def check_output_bytes(what: str, size: int, limits: Limits, pointer: str, hint: str | None = None) -> None:
    """Raise output_too_large if `what`, with `size` bytes, exceeds the limit on a response."""
    if size > limits.output_bytes:
        raise GatherError(
            "output_too_large",
            f"{what} would have {size} bytes; the limit is {limits.output_bytes}",
            pointer=pointer,
            facts={"limit": "output_bytes", "maximum": limits.output_bytes},
            hint=hint,
        )


def check_shape_limits(role: str, shape: Sequence[int], dtype: DType, limits: Limits, pointer: str) -> None:
    """Check one tensor against the limits exactly. Raises limit_exceeded."""
    if len(shape) > limits.rank:
        raise _limit_error("rank", f"{role} has rank {len(shape)}", limits.rank, pointer)
    items = 1
    volume = dtype.item_size or 8
    for size in shape:
        if size > limits.dimension:
            raise _limit_error("dimension", f"{role} has a dimension of {size}", limits.dimension, pointer)
        items *= size
        volume *= size or 1
    if items > limits.elements:
        raise _limit_error("elements", f"{role} has {items} elements", limits.elements, pointer)
    if volume > NUMPY_BYTES:
        raise _limit_error("bytes", f"the non-zero dimensions of {role} span {volume} bytes", NUMPY_BYTES, pointer)


def _limit_error(limit: str, what: str, maximum: int, pointer: str) -> GatherError:
    return GatherError(
        "limit_exceeded",
        f"{what}; the limit is {maximum}",
        pointer=pointer,
        facts={"limit": limit, "maximum": maximum},
    )


def shorten(number: int) -> str:
    """Return `number` as text for use in a sentence. A very long number is described by its number of bits."""
    bits = number.bit_length()
    return str(number) if bits <= 128 else f"{'-' if number < 0 else ''}(a number of {bits} bits)"
