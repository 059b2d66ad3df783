"""Random lookups of several tables, valid and not: their rules, and loops that pool one element after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from tests.http.forms import FLOATS, INTEGERS, TYPES
from tests.http.rules import BadIndex, representable
from tests.parity.faults import INT32_64, Fault, Stage, of_arrays
from tests.parity.gather_cases import MODES, fill_item
from tests.parity.items import NUMPY, Array, Rng, choose, indices_around, items, name_of
from tests.parity.messages import Request, values
from tests.parity.scatter_cases import spoil_values

POOLINGS = ("none", "sum", "mean", "max")
CODES = {
    "invalid_field", "unsupported_dtype", "element_count_mismatch", "value_not_representable", "tensor_not_found",
    "rank_too_small", "rank_mismatch", "updates_shape_mismatch", "offsets_invalid", "feature_mismatch",
    "index_out_of_bounds",
}  # fmt: skip
Tables = Mapping[str, Array]


def tables() -> dict[str, Array]:
    """Resident tables of every type, those of floats of rank 1 to 3; and one without rows, and one of rank 0."""
    rng = np.random.default_rng(6)
    made = {}
    for dtype in TYPES:
        for number, shape in enumerate([[6], [5, 3], [7, 2], [4, 2, 3]] if dtype in FLOATS else [[6], [5, 3]]):
            made[f"pl_{dtype}_{number}"] = items(rng, dtype, shape)
    return made | {"pl_empty": np.zeros((0, 3), np.float32), "pl_scalar": np.array(3, np.float32)}


@dataclass
class Feature:
    """A table's name, how its rows are pooled and whether `none` is said, and members that are none of a feature's."""

    tensor: str
    pooling: str = "none"
    says_none: bool = False
    more: dict[str, Any] = field(default_factory=dict)

    def members(self) -> dict[str, Any]:
        return (
            {"tensor": self.tensor}
            | ({"pooling": self.pooling} if self.says_none or self.pooling != "none" else {})
            | self.more
        )


@dataclass
class Lookup(Request):
    """Its arrays have the names of safetensors: `0.indices`, `0.offsets`, `0.weights`, `1.indices` and so on."""

    features: list[Feature] = field(default_factory=list)

    def array(self, number: int, name: str) -> Array | None:
        return self.arrays.get(f"{number}.{name}")


def random_lookup(rng: Rng, held: Tables, *, spoiled: bool) -> Lookup:
    """A lookup that is valid but for what is `spoiled`; indices are out of bounds where the mode takes that."""
    concat, mode = bool(rng.random() < 0.6), choose(rng, MODES)
    given: dict[str, Any] = {"concat": concat} if not concat or rng.random() < 0.3 else {}
    if mode != "error" or rng.random() < 0.3:
        given["out_of_bounds"] = mode
    lookup = Lookup("/lookup", {}, given)
    names = [name for name in held if name != "pl_scalar" and (mode == "fill" or name != "pl_empty")]
    dtype = choose(rng, (*FLOATS, *FLOATS, *TYPES))
    if concat or rng.random() < 0.5:
        names = [name for name in names if name_of(held[name]) == dtype and held[name].ndim < 3]
    else:
        dtype = ""
    bad = choose(rng, (0, 0.1, 0.6)) if mode != "error" or spoiled else 0
    rows = int(rng.integers(0 if rng.random() < 0.1 else 1, 5))
    for number in range(int(rng.integers(1, 5))):
        _add_feature(rng, lookup, held, number, choose(rng, names), rows if concat else int(rng.integers(0, 4)), bad)
    if dtype and mode == "fill" and rng.random() < 0.7:
        given["fill_value"] = values(items(rng, dtype, [1]))[0]
    if spoiled:
        for _ in range(int(rng.integers(0, 3))):
            _spoil(rng, lookup)
        if rng.random() < 0.12:
            spoil_values(rng, lookup)
    return lookup


def _add_feature(rng: Rng, lookup: Lookup, held: Tables, number: int, name: str, rows: int, bad: float) -> None:
    table, concat = held[name], lookup.parameters.get("concat", True)
    kind = choose(rng, ("int64", "int64", "int32"))
    pooling = choose(rng, ("none", "sum", "sum", "mean", "max")) if name_of(table) in FLOATS else "none"
    feature = Feature(name, pooling, says_none=bool(rng.random() < 0.1))
    if pooling == "none":
        more = [2] if concat and table.ndim == 1 and rng.random() < 0.2 else []
        lead = [rows, *more] if concat else [rows, 2, 3][: rng.integers(0, 3)]
        shape = tuple(lead)
    else:
        shape = (int(rng.integers(0, 9)) if rows else 0,)
        starts = np.sort(rng.integers(0, shape[0] + 1, rows))
        starts[:1] = 0
        lookup.arrays[f"{number}.offsets"] = starts.astype(kind)
    sizes = np.full(shape, table.shape[0], np.int64)
    lookup.arrays[f"{number}.indices"] = indices_around(rng, kind, sizes, wraps=False, bad=bad)
    if pooling == "sum" and rng.random() < 0.6:
        lookup.arrays[f"{number}.weights"] = items(rng, name_of(table), shape)
    lookup.features.append(feature)


def _spoil(rng: Rng, lookup: Lookup) -> None:
    number = int(rng.integers(len(lookup.features)))
    feature, arrays, given = lookup.features[number], lookup.arrays, lookup.parameters
    indices, offsets, weights = (f"{number}.{name}" for name in ("indices", "offsets", "weights"))
    match int(rng.integers(17)):
        case 0:
            feature.tensor = choose(rng, ("pl_scalar", "pl_empty", "pl_float64_3", "pl_int64_1", "pl_string_0"))
        case 1:
            feature.tensor = "pl_missing"
        case 2:
            feature.pooling = choose(rng, ("prod", *POOLINGS))
        case 3:
            feature.more[choose(rng, ("axis", "data", "batch_dims"))] = 0
        case 4:
            arrays[indices] = arrays[indices].astype(choose(rng, (*INTEGERS, "float32")))
        case 5 if offsets in arrays:
            arrays[offsets] = arrays[offsets].astype(choose(rng, ("int32", "int64", "uint8")))
        case 6 if offsets in arrays:
            moved = np.array(arrays[offsets].reshape(-1))
            if moved.size:
                at = rng.integers(moved.size)
                moved[at] = np.int64(int(moved[at]) + choose(rng, (1, -1, 3, 100))).astype(moved.dtype)
                arrays[offsets] = moved
        case 7 if offsets in arrays:
            arrays[offsets] = arrays[offsets].reshape(1, -1) if rng.random() < 0.6 else arrays[offsets][:0]
        case 8 if weights in arrays:
            arrays[weights] = arrays[weights].reshape(-1, 1) if rng.random() < 0.5 else arrays[weights].reshape(-1)[1:]
        case 9 if weights in arrays or rng.random() < 0.3:
            arrays[weights] = np.ones(arrays[indices].shape, NUMPY[choose(rng, tuple(FLOATS))])
        case 10:
            arrays[indices] = arrays[indices].reshape(1, -1)
        case 11:
            arrays.pop(offsets, None)
        case 12:
            arrays[offsets] = np.zeros(1, arrays[indices].dtype)
        case 13:
            given["concat"] = choose(rng, (True, False, 1, "yes"))
        case 14:
            given[choose(rng, ("device", "dialect", "batch_dims"))] = choose(rng, ("cpu", 0))
        case 15:
            given["out_of_bounds"] = choose(rng, ("ignore", *MODES))
        case 16:
            given["fill_value"] = choose(rng, (0, 2**70, "x", True, [1, 2]))


ANY_FEATURE = (Stage.FIELDS, Stage.VALUES, Stage.DATA_TYPE, Stage.UPDATES_SHAPE)
"""Stages that hold several rules, of which the design leaves open which is looked at first."""


def faults_of(lookup: Lookup, held: Tables) -> list[Fault]:
    """The rules that a lookup breaks first, none for a valid one: by stage, then by feature."""
    found = list(_faults(lookup, held))
    if not found:
        return []
    stage = min(fault.stage for fault in found)
    found = [fault for fault in found if fault.stage == stage]
    if stage in ANY_FEATURE:
        return found
    number = min(_feature_of(fault) for fault in found)
    return [fault for fault in found if _feature_of(fault) == number]


def _feature_of(fault: Fault) -> int:
    head = fault.name.split(".")[0].split("/")[0]
    return int(head) if head.isdigit() else -1


def _faults(lookup: Lookup, held: Tables) -> Iterator[Fault]:
    yield from _faults_of_fields(lookup)
    yield from of_arrays(lookup)
    given = lookup.parameters
    mode = given.get("out_of_bounds", "error")
    for number, feature in enumerate(lookup.features):
        if feature.tensor not in held:
            yield Fault(Stage.VALUES, "tensor_not_found", "feature", f"{number}/tensor")
        elif "fill_value" in given and not representable(name_of(held[feature.tensor]), given["fill_value"]):
            yield Fault(Stage.VALUES, "value_not_representable", "parameter", "fill_value")
    if any(feature.tensor not in held or lookup.array(number, "indices") is None
           for number, feature in enumerate(lookup.features)):  # fmt: skip
        return
    for number, feature in enumerate(lookup.features):
        yield from _faults_of_feature(lookup, number, held[feature.tensor], feature.pooling, mode)
    yield from _mismatch(lookup, held)


def _faults_of_fields(lookup: Lookup) -> Iterator[Fault]:
    given = lookup.parameters

    def wrong(what: str, name: str) -> Fault:
        return Fault(Stage.FIELDS, "invalid_field", what, name)

    for name in given.keys() - {"concat", "out_of_bounds", "fill_value"}:
        yield wrong("parameter", name)
    if not isinstance(given.get("concat", True), bool):
        yield wrong("parameter", "concat")
    if given.get("out_of_bounds", "error") not in MODES:
        yield wrong("parameter", "out_of_bounds")
    if "fill_value" in given and given.get("out_of_bounds") != "fill":
        yield wrong("parameter", "fill_value")
    for number, feature in enumerate(lookup.features):
        for name in feature.more:
            yield wrong("feature", f"{number}/{name}")
        pooling = feature.pooling
        if pooling not in POOLINGS:
            yield wrong("feature", f"{number}/pooling")
        offsets, weights = (f"{number}.{name}" in lookup.arrays for name in ("offsets", "weights"))
        if pooling == "none" and offsets:
            yield wrong("array", f"{number}.offsets")
        if pooling != "none" and not offsets:
            yield wrong("array", f"{number}.offsets")
        if pooling != "sum" and weights:
            yield wrong("array", f"{number}.weights")


def _faults_of_feature(lookup: Lookup, number: int, table: Array, pooling: str, mode: str) -> Iterator[Fault]:
    indices, offsets, weights = (f"{number}.{name}" for name in ("indices", "offsets", "weights"))
    arrays, dtype = lookup.arrays, lookup.dtype(f"{number}.indices")
    if pooling != "none" and name_of(table) not in FLOATS:
        yield Fault(Stage.DATA_TYPE, "unsupported_dtype", "feature", f"{number}/pooling")
    if dtype not in INT32_64:
        yield Fault(Stage.DATA_TYPE, "unsupported_dtype", "dtype", indices)
    for name, wanted in ((offsets, dtype), (weights, name_of(table))):
        if name in arrays and lookup.dtype(name) != wanted:
            yield Fault(Stage.DATA_TYPE, "unsupported_dtype", "dtype", name)
    if not table.ndim:
        yield Fault(Stage.RANK, "rank_too_small", "feature", f"{number}/tensor")
        return
    if pooling != "none" and arrays[indices].ndim != 1:
        yield Fault(Stage.RANK, "rank_mismatch", "shape", indices)
    if weights in arrays and arrays[weights].shape != arrays[indices].shape:
        yield Fault(Stage.UPDATES_SHAPE, "updates_shape_mismatch", "shape", weights)
    if offsets in arrays and arrays[offsets].ndim != 1:
        yield Fault(Stage.RANK, "offsets_invalid", "shape", offsets)
    elif offsets in arrays and arrays[offsets].dtype.name in INT32_64:
        yield from _faults_of_offsets(arrays[offsets].tolist(), arrays[indices].size, offsets)
    rows = table.shape[0]
    bad = [
        BadIndex(item, value, 0, rows, [0, rows - 1] if rows else None)
        for item, value in enumerate(arrays[indices].reshape(-1).tolist())
        if not 0 <= value < rows and (mode == "error" or (mode != "fill" and not rows))
    ]
    if bad:
        yield Fault(Stage.INDEX_VALUES, "index_out_of_bounds", "item", indices, bad[0].item, tuple(bad))


def _faults_of_offsets(offsets: list[int], count: int, name: str) -> Iterator[Fault]:
    """They begin with 0, never fall, and none is beyond the indices."""
    if not offsets and count:
        yield Fault(Stage.UPDATES_SHAPE, "offsets_invalid", "values", name)
    for item, offset in enumerate(offsets):
        if (not item and offset) or offset > count or (item and offset < offsets[item - 1]):
            yield Fault(Stage.UPDATES_SHAPE, "offsets_invalid", "item", name, item)
            return


def _mismatch(lookup: Lookup, held: Tables) -> Iterator[Fault]:
    """Outputs that cannot be joined on axis 1: of another type or number of rows, or of other sizes behind it."""
    if lookup.parameters.get("concat", True) is not True:
        return
    shapes, types = [], []
    for number, feature in enumerate(lookup.features):
        shapes.append(_output_shape(lookup, number, held[feature.tensor]))
        types.append(name_of(held[feature.tensor]))
    for number, (shape, dtype) in enumerate(zip(shapes, types, strict=True)):
        indices = lookup.arrays[f"{number}.indices"]
        single = not indices.ndim and lookup.features[number].pooling == "none"
        other = dtype != types[0] or shape[:1] != shapes[0][:1] or shape[2:] != shapes[0][2:]
        if single or other:
            yield Fault(Stage.UPDATES_SHAPE, "feature_mismatch", "feature", str(number))
            return


def _output_shape(lookup: Lookup, number: int, table: Array) -> tuple[int, ...]:
    offsets = lookup.array(number, "offsets")
    return (lookup.arrays[f"{number}.indices"] if offsets is None else offsets).shape + table.shape[1:]


def looped(lookup: Lookup, held: Tables) -> tuple[dict[str, Array], int]:
    """The outputs of a valid lookup, one element after the other, and how many indices are replaced."""
    given, replaced, outputs = lookup.parameters, 0, []
    mode = given.get("out_of_bounds", "error")
    for number, feature in enumerate(lookup.features):
        table, indices = held[feature.tensor], lookup.arrays[f"{number}.indices"]
        filled = np.empty(table.shape[1:], table.dtype)
        filled.fill(fill_item(name_of(table), given.get("fill_value")))
        chosen = []
        for index in indices.reshape(-1).tolist():
            inside = 0 <= index < len(table)
            replaced += not inside
            if inside:
                chosen.append(table[index])
            elif mode == "fill":
                chosen.append(filled[()])
            else:
                chosen.append(table[index % len(table) if mode == "wrap" else max(0, min(index, len(table) - 1))])
        made = np.empty(_output_shape(lookup, number, table), table.dtype)
        if feature.pooling == "none":
            flat = made.reshape(len(chosen), *table.shape[1:])
            for at, row in enumerate(chosen):
                flat[at] = row
        else:
            offsets = lookup.arrays[f"{number}.offsets"].tolist()
            for bag, (begin, end) in enumerate(pairwise([*offsets, len(chosen)])):
                weights = lookup.array(number, "weights")
                for column in np.ndindex(table.shape[1:]):
                    own = [row[column] for row in chosen[begin:end]]
                    by = None if weights is None else weights[begin:end]
                    made[(bag, *column)] = _pooled(own, by, feature.pooling, table.dtype)
        outputs.append(made)
    if not given.get("concat", True):
        return {f"{number}.output": made for number, made in enumerate(outputs)}, replaced
    joined = [made[:, np.newaxis] if made.ndim == 1 else made for made in outputs]
    return {"output": np.concatenate(joined, axis=1)}, replaced


def _pooled(own: list[Any], weights: Any, pooling: str, dtype: np.dtype[Any]) -> Any:
    """One element of a bag: added in index order from 0 on, in float32 but for float64, and rounded once."""
    number = np.float64 if dtype == np.float64 else np.float32
    total = number(0)
    with np.errstate(all="ignore"):
        for at, item in enumerate(own):
            value = number(item)
            if weights is not None:
                value = value * number(weights[at])
            if pooling != "max":
                total = total + value
            elif not at or (not np.isnan(total) and (np.isnan(value) or value > total)):
                total = value
        if pooling == "mean" and own:
            total = total / number(len(own))
        return np.array(total).astype(dtype)[()]


def kinds_of(lookup: Lookup, held: Tables) -> list[Any]:
    """What a valid lookup is an example of."""
    mode, found = lookup.parameters.get("out_of_bounds", "error"), []
    for number, feature in enumerate(lookup.features):
        dtype = name_of(held[feature.tensor])
        found.append((feature.pooling, dtype, lookup.array(number, "weights") is not None))
    return [*found, mode, ("concat", lookup.parameters.get("concat", True))]
