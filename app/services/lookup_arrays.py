"""Build the arrays that a lookup's kernel reads, and build the outputs from what it wrote.

The kernel reads indices within bounds, offsets in the indices' type, and fill rows. Its outputs are converted to the
requested type, and strings receive their octets.

A lookup by key is first converted to a lookup by position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.errors import GatherError
from app.kernels.check_lookup import FeatureArrays, rows_of, rows_read
from app.kernels.float_conversion import as_float_type, convert_floats
from app.kernels.replace_out_of_bounds import Replacement, replace_out_of_bounds
from app.memory.budget import Memory
from app.operators.gather_plan import GatherPlan
from app.operators.lookup_plan import FeaturePlan, LookupPlan, check_offsets
from app.operators.shape_rules import check_output_bytes
from app.services.edit_bags import edit_bags, skipped_entries
from app.services.find_rows import FoundRows, KeysToFind, check_keys, find_rows, positions_of
from app.store import Resident
from app.tensors.dtypes import DTYPES, DType
from app.tensors.gather_call import OUTPUT
from app.tensors.lookup_call import Feature, LookupCall, found_name
from app.tensors.shape_limits import Limits
from app.tensors.string_frames import read_frames
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor

Found = Sequence[FoundRows | None]
"""For each feature, the rows that its keys select, or None if it selects rows by position."""
_FLOAT32: Final = DTYPES["float32"]
Marks = Sequence[NDArray[np.bool_] | None]
"""For each feature, a mask of the indices whose rows are filled, or None if there are none; see `Replacement`."""
_AS_SENT: Final[Mapping[int, NDArray[np.int64]]] = {}


class LookupRun(NamedTuple):
    """The inputs and outputs of a lookup's kernel: indices, offsets, weights and fill rows, in the types that kernels
    accept.
    """

    plan: LookupPlan
    indices: Sequence[NDArray[Any]]
    offsets: Sequence[NDArray[Any] | None]
    weights: Sequence[NDArray[Any] | None]
    fills: Sequence[NDArray[Any] | None]
    outputs: Sequence[NDArray[Any]]
    items: Mapping[int, NDArray[np.int64]] = _AS_SENT
    """For each feature with edited bags, the position that each index had in the request; -1 for the default row."""

    def arrays(self, number: int, table: Tensor) -> FeatureArrays:
        """Return the arrays of a feature that reads `table`."""
        return FeatureArrays(
            table.items,
            self.indices[number],
            self.offsets[number],
            self.weights[number],
            self.fills[number],
            self.outputs[self.plan.features[number].output],
        )


def fills_rows(call: LookupCall, feature: Feature) -> bool:
    """Return whether any rows of a feature may be filled."""
    return (call.out_of_bounds if feature.by_key is None else feature.by_key.missing) == "fill"


def replaced_indices(call: LookupCall, plan: LookupPlan, rows: Found) -> list[Replacement]:
    """Return the indices of each feature, with out-of-bounds indices replaced unless they are an error.

    If an index's row is to be filled, the index is replaced by the table's number of rows.
    """
    found = []
    for feature, planned, by_key in zip(call.features, plan.features, rows, strict=True):
        if by_key is not None:
            filled = by_key.lacks if by_key.missing and fills_rows(call, feature) else None
            found.append(Replacement(by_key.rows, 0, filled))
            continue
        if call.out_of_bounds == "error":
            found.append(Replacement(feature.indices.array, 0, None))
            continue
        gather = GatherPlan(1, planned.indices, (planned.rows,), 1, planned.item_size, False, False)
        one = replace_out_of_bounds(gather, feature.indices.array, call.out_of_bounds)
        if one.filled is not None:
            one.indices[one.filled] = planned.rows
        found.append(one)
    return found


def fitted_bytes(call: LookupCall, plan: LookupPlan, indices: Sequence[NDArray[Any]], filled: Marks) -> int:
    """Return the bytes that `fitted_offsets` and `rows_to_fill_with` allocate."""
    rows = sum(one.row_bytes for one, marks in zip(plan.features, filled, strict=True) if marks is not None)
    return rows + sum(
        feature.bags * read.itemsize
        for feature, read in zip(call.features, indices, strict=True)
        if feature.offsets is not None and feature.offsets.array.dtype != read.dtype
    )


def fitted_offsets(call: LookupCall, indices: Sequence[NDArray[Any]]) -> list[NDArray[Any] | None]:
    """Return the offsets of each feature's bags, in the type of the indices that are read."""
    return [
        None if feature.offsets is None else feature.offsets.array[: feature.bags].astype(read.dtype, copy=False)
        for feature, read in zip(call.features, indices, strict=True)
    ]


def rows_to_fill_with(
    plan: LookupPlan, filled: Marks, fills: Mapping[str, Tensor], residents: Sequence[Resident]
) -> list[NDArray[Any] | None]:
    """Return a row of fill values for each feature with a filled index, and None for the others."""
    rows: list[NDArray[Any] | None] = []
    for planned, marks, resident in zip(plan.features, filled, residents, strict=True):
        dtype = resident.tensor.dtype
        # Strings are filled after they have been looked up; see `string_outputs`.
        value = fills[dtype.name].items[0] if marks is not None and dtype.kind != "string" else 0
        rows.append(None if marks is None else np.full(planned.row_items, value, dtype.carrier))
    return rows


def with_edited_bags(
    run: LookupRun, features: Sequence[Feature], residents: Sequence[Resident], found: Found, edited: Sequence[int]
) -> LookupRun:
    """Return the run, with the bags of the `edited` features ready to be read. Raises the errors of `edit_bags`."""
    plans, indices, offsets, weights = [*run.plan.features], [*run.indices], [*run.offsets], [*run.weights]
    items: dict[int, NDArray[np.int64]] = {}
    for number in edited:
        feature, resident, rows, begin = features[number], residents[number], found[number], offsets[number]
        assert begin is not None, "it is pooled"
        skipped = skipped_entries(feature, resident) if rows is None else rows.skipped
        bags = edit_bags(feature, resident, indices[number], begin, weights[number], skipped)
        indices[number], offsets[number], weights[number], items[number] = bags
        plans[number] = replace(plans[number], indices=bags.indices.size)
    plan = replace(run.plan, features=tuple(plans))
    return run._replace(plan=plan, indices=indices, offsets=offsets, weights=weights, items=items)


def widen_rows(plan: FeaturePlan, arrays: FeatureArrays) -> tuple[FeaturePlan, FeatureArrays] | None:
    """Return a feature that reads its rows, in the same order, from a new float32 table.

    Returns None if an index is out of bounds.
    """
    indices, dtype = arrays.indices, DTYPES[plan.dtype]
    if plan.indices and not 0 <= indices.min() <= indices.max() < plan.rows + (arrays.fill is not None):
        return None
    rows = rows_read(plan, arrays, indices).reshape(-1)
    wide = arrays._replace(
        table=_as_float32(rows, dtype),
        indices=np.arange(plan.indices, dtype=indices.dtype),
        weights=None if arrays.weights is None else _as_float32(arrays.weights, dtype),
        fill=None,
    )
    return replace(plan, rows=plan.indices, item_size=_FLOAT32.item_size, dtype=_FLOAT32.name), wide


def _as_float32(carriers: NDArray[Any], dtype: DType) -> NDArray[Any]:
    return convert_floats(carriers, dtype, _FLOAT32).view(_FLOAT32.carrier)


def converted_bytes(call: LookupCall, plan: LookupPlan) -> int:
    """Return the bytes that a lookup needs in addition to its outputs when a different output type is requested."""
    if call.output_dtype is None:
        return 0
    features = (plan.features[number] for number in plan.widened)
    # This counts the rows and their float32 copy, the row numbers, and the weights as float32.
    wide = sum(3 * feature.indices * feature.row_bytes + 12 * feature.indices for feature in features)
    return plan.written_bytes + wide + (plan.output_bytes if call.concat else 0)


def by_position(call: LookupCall, residents: Sequence[Resident]) -> LookupCall:
    """Return the equivalent lookup by position. Its rows are not known yet. Raises no_keys and unsupported_dtype."""
    features = list(call.features)
    for number, (feature, resident) in enumerate(zip(call.features, residents, strict=True)):
        if feature.by_key is not None:
            check_keys(feature.indices, resident, feature.tensor, f"{feature.pointer}/tensor")
            features[number] = replace(feature, indices=positions_of(feature.indices))
    return replace(call, features=features)


def with_rows(call: LookupCall, found: Found) -> LookupCall:
    """Return the lookup with the rows that were found as its indices."""
    features = [
        one if rows is None else replace(one, indices=positions_of(one.indices, rows.rows))
        for one, rows in zip(call.features, found, strict=True)
    ]
    return replace(call, features=features)


def found_outputs(call: LookupCall, found: Found) -> dict[str, Tensor]:
    """For the features that request it, return the outputs that say which keys were found."""
    return {
        found_name(number): rows.found(feature.indices.shape)
        for number, (feature, rows) in enumerate(zip(call.features, found, strict=True))
        if rows is not None and feature.by_key is not None and feature.by_key.found
    }


def rows_found(call: LookupCall, residents: Sequence[Resident]) -> list[FoundRows | None] | GatherError:
    """Return the rows that the keys of each feature select, or the first error. Errors in offsets take precedence."""
    wanted = [_keys_to_find(feature, resident) for feature, resident in zip(call.features, residents, strict=True)]
    every = iter(find_rows([one for one in wanted if one is not None]))
    found = [None if one is None else next(every) for one in wanted]
    rows = [one for one in found if not isinstance(one, GatherError)]
    if len(rows) == len(found):
        return rows
    try:
        for feature in call.features:
            check_offsets(feature)
    except GatherError as error:
        return error
    return next(one for one in found if isinstance(one, GatherError))


def _keys_to_find(feature: Feature, resident: Resident) -> KeysToFind | None:
    """Return the keys of a feature, or None if it selects rows by position."""
    if feature.by_key is None:
        return None
    assert resident.keys is not None, "this was checked"
    skipped = skipped_entries(feature, resident)
    return KeysToFind(feature.by_key, feature.indices, resident.keys, feature.tensor, skipped)


def output_names(call: LookupCall) -> list[str]:
    """Return the names of the outputs: `output`, or `0.output`, `1.output` and so on."""
    return [OUTPUT] if call.concat else [f"{number}.{OUTPUT}" for number in range(len(call.features))]


def outputs_of(call: LookupCall, run: LookupRun) -> list[Tensor]:
    """Return the outputs of a lookup that has no strings.

    Converts them to the requested type, then concatenates them.
    """
    written = zip(run.plan.written, run.outputs, strict=True)
    parts = [Tensor(dtype, shape, out.view(dtype.numpy)) for (dtype, shape), out in written]
    if call.output_dtype is None:
        return parts
    (target, shape), *_ = run.plan.outputs
    parts = [as_float_type(part, target) for part in parts]
    if not call.concat:
        return parts
    if not shape[0]:
        return [Tensor(target, shape, np.empty(0, target.numpy))]
    rows = [part.array.reshape(shape[0], -1) for part in parts]
    return [Tensor(target, shape, np.concatenate(rows, axis=1).reshape(-1))]


def string_outputs(
    call: LookupCall,
    run: LookupRun,
    residents: Sequence[Resident],
    filled: Marks,
    fills: Mapping[str, Tensor],
    limits: Limits,
    memory: Memory,
) -> list[Tensor]:
    """Return the outputs if at least one has strings. The strings' frames are copied only to concatenate them.

    Raises output_too_large if the strings have more bytes than a response may have.
    """
    found: list[Tensor] = []
    size = 0
    parts: list[tuple[int, int, PackedStrings]] = []  # number, width, strings
    for number, (feature, resident) in enumerate(zip(run.plan.features, residents, strict=True)):
        table = resident.tensor
        rows = rows_of(feature, run.outputs[feature.output])
        shape = run.plan.shapes[number]
        if not isinstance(table, PackedStrings):
            dtype = table.dtype
            found.append(Tensor(dtype, shape, run.outputs[feature.output].view(dtype.numpy)))
            size += run.outputs[feature.output].nbytes
            continue
        memory.charge(rows.nbytes)
        strings = table.gathered(shape, np.ascontiguousarray(rows).reshape(-1).view(np.uint64))
        marks = filled[number]
        if marks is not None:
            where = np.repeat(marks, feature.row_items)
            item = fills[table.dtype.name]
            assert isinstance(item, PackedStrings), "its type is that of the table"
            strings = strings.filled(where, item, memory.charge)
        size += strings.nbytes
        check_output_bytes("the strings looked up", size, limits, call.pointer("features"))
        found.append(strings)
        parts.append((number, rows.shape[1], strings))
    if not call.concat:
        return found
    return [_join_strings(run, parts, memory)]


def _join_strings(run: LookupRun, parts: Sequence[tuple[int, int, PackedStrings]], memory: Memory) -> PackedStrings:
    """Return the strings of several tables as one tensor, with copies of their frames in one array."""
    (dtype, shape), out = run.plan.outputs[0], run.outputs[0]
    starts = out.view(np.int64).reshape(shape[0], -1) if out.size else np.empty((0, 0), np.int64)
    pieces: list[NDArray[np.uint8]] = []
    end = 0
    for number, width, strings in parts:
        octets = np.frombuffer(strings.packed(memory.charge), np.uint8)
        count = strings.array.size
        memory.charge(8 * count + octets.nbytes)
        places = np.empty(count, np.int64)
        octets.flags.writeable = False
        read_frames.run(octets, count, places)
        if count:
            column = run.plan.features[number].column // 8
            starts[:, column : column + width] = places.reshape(-1, width) + end
        pieces.append(octets)
        end += octets.size
    return PackedStrings(dtype, shape, starts.reshape(-1), octets=np.concatenate(pieces))
