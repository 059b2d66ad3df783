"""Random lookups of several tables, and loops that pool one element after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from tests.http.forms import FLOATS, TYPES
from tests.parity.gather_cases import MODES, fill_item
from tests.parity.items import Array, Rng, choose, indices_around, items, name_of
from tests.parity.messages import Request, values

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
    """A table's name, how its rows are pooled, whether `none` is said, and whether offsets have the end too."""

    tensor: str
    pooling: str = "none"
    says_none: bool = False
    include_last_offset: bool = False

    def members(self) -> dict[str, Any]:
        says = self.says_none or self.pooling != "none"
        found: dict[str, Any] = {"tensor": self.tensor} | ({"pooling": self.pooling} if says else {})
        return found | ({"include_last_offset": True} if self.include_last_offset else {})

    def starts(self, offsets: Array) -> Array:
        return offsets[:-1] if self.include_last_offset else offsets


@dataclass
class Lookup(Request):
    """Its arrays have the names of safetensors: `0.indices`, `0.offsets`, `0.weights`, `1.indices` and so on."""

    features: list[Feature] = field(default_factory=list)

    def array(self, number: int, name: str) -> Array | None:
        return self.arrays.get(f"{number}.{name}")


def random_lookup(rng: Rng, held: Tables) -> Lookup:
    """A valid lookup; indices are out of bounds if the mode takes that."""
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
    bad = choose(rng, (0, 0.1, 0.6)) if mode != "error" else 0
    rows = int(rng.integers(0 if rng.random() < 0.1 else 1, 5))
    for number in range(int(rng.integers(1, 5))):
        _add_feature(rng, lookup, held, number, choose(rng, names), rows if concat else int(rng.integers(0, 4)), bad)
    if dtype and mode == "fill" and rng.random() < 0.7:
        given["fill_value"] = values(items(rng, dtype, [1]))[0]
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
        if rng.random() < 0.3 and (rows or not shape[0]):
            feature.include_last_offset = True
            starts = np.append(starts, shape[0])
        lookup.arrays[f"{number}.offsets"] = starts.astype(kind)
    sizes = np.full(shape, table.shape[0], np.int64)
    lookup.arrays[f"{number}.indices"] = indices_around(rng, kind, sizes, wraps=False, bad=bad)
    if pooling == "sum" and rng.random() < 0.6:
        lookup.arrays[f"{number}.weights"] = items(rng, name_of(table), shape)
    lookup.features.append(feature)


def _output_shape(lookup: Lookup, number: int, table: Array) -> tuple[int, ...]:
    offsets = lookup.array(number, "offsets")
    if offsets is not None:
        offsets = lookup.features[number].starts(offsets)
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
            offsets = feature.starts(lookup.arrays[f"{number}.offsets"]).tolist()
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
