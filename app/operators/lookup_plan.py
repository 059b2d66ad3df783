"""Lookup: its plan, and the rules on its features. Each rule is checked for all features in turn.

A feature selects rows along axis 0 of a table of rank 1 or more. Without pooling, its output has the shape
indices.shape + table.shape[1:]; with pooling, it has the shape [bags] + table.shape[1:], as in OpenVINO
EmbeddingBagOffsets-15. The `max` pooling and the rule that offsets never decrease are our own additions. Sums are
computed in index order in float32 (float64 for float64), starting at zero. Each product with a weight is rounded before
it is added, and the sum is rounded once to the table's type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from numpy.typing import NDArray

from app.errors import GatherError, Place
from app.operators.dialects import EMBEDDING_BAG_OFFSETS
from app.operators.gather_plan import GatherPlan
from app.operators.index_out_of_bounds import error_at, places_out_of_bounds
from app.operators.shape_rules import check_output_bytes, check_shape_limits, output_type
from app.tensors.dtypes import DTYPES, DType
from app.tensors.lookup_call import Feature, LookupCall, Pooling
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor, coordinates

INDEX_DTYPES: Final = ("int32", "int64")
POOLED_DTYPES: Final = tuple(name for name, row in DTYPES.items() if row.kind == "float" and row.arithmetic)
RULES: Final = EMBEDDING_BAG_OFFSETS["openvino-15"].rules
"""The specification that errors cite: EmbeddingBagOffsets of OpenVINO's opset 15."""
_HALF: Final = 2
"""Size in bytes of the floats that are summed in float32."""
_BLOCK: Final = 1 << 18
"""Number of offsets that are checked at a time for an error. It bounds the memory."""


@dataclass(frozen=True, slots=True)
class FeaturePlan:
    """The plan of a feature, a kernel's input. Sizes are in items unless noted.

    The table is [rows, row_items] carriers of `item_size` bytes. `dtype` is the name of its type, on which pooling
    depends. Without pooling, each output row holds `group` table rows side by side. With pooling, the `indices` form
    `bags` output rows. Row i of the output starts at byte `i * stride + column` of array number `output`.
    """

    rows: int
    row_items: int
    item_size: int
    dtype: str
    pooling: Pooling
    indices: int
    bags: int
    weighted: bool
    group: int
    output: int
    stride: int
    column: int

    @property
    def output_rows(self) -> int:
        """Number of rows in the output."""
        return self.indices // self.group if self.pooling == "none" else self.bags

    @property
    def row_bytes(self) -> int:
        """Number of bytes per row of the table."""
        return self.row_items * self.item_size


Described = tuple[DType, tuple[int, ...]]
"""Type and shape of an output."""


@dataclass(frozen=True, slots=True)
class LookupPlan:
    """The features, and the outputs of the response. `shapes` are the shapes of the features' own outputs.

    Kernels write the outputs `written`. They are the outputs of the response unless the request specifies another type.
    In that case, each feature is written separately, with sums of two-byte floats in float32, so that each item is
    rounded only once.
    """

    features: tuple[FeaturePlan, ...]
    outputs: tuple[Described, ...]
    shapes: tuple[tuple[int, ...], ...]
    written: tuple[Described, ...]
    widened: tuple[int, ...]
    """Indices of the pooled features whose tables have two-byte floats and whose outputs are written as float32."""

    @property
    def output_bytes(self) -> int:
        """Number of bytes in the response's outputs."""
        return sum(prod(shape) * dtype.carrier.itemsize for dtype, shape in self.outputs)

    @property
    def written_bytes(self) -> int:
        """Number of bytes in the outputs that kernels write."""
        return sum(prod(shape) * dtype.carrier.itemsize for dtype, shape in self.written)

    @property
    def equivalent(self) -> GatherPlan:
        """A gather that takes about as long: it has the same number of rows and bytes."""
        rows = sum(feature.indices for feature in self.features)
        read = sum(feature.indices * feature.row_bytes for feature in self.features)
        items = -(-read // max(4 * rows, 1))
        most = max((feature.rows * feature.row_bytes for feature in self.features), default=0)
        return GatherPlan(1, rows, (max(most // max(4 * items, 1), 1),), items, 4, False, False)


def plan_key(call: LookupCall, tables: Sequence[Tensor]) -> tuple[object, ...]:
    """Return the cache key of a call's plan: everything on which the plan depends.

    Calls with errors are not cached, so the key does not include pointers.
    """
    features = zip(call.features, tables, strict=True)
    return (call.concat, call.output_dtype, *[_feature_key(feature, table) for feature, table in features])


def _feature_key(feature: Feature, table: Tensor) -> tuple[object, ...]:
    offsets, weights, indices = feature.offsets, feature.weights, feature.indices
    return (
        table.dtype.name,
        table.shape,
        feature.pooling,
        indices.dtype.name,
        indices.shape,
        None if offsets is None else (offsets.dtype.name, offsets.shape, feature.include_last_offset),
        None if weights is None else (weights.dtype.name, weights.shape),
    )


def plan_lookup(call: LookupCall, tables: Sequence[Tensor], limits: Limits) -> LookupPlan:
    """Return the plan of a call whose features read `tables`. Each rule is checked for all features in turn.

    Raises, in this order: unsupported_dtype; rank_too_small and rank_mismatch; updates_shape_mismatch and
    offsets_invalid, if shapes alone show the error; feature_mismatch; limit_exceeded and output_too_large.
    """
    pairs = list(zip(call.features, tables, strict=True))
    for feature, table in pairs:
        _check_dtypes(feature, table)
    for feature, table in pairs:
        _check_ranks(feature, table)
    for feature, _ in pairs:
        _check_weights(feature)
    shapes = tuple(_output_shape(feature, table) for feature, table in pairs)
    types = [output_type(call, table.dtype) for table in tables]
    joined = _shape_of_joined(call, types, shapes) if call.concat else None
    for feature, table in pairs:
        _check_limits(feature, table, limits)
    outputs = tuple(zip(types, shapes, strict=True)) if joined is None else ((types[0], joined),)
    _check_outputs(call, outputs, limits)
    written = outputs
    widened: list[int] = []
    if call.output_dtype is not None:
        joined = None
        halves = [feature.pooling != "none" and table.dtype.item_size == _HALF for feature, table in pairs]
        widened = [number for number, is_half in enumerate(halves) if is_half]
        types = [DTYPES["float32"] if is_half else table.dtype for is_half, table in zip(halves, tables, strict=True)]
        written = tuple(zip(types, shapes, strict=True))
    plans = []
    column = 0
    for number, (feature, table) in enumerate(pairs):
        item_size, group = table.dtype.carrier.itemsize, prod(feature.indices.shape[1:])
        own = group * prod(table.shape[1:]) * written[number if joined is None else 0][0].carrier.itemsize
        stride = own if joined is None else prod(joined[1:]) * item_size
        plans.append(
            FeaturePlan(
                rows=table.shape[0],
                row_items=prod(table.shape[1:]),
                item_size=item_size,
                dtype=table.dtype.name,
                pooling=feature.pooling,
                indices=prod(feature.indices.shape),
                bags=feature.bags,
                weighted=feature.weights is not None,
                group=max(group, 1),
                output=number if joined is None else 0,
                # Indices with a dimension of 0 write no rows. Use a stride that a row would fit into.
                stride=stride if group else max(stride, prod(table.shape[1:]) * item_size),
                column=0 if joined is None else column,
            )
        )
        column += own
    return LookupPlan(tuple(plans), outputs, shapes, written, tuple(widened))


def _check_dtypes(feature: Feature, table: Tensor) -> None:
    """Check the types of table, indices, offsets and weights. Raises unsupported_dtype."""
    indices = feature.indices
    if feature.pooling != "none" and table.dtype.name not in POOLED_DTYPES:
        raise GatherError(
            "unsupported_dtype",
            f"pooling {feature.pooling} accepts tables of {', '.join(POOLED_DTYPES)}, but {feature.tensor!r} is "
            f"{table.dtype.name}",
            pointer=f"{feature.pointer}/pooling",
            rule=RULES["data_dtype"],
            hint=f"Leave out {_pooling_fields(feature)} at {feature.pointer}, and pool the rows yourself.",
        )
    if indices.dtype.name not in INDEX_DTYPES:
        raise GatherError(
            "unsupported_dtype",
            f"a lookup accepts indices of type int32 or int64, not {indices.dtype.name}",
            pointer=indices.dtype_pointer,
            rule=RULES["index_dtype"],
            hint=f"Convert the indices of {feature.pointer} to int64.",
        )
    for name, tensor, wanted in (
        ("offsets", feature.offsets, indices.dtype.name),
        ("weights", feature.weights, table.dtype.name),
    ):
        if tensor is not None and tensor.dtype.name != wanted:
            like = "the indices are" if name == "offsets" else f"the table {feature.tensor!r} is"
            raise GatherError(
                "unsupported_dtype",
                f"{name} are of type {tensor.dtype.name} but must be {wanted}, as {like}",
                pointer=tensor.dtype_pointer,
                rule=RULES["index_dtype" if name == "offsets" else "weights_dtype"],
                hint=f"Convert the {name} of {feature.pointer} to {wanted}.",
            )


def _pooling_fields(feature: Feature) -> str:
    """Return the names of a feature's fields that only pooled features have, as text for a hint."""
    return "'pooling', 'offsets' and 'weights'" if feature.weights is not None else "'pooling' and 'offsets'"


def _check_ranks(feature: Feature, table: Tensor) -> None:
    """Check the ranks of table, indices and offsets.

    Raises rank_too_small if the table has rank 0, and rank_mismatch if the rank of pooled indices is not 1. Raises
    offsets_invalid if the rank of offsets is not 1, or if they are empty although include_last_offset adds an entry.
    """
    if not table.shape:
        raise GatherError(
            "rank_too_small",
            f"the tensor {feature.tensor!r} has rank 0, but needs rank 1 or more",
            pointer=f"{feature.pointer}/tensor",
            rule=RULES["rank_too_small"],
            hint="Name a tensor of rank 1 or more, whose rows lie along its first axis.",
        )
    if feature.pooling == "none":
        return
    rank = len(feature.indices.shape)
    if rank != 1:
        raise GatherError(
            "rank_mismatch",
            f"indices has rank {rank}, but needs rank 1, since its bags are pooled",
            places=[Place(feature.indices.shape_pointer, value=rank, allowed=(1, 1))],
            rule=RULES["rank_mismatch"],
            hint=f"Give the indices of {feature.pointer} one dimension: concatenate the bags and give the start of "
            "each in offsets.",
        )
    assert feature.offsets is not None, "the format has refused pooling without offsets"
    rank = len(feature.offsets.shape)
    if rank != 1:
        raise GatherError(
            "offsets_invalid",
            f"offsets has rank {rank}, but needs rank 1",
            places=[Place(feature.offsets.shape_pointer, value=rank, allowed=(1, 1))],
            rule=RULES["offsets_invalid"],
            hint=f"Send the offsets of {feature.pointer} in one dimension: the position of each bag's first index.",
        )
    if feature.bags < 0:
        raise GatherError(
            "offsets_invalid",
            "offsets are empty; with include_last_offset, they must have at least the end of the last bag",
            places=[Place(feature.offsets.shape_pointer, value=0)],
            rule=RULES["offsets_invalid"],
            hint=f"Send the number of indices as the last of the offsets of {feature.pointer}, such as [0] if there "
            "are no indices and no bags.",
        )


def _check_weights(feature: Feature) -> None:
    """Check that there is one weight per index. Raises updates_shape_mismatch."""
    weights, wanted = feature.weights, feature.indices.shape
    if weights is not None and weights.shape != wanted:
        raise GatherError(
            "updates_shape_mismatch",
            f"weights has shape {list(weights.shape)}, but must have {list(wanted)}, one weight for each index",
            pointer=weights.shape_pointer,
            rule=RULES["updates_shape_mismatch"],
            hint=f"Send weights of shape {list(wanted)} for {feature.pointer}, one for each index.",
        )


def _output_shape(feature: Feature, table: Tensor) -> tuple[int, ...]:
    first = feature.indices.shape if feature.offsets is None else (feature.bags,)
    return first + table.shape[1:]


def _shape_of_joined(call: LookupCall, types: Sequence[DType], shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape of all outputs joined on axis 1. An output of rank 1 is one column. Raises feature_mismatch."""
    first_type, first = types[0], shapes[0]
    columns = 0
    for feature, dtype, shape in zip(call.features, types, shapes, strict=True):
        fault = None
        if dtype is not first_type:
            fault = f"has type {dtype.name}, but the first output has type {first_type.name}"
        elif not feature.indices.shape:
            fault = "is the row of a single index, without an axis of rows"
        elif shape[0] != first[0]:
            fault = f"has {shape[0]} rows, but the first output has {first[0]}"
        elif shape[2:] != first[2:]:
            fault = f"has shape {list(shape)}, but the first output has shape {list(first)}"
        if fault is not None:
            raise GatherError(
                "feature_mismatch",
                f"the output of the tensor {feature.tensor!r} {fault}, so they cannot be joined on axis 1",
                pointer=feature.pointer,
                hint="Send 'concat': false to get one output for each feature, or give all features the same type and "
                "number of rows.",
            )
        columns += shape[1] if len(shape) > 1 else 1
    return (first[0], columns, *first[2:])


def _check_limits(feature: Feature, table: Tensor, limits: Limits) -> None:
    for name, tensor in (("indices", feature.indices), ("offsets", feature.offsets)):
        if tensor is not None:
            check_shape_limits(name, tensor.shape, tensor.dtype, limits, tensor.shape_pointer)
    shape = _output_shape(feature, table)
    check_shape_limits("the output", shape, table.dtype, limits, feature.indices.shape_pointer)


def _check_outputs(call: LookupCall, outputs: Sequence[tuple[DType, tuple[int, ...]]], limits: Limits) -> None:
    """Raise output_too_large if all outputs together exceed the limit on a response's bytes."""
    size = sum(prod(shape) * (dtype.item_size or 4) for dtype, shape in outputs)
    check_output_bytes("the outputs of all features", size, limits, call.pointer("features"))
    for dtype, shape in outputs:
        check_shape_limits("the output", shape, dtype, limits, call.pointer("features"))


def check_offsets(feature: Feature) -> None:
    """Check the offsets of a feature. Raises offsets_invalid.

    The first offset must be 0. Offsets must neither decrease nor exceed the number of indices. With
    include_last_offset, the last one must equal that number.
    """
    offsets, indices = feature.offsets, feature.indices
    if offsets is None:
        return
    values, count = offsets.array, indices.array.size
    if not feature.bags and count:
        one, end = ("[0]", "") if not feature.include_last_offset else (f"[0, {count}]", " and the end")
        raise _wrong_offset(
            f"there are {count} indices but no bag for them",
            Place(offsets.pointer),
            f"Send an offset for each bag of {feature.pointer}{end}, such as {one} for a single bag of all indices.",
        )
    if not values.size:
        return
    item, low, high, wanted, why = 0, 0, 0, "0", "the first bag begins with the first index"
    if values[0] == 0:
        item, last = _first_wrong_offset(values, count), values.size - 1
        if feature.include_last_offset and item in (-1, last):
            if not ends_early(feature):
                return
            item, low, high, wanted = last, count, count, str(count)
            why = f"with include_last_offset, the last offset must be the number of indices, {count}"
        elif item < 0:
            return
        else:
            low, high = int(values[item - 1]), count
            wanted = f"an offset from {low} to {high}"
            why = (
                f"bag {item} must begin at or after the start of the bag before it, and no later than the end of the "
                f"{count} indices"
            )
    value = int(values[item])
    raise _wrong_offset(
        f"offsets[{item}] = {value}, but {why}",
        Place(offsets.locate(item), coordinates(item, offsets.shape), value, allowed=(low, high)),
        f"Send {wanted} at {offsets.locate(item)}, since {why}.",
    )


def ends_early(feature: Feature) -> bool:
    """Return whether include_last_offset is set and the last offset differs from the number of indices."""
    if not feature.include_last_offset or feature.offsets is None:
        return False
    return int(feature.offsets.array[-1]) != feature.indices.array.size


def _first_wrong_offset(values: NDArray[Any], count: int) -> int:
    """Return the first offset that is less than the previous one or more than `count`, or -1 if there is none.

    The check works in blocks, so that the memory it uses is bounded.
    """
    for start in range(0, values.size, _BLOCK):
        before = max(start - 1, 0)
        block = values[before : start + _BLOCK]
        wrong = block > count
        wrong[1:] |= block[1:] < block[:-1]
        if wrong.any():
            return before + int(wrong.argmax())
    return -1


def _wrong_offset(detail: str, place: Place, hint: str) -> GatherError:
    return GatherError("offsets_invalid", detail, places=[place], rule=RULES["offsets_invalid"], hint=hint)


def check_indices(feature: Feature, rows: int) -> None:
    """Check that every index is in [0, rows).

    Raises index_out_of_bounds with the first ten invalid ones and their total number.
    """
    places, total = places_out_of_bounds(feature.indices, (rows,), wrap=False)
    if not total:
        return
    name = repr(feature.tensor)
    hint = f"Leave out this feature, since {name} has no rows."
    if rows:
        hint = f"Use an index from 0 to {rows - 1} at {places[0].pointer}, since {name} has {rows} rows."
    raise error_at(places, total, f"axis 0 of the tensor {name}", RULES["index_out_of_bounds"], hint)
