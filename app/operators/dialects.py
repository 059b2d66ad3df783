"""The dialects, one row each: the types they accept, whether indices wrap, and the clauses that errors cite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from app.errors import Rule
from app.operators import specification_clauses
from app.operators.specification_clauses import Clauses
from app.tensors.dtypes import DTYPES, INTEGERS
from app.tensors.operator_signature import REDUCTIONS, DialectFields, Reduction

_ONNX_13: Final = frozenset(name for name in DTYPES if not name.startswith("float8"))
_ONNX_11: Final = _ONNX_13 - {"bfloat16"}
_NO_COMPLEX: Final = frozenset(name for name, row in DTYPES.items() if row.kind != "complex")
_INTEGERS: Final = frozenset(INTEGERS)
_INT64: Final = frozenset(("int64",))
_INT32_64: Final = frozenset(("int32", "int64"))


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """One version of an operator.

    The keys of `rules` are error codes. For unsupported_dtype, they are `data_dtype` and `index_dtype`. If an input
    other than data and indices has its own types, `further_dtypes` holds them under the input's name. `reductions`
    lists the reductions of a scatter. `fields` holds the differences from requests of other dialects. `taken_by` maps
    each type that this dialect does not accept to another dialect of the operator that accepts it. `equal_sizes` says
    that the indices of an elements operator must have exactly data's size on every axis except `axis`, instead of at
    most that size.
    """

    name: str
    data_dtypes: frozenset[str]
    index_dtypes: frozenset[str]
    clauses: Clauses
    wrap: bool = True
    has_batch_dims: bool = True
    reductions: tuple[Reduction, ...] = ()
    fields: DialectFields | None = None
    equal_sizes: bool = False
    further_dtypes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    taken_by: Mapping[str, str] = field(default_factory=dict)
    rules: Mapping[str, Rule] = field(init=False)

    def __post_init__(self) -> None:
        rules = {key: Rule(self.name, clause, text) for key, (clause, text) in self.clauses.items()}
        object.__setattr__(self, "rules", rules)


def _versions(*rows: Dialect) -> Mapping[str, Dialect]:
    """Return the dialects of an operator by name, the default first."""
    takers = {name: row.name for row in reversed(rows) for name in row.data_dtypes}
    return {
        row.name: replace(row, taken_by={name: by for name, by in takers.items() if name not in row.data_dtypes})
        for row in rows
    }


GATHERND: Final = _versions(
    Dialect("onnx-13", _ONNX_13, _INT64, specification_clauses.GATHERND_12),
    Dialect("onnx-12", _ONNX_11, _INT64, specification_clauses.GATHERND_12),
    Dialect("onnx-11", _ONNX_11, _INT64, specification_clauses.GATHERND_11, has_batch_dims=False),
    Dialect("openvino-8", _NO_COMPLEX, _INTEGERS, specification_clauses.OPENVINO_8, wrap=False),
)
GATHER: Final = _versions(
    Dialect("onnx-13", _ONNX_13, _INT32_64, specification_clauses.GATHER_11),
    Dialect("onnx-11", _ONNX_11, _INT32_64, specification_clauses.GATHER_11),
    Dialect("onnx-1", _ONNX_11, _INT32_64, specification_clauses.GATHER_1, wrap=False),
    Dialect(
        "openvino-8",
        _NO_COMPLEX,
        _INTEGERS,
        specification_clauses.GATHER_8,
        fields=DialectFields(needs_parameter=True, batch_dims=True, fills=True),
    ),
)
GATHER_ELEMENTS: Final = _versions(
    Dialect("onnx-13", _ONNX_13, _INT32_64, specification_clauses.GATHER_ELEMENTS_11),
    Dialect("onnx-11", _ONNX_11, _INT32_64, specification_clauses.GATHER_ELEMENTS_11),
    Dialect(
        "openvino-6",
        _NO_COMPLEX,
        _INT32_64,
        specification_clauses.GATHER_ELEMENTS_6,
        wrap=False,
        fields=DialectFields(needs_parameter=True),
        equal_sizes=True,
    ),
)

GATHER_BLOCK_QUANTIZED: Final = _versions(
    Dialect(
        "onnxruntime-1",
        frozenset(("uint8",)),
        _INT32_64,
        specification_clauses.GATHER_BLOCK_QUANTIZED_1,
        further_dtypes={"scales": ("float32", "float16", "bfloat16"), "zero_points": ("uint8",)},
    ),
)


def _scatters(indices: frozenset[str], clauses: Clauses) -> Mapping[str, Dialect]:
    """Return the versions of a scatter.

    bfloat16 was added in version 13, the reductions add and mul were added in 16, and min and max in 18.
    """
    return _versions(
        Dialect("onnx-18", _ONNX_13, indices, clauses, reductions=REDUCTIONS),
        Dialect("onnx-16", _ONNX_13, indices, clauses, reductions=REDUCTIONS[:3]),
        Dialect("onnx-13", _ONNX_13, indices, clauses, reductions=REDUCTIONS[:1]),
        Dialect("onnx-11", _ONNX_11, indices, clauses, reductions=REDUCTIONS[:1]),
    )


SCATTERND: Final = _scatters(_INT64, specification_clauses.SCATTERND_11)
SCATTER_ELEMENTS: Final = _scatters(_INT32_64, specification_clauses.SCATTER_ELEMENTS_11)
EMBEDDING_BAG_OFFSETS: Final = _versions(
    Dialect(
        "openvino-15",
        frozenset(name for name, row in DTYPES.items() if row.kind == "float" and row.arithmetic),
        _INT32_64,
        specification_clauses.EMBEDDING_BAG_OFFSETS_15,
        wrap=False,
    ),
)
"""The dialect of lookups. Its types are those of tables that can be pooled."""
