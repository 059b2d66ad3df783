"""Requests that break a rule of a scatter, a gradient or a lookup, and the error that each must get.

Lookups read the tensors of `TABLES`.
"""

from __future__ import annotations

from typing import Any

from app.operators.registry import GRADIENTS, OPERATORS
from tests.conformance.cases import Case, at, refused
from tests.http.forms import FLOAT8, int64, tensor

DATA = tensor("float32", [3, 2], [0, 1, 2, 3, 4, 5])
FLOATS = tensor("float32", [2, 2], [7, 8, 9, 10])
FLAT = tensor("float32", [4], [7, 8, 9, 10])


def scatter(dialect: str, **more: Any) -> dict[str, Any]:
    return {"data": DATA, "indices": int64([2, 1], [0, 2]), "updates": FLOATS, "dialect": dialect} | more


def elements(dialect: str, **more: Any) -> dict[str, Any]:
    return {"data": DATA, "indices": int64([2, 2], [0, 2, 1, 0]), "updates": FLOATS, "dialect": dialect} | more


def _scatters(path: str, dialect: str) -> list[Case]:
    """What both scatters refuse in a dialect."""
    rule = (dialect, None)
    of = scatter if path == "/scatternd" else elements
    known = OPERATORS["scatternd" if of is scatter else "scatter_elements"].dialects[dialect].reductions
    shape = [2, 2]
    found = [
        refused("unsupported_dtype", of(dialect, indices=tensor("uint8", [2, 1], [0, 2])), at("/indices/dtype"), path,
             rule),
        refused("unsupported_dtype", of(dialect, updates=tensor("float64", shape, [1] * 4)), at("/updates/dtype"), path,
             rule),
        refused("unsupported_dtype", of(dialect, updates=tensor("float23", shape, [1] * 4)), at("/updates/dtype"),
             path),
        refused("updates_shape_mismatch", of(dialect, updates=FLAT), at("/updates/shape"), path, rule),
        refused("device_unavailable", of(dialect, device="gpu"), at("/device"), path),
    ]  # fmt: skip
    for dtype in (*FLOAT8, *(("bfloat16",) if dialect == "onnx-11" else ())):
        given = of(dialect, data=DATA | {"dtype": dtype, "values": [0] * 6})
        found.append(refused("unsupported_dtype", given, at("/data/dtype"), path, rule))
    for reduction in ("add", "mul", "min", "max"):
        if reduction not in known:
            found.append(refused("invalid_field", of(dialect, reduction=reduction), at("/reduction"), path))
        else:
            flags = {"data": tensor("bool", [2], [True, False]), "updates": tensor("bool", [1], [True])}
            indices = int64([1, 1] if path == "/scatternd" else [1], [0])
            body = of(dialect, indices=indices, reduction=reduction, **flags)
            found.append(refused("unsupported_dtype", body, at("/reduction"), path))
    return found


SCATTERS = [
    case
    for path in ("/scatternd", "/scatter_elements")
    for dialect in OPERATORS[path[1:]].dialects
    for case in _scatters(path, dialect)
]


def gradient(dialect: str, shape: list[int], indices: Any, grad_output: Any = FLOATS, **more: Any) -> dict[str, Any]:
    return {"indices": indices, "grad_output": grad_output, "data_shape": shape, "dialect": dialect} | more


def _gradients(name: Any) -> list[Case]:
    """What the gradient of a gather refuses in each of its dialects."""
    operator = GRADIENTS[name]
    path, nd = operator.path, name == "gathernd_backward"
    good = int64([2, 1] if nd else [2], [0, 2])
    found = []
    for dialect, row in operator.dialects.items():
        further: dict[str, Any] = {"axis": 0} if dialect == "openvino-8" and not nd else {}
        rules = row.rules

        def case(
            code: Any, errors: Any, shape: list[int], indices: Any, grad_output: Any = FLOATS, key: str = "",
            dialect: str = dialect, further: Any = further, rules: Any = rules, **more: Any,
        ) -> None:  # fmt: skip
            clause = rules[key or code].clause if (key or code) in rules else None
            body = gradient(dialect, shape, indices, grad_output, **(further | more))
            found.append(refused(code, body, errors, path, (dialect, clause)))

        case("rank_too_small", at("/data_shape"), [], good)
        bad_type = tensor("float64", good["shape"], [0, 2])
        case("unsupported_dtype", at("/indices/dtype"), [3, 2], bad_type, key="index_dtype")
        for dtype in ("int64", *FLOAT8):
            wrong_type = tensor(dtype, [2, 2], [1] * 4)
            case("unsupported_dtype", at("/grad_output/dtype"), [3, 2], good, wrong_type, "BACKWARD")
        case("updates_shape_mismatch", at("/grad_output/shape"), [3, 2], good, FLAT)
        out = at("/indices/values/1", position=[1, 0] if nd else [1], value=2, axis=0, size=2,
                 allowed=[-2 if row.wrap else 0, 1])  # fmt: skip
        if not (dialect == "openvino-8" and not nd):  # whose gather fills with zeros, through which nothing flows back
            case("index_out_of_bounds", out, [2, 2], good)
        if nd:
            bounds = [0, 0] if dialect == "onnx-11" else [0, 1]
            case("batch_dims_out_of_range", at("/batch_dims", value=2, allowed=bounds), [3, 2], good, batch_dims=2)
            deep = int64([1, 3], [0] * 3)
            case("index_depth_out_of_range", at("/indices/shape", value=3, allowed=[1, 2]), [3, 2], deep)
            if row.has_batch_dims:
                wrong = at("/indices/shape", value=2, axis=0, size=3, allowed=None)
                case("batch_shape_mismatch", wrong, [3, 2], good, batch_dims=1)
        else:
            case("axis_out_of_range", at("/axis", value=2, allowed=[-2, 1]), [3, 2], good, axis=2)
            if further:
                bounds = [0, 0]
                case("batch_dims_out_of_range", at("/batch_dims", value=1, allowed=bounds), [3, 2], good, batch_dims=1)
                wrong = at("/indices/shape", value=2, axis=0, size=3, allowed=None)
                case("batch_shape_mismatch", wrong, [3, 2], int64([2, 1], [0, 0]), batch_dims=1, axis=1)
        found.append(
            refused("device_unavailable", gradient(dialect, [3, 2], good, **(further | {"device": "gpu"})),
                    at("/device"), path)
        )  # fmt: skip
    first = next(iter(operator.dialects))
    found += [
        refused("invalid_field", gradient(first, [3, 2], good, lda_coeff="1"), at("/lda_coeff"), path),
        refused("invalid_field", gradient(first, [3, 2], good, sparse=1), at("/sparse"), path),
        refused("invalid_field", gradient(first, [3, 2], good, tensor="pv_rows"), at("/tensor"), path),
        refused("value_not_representable", gradient(first, [3, 2], good, lda_coeff=-1e39),
             at("/lda_coeff", value=-1e39), path),
        refused("limit_exceeded", gradient(first, [2**62, 2], good), at("/data_shape"), path,
             facts={"limit": "elements", "maximum": 2**33}),
        refused("output_too_large", gradient(first, [2**32, 2], good), at("/data_shape"), path,
             facts={"limit": "output_bytes", "maximum": 2**30}),
    ]  # fmt: skip
    return found


def bag(**more: Any) -> dict[str, Any]:
    """A feature of two bags."""
    offsets = int64([2], [0, 1])
    return {"tensor": "pv_rows", "indices": int64([3], [0, 1, 2]), "offsets": offsets, "pooling": "sum"} | more


def rows(**more: Any) -> dict[str, Any]:
    return {"tensor": "pv_rows", "indices": int64([2], [0, 1])} | more


def lookup(code: str, errors: Any, *features: Any, broken: bool = True, **more: Any) -> Case:
    """A case; where `broken`, it is a rule of EmbeddingBagOffsets-15 that is."""
    total = more.pop("total", None)
    facts = more.pop("facts", {})
    rule = ("openvino-15", None) if broken else None
    return refused(code, {"features": list(features), **more}, errors, "/lookup", rule, total, facts)


LOOKUPS = [
    lookup("tensor_not_found", at("/features/1/tensor"), rows(), rows(tensor="pv_row"), broken=False),
    lookup("output_too_large", at("/features"), rows(tensor="pv_long", indices=int64([4097], [0] * 4097)), broken=False,
           facts={"limit": "output_bytes", "maximum": 2**30}),
    lookup("element_count_mismatch", at("/features/0/indices/values"), rows(indices=int64([3], [0, 1])), broken=False),
    lookup("invalid_field", at("/features"), broken=False),
    lookup("invalid_field", at("/features/0/data"), rows(data=FLOATS), broken=False),
    lookup("invalid_field", at("/features/0/weights"), bag(pooling="max", weights=FLAT), broken=False),
    lookup("invalid_field", at("/features/0/offsets"), rows(pooling="mean"), broken=False),
    lookup("invalid_field", at("/fill_value"), rows(), broken=False, out_of_bounds="wrap", fill_value=0),
    lookup("invalid_field", at("/output_dtype"), rows(), broken=False, output_dtype="int8"),
    lookup("unsupported_dtype", at("/output_dtype"), rows(), rows(tensor="pv_ids"), broken=False, concat=False,
           output_dtype="float32"),
    lookup("unsupported_dtype", at("/features/0/indices/dtype"), rows(indices=tensor("int8", [1], [0]))),
    lookup("unsupported_dtype", at("/features/1/pooling"), rows(), bag(tensor="pv_ids")),
    *(lookup("unsupported_dtype", at("/features/0/pooling"), bag(tensor=f"pv_{dtype}")) for dtype in FLOAT8),
    lookup("unsupported_dtype", at("/features/0/offsets/dtype"), bag(offsets=tensor("int32", [2], [0, 1]))),
    lookup("unsupported_dtype", at("/features/0/weights/dtype"), bag(weights=tensor("float64", [3], [1] * 3))),
    lookup("value_not_representable", at("/fill_value", value="x"), rows(), broken=False, out_of_bounds="fill",
           fill_value="x"),
    lookup("rank_too_small", at("/features/0/tensor"), rows(tensor="pv_one")),
    lookup("rank_mismatch", at("/features/0/indices/shape", value=2, allowed=[1, 1]),
           bag(indices=int64([1, 3], [0, 1, 2]))),
    lookup("updates_shape_mismatch", at("/features/0/weights/shape"), bag(weights=tensor("float32", [2], [1, 1]))),
    lookup("offsets_invalid", at("/features/0/offsets/shape", value=2, allowed=[1, 1]),
           bag(offsets=int64([2, 1], [0, 1]))),
    lookup("offsets_invalid", at("/features/1/offsets/values/0", position=[0], value=1, allowed=[0, 0]), bag(),
           bag(offsets=int64([2], [1, 1]))),
    lookup("offsets_invalid", at("/features/0/offsets/values/2", position=[2], value=1, allowed=[2, 3]),
           bag(offsets=int64([3], [0, 2, 1]))),
    lookup("offsets_invalid", at("/features/0/offsets/values"), bag(offsets=int64([0], []))),
    lookup("offsets_invalid", at("/features/0/offsets/values/2", position=[2], value=2, allowed=[3, 3]),
           bag(offsets=int64([3], [0, 1, 2]), include_last_offset=True)),
    lookup("offsets_invalid", at("/features/0/offsets/values/2", position=[2], value=4, allowed=[3, 3]),
           bag(offsets=int64([3], [0, 1, 4]), include_last_offset=True), bag(indices=int64([3], [0, 1, 9]))),
    lookup("offsets_invalid", at("/features/0/offsets/values"),
           bag(offsets=int64([1], [0]), include_last_offset=True)),
    lookup("offsets_invalid", at("/features/0/offsets/shape", value=0),
           bag(offsets=int64([0], []), include_last_offset=True)),
    lookup("invalid_field", at("/features/0/include_last_offset"), rows(include_last_offset=True), broken=False),
    lookup("invalid_field", at("/features/0/include_last_offset"), bag(include_last_offset="yes"), broken=False),
    lookup("feature_mismatch", at("/features/1"), rows(), rows(tensor="pv_wide"), broken=False),
    lookup("feature_mismatch", at("/features/1"), rows(), rows(indices=int64([1], [0])), broken=False),
    lookup("index_out_of_bounds",
           [*at("/features/1/indices/values/0", position=[0], value=4, axis=0, size=4, allowed=[0, 3]),
            *at("/features/1/indices/values/2", position=[2], value=-1, axis=0, size=4, allowed=[0, 3])],
           bag(), bag(indices=int64([3], [4, 0, -1])), total=2),
    lookup("index_out_of_bounds", at("/features/0/indices/values/0", position=[0], value=0, axis=0, size=0,
           allowed=None), rows(tensor="pv_none", indices=int64([1], [0])), out_of_bounds="clip"),
    lookup("limit_exceeded", at("/features"), *[rows()] * 1025, broken=False,
           facts={"limit": "features", "maximum": 1024}),
]  # fmt: skip
REFUSED_OPERATORS = [
    *SCATTERS, *_gradients("gathernd_backward"), *_gradients("gather_backward"), *LOOKUPS,
]  # fmt: skip
