"""Valid requests: every operator in every dialect, with each type, shape, mode and reduction that it has."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tests.conformance.block_quantized import BLOCK_QUANTIZED_ANSWERED
from tests.conformance.cases import Case, Error, case, told
from tests.http.forms import COMPLEX, FLOAT8, FLOATS, TYPES, tensor
from tests.http.rules import DIALECTS, NEEDS_AXIS
from tests.parity.gather_cases import AXIS, ELEMENTS, MODES, ND
from tests.parity.items import NUMPY, Array, items
from tests.parity.messages import values
from tests.parity.scatter_cases import REDUCTIONS
from tests.rounding import FORMATS

KNOWN = Path(__file__).parents[1] / "cases" / "known_answers.json"
SCATTERS = ("/scatternd", "/scatter_elements")
PARAMETERS = ("batch_dims", "axis", "out_of_bounds", "reduction")
GRADIENTS = ("/gathernd/backward", "/gather/backward")
# A type, the item that it stores, and the value to fill with that a request names.
FILLS: tuple[tuple[str, Any, Any], ...] = (
    ("bool", True, True), ("int8", -128, -128), ("int64", 2**63 - 1, 2**63 - 1), ("int64", -(2**63), -(2**63)),
    ("uint64", 2**64 - 1, 2**64 - 1), ("float16", 0.0999755859375, 0.1), ("float16", "NaN", "NaN"),
    ("float16", "-Infinity", "-Infinity"), ("bfloat16", 0.10009765625, 0.1), ("float32", 0.10000000149011612, 0.1),
    ("float32", 9.999999680285692e37, 1e38), ("float64", 0.1, 0.1), ("complex64", [1.0, -2.0], [1, -2]),
    ("complex128", [0.1, "Infinity"], [0.1, "Infinity"]), ("string", "ä\n", "ä\n"), ("string", "", ""),
)  # fmt: skip
NO_FILLS: tuple[tuple[str, Any], ...] = (
    ("int8", 128), ("int8", 1.5), ("int8", "1"), ("uint8", -1), ("int8", True), ("bool", 1), ("float32", 1e39),
    ("float32", "x"), ("float32", [1]), ("float32", None), ("float32", {}), ("float32", {"values": [1]}),
    ("complex64", 1), ("complex64", [1]), ("complex64", [1, 2, 3]), ("string", 1), ("string", "\ud800"),
)  # fmt: skip


def seeded(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))


def some(dtype: str, *shape: int) -> Array:
    """Items of a type, the same for the same type and shape."""
    return items(seeded(f"{dtype}{shape}"), dtype, shape)


def many(dtype: str, *shape: int) -> Array:
    """Floats of a type, large and small, of which other types hold few."""
    rng = seeded(f"many {dtype}{shape}")
    numbers = rng.normal(size=shape) * 10.0 ** rng.integers(-9, 9, shape)
    with np.errstate(over="ignore"):
        return numbers.astype(NUMPY[dtype])


def within(name: str, dtype: str, shape: Sequence[int], sizes: Sequence[int], *, wraps: bool) -> Array:
    """Indices in bounds; the last axis has one for each of `sizes`, or all are of the one size."""
    rng, high = seeded(name), np.array(sizes)
    low = -high if wraps and not dtype.startswith("u") else np.zeros_like(high)
    if not len(shape):
        return np.array(rng.integers(low[0], high[0]), dtype)
    broad = np.broadcast_to(high, shape), np.broadcast_to(low, shape)
    return np.asarray(rng.integers(broad[1], broad[0]) if broad[0].all() else np.zeros(shape), dtype)


def index_type_of(path: str, dialect: str) -> str:
    return "int64" if path in (ND, *SCATTERS) or dialect != "openvino-8" else "int32"


# data, indices, parameter: batch_dims or axis
ND_SHAPES: list[tuple[tuple[int, ...], tuple[int, ...], int]] = [
    ((0,), (0, 1), 0), ((4,), (1,), 0), ((4,), (3, 1), 0), ((4,), (0, 1), 0), ((2, 3), (2, 2), 0), ((2, 3), (2,), 0),
    ((2, 3), (1, 2, 1), 0),
    ((2, 3, 4), (2, 3), 0), ((2, 3, 4), (5, 2), 0), ((2, 3, 4), (2, 1, 2), 1), ((2, 3, 4), (2, 3, 1), 2),
    ((2, 3, 4), (2, 3, 2, 1), 2), ((2, 1, 3), (2, 2), 1), ((2, 3, 0), (2, 1), 0), ((0, 3), (0, 1), 0),
    ((0, 3), (0, 1), 1),
    ((2, 0), (2, 0, 1), 1), ((0, 3, 4), (0, 5, 1), 1), ((1, 1, 1, 1, 1), (1, 5), 0),
    ((2, 2, 2, 2, 2), (2, 2, 3), 1), ((3, 2, 5), (3, 4, 2), 1),
]  # fmt: skip
AXIS_SHAPES: list[tuple[tuple[int, ...], tuple[int, ...], int]] = [
    ((0,), (0,), 0), ((2, 0), (3,), 0), ((4,), (), 0), ((4,), (3,), -1), ((4,), (0,), 0), ((2, 3), (2, 2), 0),
    ((2, 3), (2, 2), 1), ((2, 3), (), 1),
    ((2, 3, 4), (5,), 1), ((2, 3, 4), (2, 1, 2), -1), ((2, 3, 4), (2,), -3), ((2, 0, 3), (4,), 2), ((0, 3), (2,), 1),
    ((1, 2, 1, 2, 1), (3,), 3), ((2, 3), (0, 5), 0),
]  # fmt: skip
# data, indices, axis, batch_dims
BATCHED: list[tuple[tuple[int, ...], tuple[int, ...], int, int]] = [
    ((2, 3, 2), (2, 2), 2, 1), ((2, 3, 2), (2, 2), -1, -1), ((2, 3, 4), (2, 3, 2), 2, 2), ((2, 3), (2,), 1, 1),
    ((2, 3, 4), (2, 1, 2), 1, 1), ((2, 0, 3), (2, 2), 2, 1), ((3, 2), (3, 2), 1, 0),
    *[((2, 2, 2), (2, 2), 2, b) for b in (0, 1, 2, -1, -2)],
]  # fmt: skip
ELEMENTS_SHAPES: list[tuple[tuple[int, ...], tuple[int, ...], int]] = [
    ((4,), (6,), 0), ((4,), (0,), 0), ((2, 3), (2, 3), 0), ((2, 3), (5, 2), 0), ((2, 3), (1, 4), -1),
    ((2, 3, 4), (2, 3, 1), 2),
    ((2, 3, 4), (1, 7, 2), 1), ((2, 0, 3), (1, 0, 9), 2), ((0, 3), (0, 3), 1), ((2, 3), (0, 3), 0),
    ((2, 1, 2, 1), (1, 3, 2, 1), 1),
]  # fmt: skip


def named(path: str, **said: Any) -> str:
    return f"{path} {', '.join(f'{name} {value}' for name, value in said.items())}"


def _gathers() -> Iterator[Case]:
    for (path, dialect), (types, index_types, wraps) in DIALECTS.items():
        more: dict[str, Any] = {"axis": 0} if (path, dialect) in NEEDS_AXIS else {}
        for dtype in (*TYPES, *FLOAT8):
            if dtype in types:
                data = some(dtype, 3, 2)
                indices = _of_rows(path, index_type_of(path, dialect), wraps)
                name = named(path, of=dtype, dialect=dialect)
                yield case(name, path, {"data": data, "indices": indices, "dialect": dialect, **more})
        for dtype in sorted(index_types):
            indices = _of_rows(path, dtype, wraps)
            name = named(path, by=dtype, dialect=dialect)
            yield case(name, path, {"data": some("float32", 3, 2), "indices": indices, "dialect": dialect, **more})
        yield from _shapes(path, dialect, wraps)
        yield from _modes(path, dialect, types, more)


def _of_rows(path: str, dtype: str, wraps: bool) -> Array:
    back = -2 if wraps and not dtype.startswith("u") else 1
    rows = [[2], [back], [0]] if path == ND else [[2, 1], [back, 0]] if path == ELEMENTS else [2, back, 0]
    return np.array(rows, dtype)


def _shapes(path: str, dialect: str, wraps: bool) -> Iterator[Case]:
    kind = index_type_of(path, dialect)
    if path == ND:
        for shape, index_shape, b in ND_SHAPES:
            if b and dialect == "onnx-11":
                continue
            name = named(path, data=list(shape), indices=list(index_shape), batch_dims=b, dialect=dialect)
            sizes = shape[b : b + index_shape[-1]]
            indices = within(name, kind, index_shape, sizes, wraps=wraps)
            body: dict[str, Any] = {"data": some("int16", *shape), "indices": indices, "dialect": dialect}
            yield case(name, path, body | ({"batch_dims": b} if b else {}))
        return
    for shape, smaller, axis in AXIS_SHAPES if path == AXIS else ELEMENTS_SHAPES:
        whole = (*shape[:axis], *smaller[axis:][:1], *shape[axis:][1:])
        index_shape = whole if dialect == "openvino-6" else smaller
        name = named(path, data=list(shape), indices=list(index_shape), axis=axis, dialect=dialect)
        indices = within(name, kind, index_shape, [shape[axis]], wraps=wraps)
        yield case(name, path, {"data": some("int16", *shape), "indices": indices, "axis": axis, "dialect": dialect})
    if (path, dialect) == (AXIS, "openvino-8"):
        for shape, index_shape, axis, b in BATCHED:
            name = named(path, data=list(shape), indices=list(index_shape), axis=axis, batch_dims=b)
            indices = within(name, kind, index_shape, [shape[axis]], wraps=True)
            body = {"data": some("int16", *shape), "indices": indices, "axis": axis, "batch_dims": b}
            yield case(name, path, body | {"dialect": dialect})


def _modes(path: str, dialect: str, types: frozenset[str], more: dict[str, Any]) -> Iterator[Case]:
    """Indices far and near out of bounds, in each mode, with and without a value to fill with."""
    kind = index_type_of(path, dialect)
    flat = [0, 3, -1, -4, 2, 7] if kind != "int64" else [0, 3, -1, -4, 2**62, -(2**63)]
    indices = np.array(flat, kind).reshape((6, 1) if path == ND else (3, 2) if path == ELEMENTS else (6,))
    for mode in MODES:
        if mode == "error":
            continue
        for dtype in (*TYPES, *FLOAT8):
            if dtype not in types:
                continue
            data = some(dtype, 3, 2)
            body = {"data": data, "indices": indices, "dialect": dialect, "out_of_bounds": mode, **more}
            yield case(named(path, mode=mode, of=dtype, dialect=dialect), path, body)
            if mode == "fill":
                with_value = body | {"fill_value": values(some(dtype, 7))[3]}
                yield case(named(path, mode="fill with a value", of=dtype, dialect=dialect), path, with_value)
        nothing = {
            "data": some("int8", 0, 2),
            "indices": indices[:1],
            "dialect": dialect,
            "out_of_bounds": mode,
            **more,
        }
        if mode == "fill" and path != ELEMENTS:
            yield case(named(path, mode="fill of no rows", dialect=dialect), path, nothing)


def _fills() -> Iterator[Case]:
    """Values to fill with, as each type stores them; those that it cannot hold are in no request."""
    indices = np.array([[2], [1], [-3]])
    for dtype, stored, given in FILLS:
        body = {"data": some(dtype, 2), "indices": indices, "out_of_bounds": "fill", "fill_value": given}
        wanted = told(tensor(dtype, [3], [stored, values(some(dtype, 2))[1], stored])).array
        yield case(f"{ND} fill {dtype} with {given!r}", ND, body, outputs={"output": wanted})
    refused = Error("value_not_representable", only_code=True)
    for dtype, given in (*NO_FILLS, *((dtype, _deep(depth)) for dtype in ("float32", "complex64", "string")
                                      for depth in (3, 505))):  # fmt: skip
        body = {"data": some(dtype, 2), "indices": indices, "out_of_bounds": "fill", "fill_value": given}
        yield case(f"{ND} no fill {dtype} with {given!r:.30} {len(repr(given))}", ND, body, error=refused)
    # The fields come before the dialect's rules.
    narrow = {"data": some("int8", 1), "indices": np.array([[0]], np.int8), "out_of_bounds": "fill"}
    yield case(f"{ND} no fill before the types", ND, narrow | {"fill_value": 1000}, error=refused)
    unsupported = Error("unsupported_dtype", only_code=True)
    yield case(f"{ND} a fill and then the types", ND, narrow | {"fill_value": 1}, error=unsupported)
    few = narrow | {"indices": tensor("int8", [1, 1], [0, 0]), "fill_value": 1000}
    yield case(f"{ND} the count before a fill", ND, few, error=Error("element_count_mismatch", only_code=True))


def _deep(depth: int) -> Any:
    return [_deep(depth - 1)] if depth else 0


def _outside() -> Iterator[Case]:
    """Indices out of bounds where nothing can be in bounds, nothing is copied, or int64 does not hold them."""
    refused = Error("index_out_of_bounds", only_code=True)
    for mode in MODES:
        far = {"data": some("int16", 3), "indices": np.array([[2**64 - 1], [1]], np.uint64), "dialect": "openvino-8"}
        answer: dict[str, Any] = {"error": refused} if mode == "error" else {}
        yield case(f"{ND} {mode} beyond int64", ND, far | {"out_of_bounds": mode}, **answer)
        for shape in ((2, 0, 3, 2), (2, 2, 3, 0)):
            empty = {"data": some("int8", *shape), "indices": np.array([[0, 1], [2, 3]]), "axis": 2, "batch_dims": 1}
            body = empty | {"dialect": "openvino-8", "out_of_bounds": mode}
            yield case(f"{AXIS} {mode} of nothing {shape}", AXIS, body, **answer)
    for mode in ("clip", "wrap"):
        for index in (0, -1, 5):
            body = {"data": some("int16", 0, 2), "indices": np.array([[index]]), "out_of_bounds": mode}
            yield case(f"{ND} {mode} {index} of no rows", ND, body, error=refused)


def _scatters() -> Iterator[Case]:
    body: dict[str, Any]
    for path in SCATTERS:
        elements = path == "/scatter_elements"
        for dialect, reductions in REDUCTIONS.items():
            for reduction in reductions:
                for dtype in TYPES:
                    if (reduction != "none" and dtype in ("bool", "string", *COMPLEX)) or (
                        dialect == "onnx-11" and dtype == "bfloat16"
                    ):
                        continue
                    name = named(path, dialect=dialect, reduction=reduction, of=dtype)
                    indices = np.array([[0, 2], [1, 1], [-2, 0]] if elements else [[2], [0], [-3]], np.int64)
                    updates = items(seeded(name), dtype, (3, 2))
                    body = {"data": some(dtype, 3, 2), "indices": indices, "updates": updates}
                    yield case(name, path, body | {"dialect": dialect, "reduction": reduction})
        for shape, index_shape, at in ELEMENTS_SHAPES if elements else ND_SHAPES:
            if not elements and at:
                continue
            name = named(path, data=list(shape), indices=list(index_shape), at=at)
            sizes = [shape[at]] if elements else shape[: index_shape[-1]]
            indices = within(name, "int64", index_shape, sizes, wraps=True)
            updates_shape = index_shape if elements else (*index_shape[:-1], *shape[index_shape[-1] :])
            updates = items(seeded(f"{name} updates"), "int32", updates_shape)
            body = {"data": some("int32", *shape), "indices": indices, "updates": updates, "reduction": "add"}
            yield case(name, path, body | ({"axis": at} if elements else {}))
        for index_type in ("int32", "int64") if elements else ("int64",):
            indices = np.array([[1, 0]] if elements else [[1]], index_type)
            body = {"data": some("float64", 3, 2), "indices": indices, "updates": some("float64", 1, 2)}
            yield case(named(path, by=index_type), path, body)


def _gradients() -> Iterator[Case]:
    for path in GRADIENTS:
        nd = path == "/gathernd/backward"
        for (of, dialect), (types, _, wraps) in DIALECTS.items():
            if f"{of}/backward" != path:
                continue
            more: dict[str, Any] = {"dialect": dialect} | ({"axis": 0} if not nd else {})
            kind = index_type_of(of, dialect)
            rows = [3, -1, 3, 0] if wraps else [3, 1, 3, 0]
            indices = np.array(rows, kind).reshape((4, 1) if nd else (4,))
            for dtype in FLOATS:
                if dtype not in types:
                    continue
                for sparse in (False, True):
                    for coefficient in (None, -0.5):
                        name = named(path, of=dtype, dialect=dialect, sparse=sparse, lda_coeff=coefficient)
                        body = {"indices": indices, "grad_output": some(dtype, 4, 3), "data_shape": [5, 3], **more}
                        body |= {"sparse": True} if sparse else {}
                        yield case(name, path, body | ({} if coefficient is None else {"lda_coeff": coefficient}))
        for shape, index_shape, at in ND_SHAPES if nd else AXIS_SHAPES:
            name = named(path, data_shape=list(shape), indices=list(index_shape), at=at)
            sizes = shape[at : at + index_shape[-1]] if nd else [shape[at]]
            indices = within(name, "int64", index_shape, sizes, wraps=True)
            axis = at % len(shape)
            after = (*shape[:axis], *index_shape, *shape[axis + 1 :])
            grad_shape = (*index_shape[:-1], *shape[at + index_shape[-1] :]) if nd else after
            grad = items(seeded(f"{name} grad"), "float32", grad_shape)
            body = {"indices": indices, "grad_output": grad, "data_shape": list(shape)}
            yield case(name, path, body | {"batch_dims" if nd else "axis": at})
        for table in ("pl_float32_1", "pl_float64_1"):
            grad = some(table[3:10], 2, 3)
            indices = np.array([[4], [0]] if nd else [4, 0])
            yield case(named(path, shape_of=table), path, {"indices": indices, "grad_output": grad, "tensor": table})


def feature(table: str, indices: Array, **more: Any) -> dict[str, Any]:
    return {"tensor": table, "indices": indices, **more}


def bags(table: str, kind: str, pooling: str, **more: Any) -> dict[str, Any]:
    """Four bags, of which one is empty."""
    indices, offsets = np.array([4, 0, 4, 1, 2], kind), np.array([0, 2, 2, 4], kind)
    return feature(table, indices, offsets=offsets, pooling=pooling, **more)


def _lookups() -> Iterator[Case]:
    def lookup(name: str, *features: Mapping[str, Any], **more: Any) -> Case:
        return case(f"/lookup {name}", "/lookup", {"features": list(features), **more})

    rows = np.array([3, 0, 3, 1])
    for dtype in TYPES:
        yield lookup(f"rows of {dtype}", feature(f"pl_{dtype}_1", rows), feature(f"pl_{dtype}_1", rows[::-1].copy()))
        yield lookup(
            f"apart, of {dtype}", feature(f"pl_{dtype}_0", rows), feature(f"pl_{dtype}_1", rows[:2]), concat=False
        )
    for dtype in FLOAT8:
        yield lookup(f"rows of {dtype}", feature(f"pv_{dtype}", rows))
    for dtype in FLOATS:
        for kind in ("int32", "int64"):
            for pooling in ("sum", "mean", "max"):
                yield lookup(f"{pooling} of {dtype} by {kind}", bags(f"pl_{dtype}_1", kind, pooling))
            weights = some(dtype, 5)
            yield lookup(f"weights of {dtype} by {kind}", bags(f"pl_{dtype}_1", kind, "sum", weights=weights))
        yield lookup(
            f"rank 3 of {dtype}", bags(f"pl_{dtype}_3", "int64", "mean") | {"indices": np.array([3, 0, 3, 1, 2])}
        )
        beside = feature(f"pl_{dtype}_1", rows)
        yield lookup(f"bags beside rows of {dtype}", bags(f"pl_{dtype}_1", "int64", "sum"), beside)
    nothing = np.zeros(0, np.int64)
    yield lookup("no indices", feature("pl_float32_1", nothing))
    yield lookup("no bags", feature("pl_float32_1", nothing, offsets=nothing, pooling="sum"))
    for kind in ("int32", "int64"):
        for pooling in ("sum", "mean", "max"):
            ended = {"offsets": np.array([0, 2, 2, 4, 5], kind), "include_last_offset": True}
            yield lookup(f"{pooling} by {kind} with the last offset", bags("pl_float32_1", kind, pooling) | ended)
    ended = {"offsets": np.array([0, 2, 5]), "include_last_offset": True}
    weighted = bags("pl_float16_1", "int64", "sum", weights=some("float16", 5)) | ended
    yield lookup("weights with the last offset", weighted, output_dtype="float32")
    outside_bag = bags("pl_float32_1", "int64", "sum") | ended | {"indices": np.array([4, 9, 4, 1, -2])}
    yield lookup("fill in bags with the last offset", outside_bag, out_of_bounds="fill")
    none = feature("pl_float32_1", nothing, offsets=np.zeros(1, np.int64), pooling="sum", include_last_offset=True)
    yield lookup("no bags with the last offset", none)
    yield lookup("one table many times", *[feature("pl_float32_1", np.array([number % 5, 2])) for number in range(20)])
    yield lookup("of two axes", feature("pl_float32_0", np.array([[1, 2], [3, 4], [5, 0]])))
    outside = np.array([-1, 3, 25, -(2**63)])
    for mode in ("clip", "wrap", "fill"):
        for dtype in ("float32", "string", "int64", "bool"):
            yield lookup(f"{mode} of {dtype}", feature(f"pl_{dtype}_1", outside), out_of_bounds=mode)
        pooled = feature("pl_float32_1", outside, offsets=np.array([0, 1]), pooling="sum")
        yield lookup(f"{mode} in bags", pooled, out_of_bounds=mode)
    yield lookup("fill with a value", feature("pl_float32_1", outside), out_of_bounds="fill", fill_value=2.5)
    yield lookup("fill with a text", feature("pl_string_0", outside), out_of_bounds="fill", fill_value="none")
    yield lookup("fill of no rows", feature("pl_empty", outside), out_of_bounds="fill", fill_value=1)


def _converted() -> Iterator[Case]:
    """Outputs in another type of floats."""
    for dtype in FLOATS:
        for target in FORMATS:
            for path in (ND, AXIS, ELEMENTS):
                data, indices = many(dtype, 3, 20), _of_rows(path, "int64", wraps=True)
                yield case(
                    named(path, of=dtype, to=target), path, {"data": data, "indices": indices, "output_dtype": target}
                )
            for pooling in ("none", "sum", "mean", "max"):
                one = feature(f"pl_{dtype}_1", np.array([3, 0, 3, 1]))
                if pooling != "none":
                    one = bags(f"pl_{dtype}_1", "int32", pooling)
                said: dict[str, Any] = {"features": [one, one], "output_dtype": target}
                yield case(f"/lookup {pooling} of {dtype} to {target}", "/lookup", said)
            weighted = bags(f"pl_{dtype}_1", "int64", "sum", weights=some(dtype, 5))
            for concat in (True, False):
                said = {"features": [weighted], "output_dtype": target, "concat": concat}
                yield case(f"/lookup weights of {dtype} to {target}, {concat}", "/lookup", said)
    rows = np.array([3, 0, 3, 1])
    of_each = [feature(f"pl_{dtype}_1", rows) for dtype in FLOATS]
    yield case("/lookup of each type to float32", "/lookup", {"features": of_each, "output_dtype": "float32"})
    outside = {
        "indices": np.array([[4], [-7], [1]]),
        "out_of_bounds": "fill",
        "fill_value": 2.5,
        "output_dtype": "float16",
    }
    yield case("/gathernd fill to float16", ND, {"data": many("float32", 3, 2), **outside})
    body = {"features": [bags("pl_float16_1", "int64", "sum") | {"indices": np.array([4, 9, 4, 1, -2])}]}
    for mode in ("clip", "fill"):
        more = {"out_of_bounds": mode, "output_dtype": "float32"}
        yield case(f"/lookup {mode} of float16 to float32", "/lookup", body | more)


def _known() -> Iterator[Case]:
    """The answers of ONNX's, OpenVINO's and WebNN's own tests and texts, and of mistakes known of others.

    The file holds one case a line. Its members are those of a request, then `output` or the code of the `error`;
    `values` that are missing are 0, 1, 2, … in row-major order, and the output has the type of the data.
    """
    for known in json.loads(KNOWN.read_text()):
        path, data = f"/{known['operator'].lower()}", _numbered(known["data"])
        body = {"data": data, "indices": _numbered(known["indices"]), "dialect": known["dialect"]}
        body |= {name: known[name] for name in ("updates", *PARAMETERS) if name in known}
        name = f"{path} {known['name']}"
        if "error" in known:
            yield case(name, path, body, error=Error(known["error"], only_code=True))
        else:
            output = told({"dtype": data["dtype"], **_numbered(known["output"])}).array
            yield case(name, path, body, outputs={"output": output})


def _numbered(given: dict[str, Any]) -> dict[str, Any]:
    return {**given, "values": given.get("values", list(range(prod(given["shape"]))))}


ANSWERED: list[Case] = [
    *_gathers(), *_fills(), *_outside(), *_scatters(), *_gradients(), *_lookups(), *_converted(), *_known(),
    *BLOCK_QUANTIZED_ANSWERED,
]  # fmt: skip
