"""The dialects, one row each: which types they take, whether indices wrap, and whose clauses their errors cite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from app.errors import Rule
from app.operators import specification_clauses
from app.operators.specification_clauses import Clauses
from app.tensors.dtypes import DTYPES, INTEGERS
from app.tensors.operator_signature import REDUCTIONS, DialectFields, Reduction

_ONNX_13 = tuple(name for name in DTYPES if not name.startswith("float8"))
_ONNX_11 = tuple(name for name in _ONNX_13 if name != "bfloat16")
NO_TYPES: Final[Mapping[str, tuple[str, ...]]] = {}
_NO_COMPLEX = tuple(name for name, row in DTYPES.items() if row.kind != "complex")


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """One operator version: `rules` is by error code, with `data_dtype` and `index_dtype` for unsupported_dtype.

    `further_dtypes` are those of inputs beside data and indices that have their own, by the input's name.
    `reductions` are those that a scatter may ask for, `fields` how its requests differ from those of others.
    `taken_by` names, for each type that the dialect does not take, another dialect of the operator that takes it.
    `equal_sizes` says that the indices of an elements operator must have data's size on every axis but its own, not
    at most that size.
    """

    name: str
    data_dtypes: frozenset[str]
    index_dtypes: frozenset[str]
    wrap: bool
    has_batch_dims: bool
    rules: Mapping[str, Rule]
    reductions: tuple[Reduction, ...] = ()
    fields: DialectFields | None = None
    equal_sizes: bool = False
    taken_by: Mapping[str, str] = field(default_factory=dict)
    further_dtypes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def _versions(*rows: Dialect) -> Mapping[str, Dialect]:
    """The dialects of an operator by name, the default first."""
    takers = {name: row.name for row in reversed(rows) for name in row.data_dtypes}
    return {
        row.name: replace(row, taken_by={name: by for name, by in takers.items() if name not in row.data_dtypes})
        for row in rows
    }


def _dialect(
    name: str,
    data: tuple[str, ...],
    indices: tuple[str, ...],
    *,
    wrap: bool,
    rules: Clauses,
    has_batch_dims: bool = True,
    reductions: tuple[Reduction, ...] = (),
    fields: DialectFields | None = None,
    equal_sizes: bool = False,
    further: Mapping[str, tuple[str, ...]] = NO_TYPES,
) -> Dialect:
    table = {key: Rule(name, clause, text) for key, (clause, text) in rules.items()}
    return Dialect(
        name,
        frozenset(data),
        frozenset(indices),
        wrap,
        has_batch_dims,
        table,
        reductions,
        fields,
        equal_sizes,
        further_dtypes=further,
    )


_INT64 = ("int64",)
_INT32_64 = ("int32", "int64")

GATHERND: Final = _versions(
    _dialect("onnx-13", _ONNX_13, _INT64, wrap=True, rules=specification_clauses.GATHERND_12),
    _dialect("onnx-12", _ONNX_11, _INT64, wrap=True, rules=specification_clauses.GATHERND_12),
    _dialect("onnx-11", _ONNX_11, _INT64, wrap=True, rules=specification_clauses.GATHERND_11, has_batch_dims=False),
    _dialect("openvino-8", _NO_COMPLEX, INTEGERS, wrap=False, rules=specification_clauses.OPENVINO_8),
)
GATHER: Final = _versions(
    _dialect("onnx-13", _ONNX_13, _INT32_64, wrap=True, rules=specification_clauses.GATHER_11),
    _dialect("onnx-11", _ONNX_11, _INT32_64, wrap=True, rules=specification_clauses.GATHER_11),
    _dialect("onnx-1", _ONNX_11, _INT32_64, wrap=False, rules=specification_clauses.GATHER_1),
    _dialect(
        "openvino-8",
        _NO_COMPLEX,
        INTEGERS,
        wrap=True,
        rules=specification_clauses.GATHER_8,
        fields=DialectFields(needs_parameter=True, batch_dims=True, fills=True),
    ),
)
GATHER_ELEMENTS: Final = _versions(
    _dialect("onnx-13", _ONNX_13, _INT32_64, wrap=True, rules=specification_clauses.GATHER_ELEMENTS_11),
    _dialect("onnx-11", _ONNX_11, _INT32_64, wrap=True, rules=specification_clauses.GATHER_ELEMENTS_11),
    _dialect(
        "openvino-6",
        _NO_COMPLEX,
        _INT32_64,
        wrap=False,
        rules=specification_clauses.GATHER_ELEMENTS_6,
        fields=DialectFields(needs_parameter=True),
        equal_sizes=True,
    ),
)

GATHER_BLOCK_QUANTIZED: Final = _versions(
    _dialect(
        "onnxruntime-1",
        ("uint8",),
        _INT32_64,
        wrap=True,
        rules=specification_clauses.GATHER_BLOCK_QUANTIZED_1,
        has_batch_dims=False,
        further={"scales": ("float32", "float16", "bfloat16"), "zero_points": ("uint8",)},
    ),
)


def _scatters(indices: tuple[str, ...], rules: Clauses) -> Mapping[str, Dialect]:
    """The versions of a scatter: bfloat16 came with 13, the reductions add and mul with 16, min and max with 18."""
    rows = (
        ("onnx-18", _ONNX_13, REDUCTIONS),
        ("onnx-16", _ONNX_13, REDUCTIONS[:3]),
        ("onnx-13", _ONNX_13, REDUCTIONS[:1]),
        ("onnx-11", _ONNX_11, REDUCTIONS[:1]),
    )
    return _versions(
        *(
            _dialect(name, data, indices, wrap=True, rules=rules, has_batch_dims=False, reductions=reductions)
            for name, data, reductions in rows
        )
    )


SCATTERND: Final = _scatters(_INT64, specification_clauses.SCATTERND_11)
SCATTER_ELEMENTS: Final = _scatters(_INT32_64, specification_clauses.SCATTER_ELEMENTS_11)
EMBEDDING_BAG_OFFSETS: Final = _versions(
    _dialect(
        "openvino-15",
        tuple(name for name, row in DTYPES.items() if row.kind == "float" and row.arithmetic),
        _INT32_64,
        wrap=False,
        rules=specification_clauses.EMBEDDING_BAG_OFFSETS_15,
        has_batch_dims=False,
    ),
)
"""Of lookups: its types are those of tables that are pooled."""
