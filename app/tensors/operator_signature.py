"""The signature of an operator: the names that a format needs to parse its requests.

Each row of `app.operators.registry` has one. This is all that `formats` and `store` know about an operator.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, NamedTuple, get_args

from app.tensors.by_key import KEY_FIELDS, KEYS

OperatorName = Literal[
    "gathernd", "gather", "gather_elements", "gather_block_quantized", "scatternd", "scatter_elements"
]
BackwardName = Literal["gathernd_backward", "gather_backward"]
OPERATOR_NAMES: Final[tuple[OperatorName, ...]] = get_args(OperatorName)


class Parameter(NamedTuple):
    """An integer parameter of an operator: its name in requests, its description, and its default."""

    name: str
    description: str
    default: int = 0


BATCH_DIMS: Final = Parameter("batch_dims", "Number of leading dimensions that are batches.")
AXIS: Final = Parameter("axis", "Axis of data to index; a negative axis counts from the end.")
GATHER_AXIS: Final = Parameter("gather_axis", "Axis of data to index; must be the first.")
QUANTIZE_AXIS: Final = Parameter(
    "quantize_axis", "Axis that is divided into blocks, each with a scale; must be the last one (-1 or rank - 1).", 1
)
BLOCK_SIZE: Final = Parameter("block_size", "Number of values in a block: a power of 2, at least 16.", 128)
BITS: Final = Parameter("bits", "Bits of a value: 8, or 4 with two values in a byte, the low half first.", 4)
PARAMETERS: Final = (BATCH_DIMS, AXIS, GATHER_AXIS, QUANTIZE_AXIS, BLOCK_SIZE, BITS)
Reduction = Literal["none", "add", "mul", "min", "max"]
REDUCTIONS: Final[tuple[Reduction, ...]] = get_args(Reduction)
Kind = Literal["gather", "scatter", "gradient", "lookup", "table_scatter"]
"""The family of a request. All have inputs, parameters, dialect and device.

A gather also has `READING_FIELDS`, a scatter has `reduction`, and a lookup has features. A table_scatter changes a
resident tensor.
"""
READING_FIELDS: Final = ("out_of_bounds", "fill_value", "output_dtype")
"""Fields that gathers and lookups have in addition to their inputs."""
OWN_FIELDS: Final = (
    *(parameter.name for parameter in PARAMETERS),
    *READING_FIELDS,
    *KEY_FIELDS,
    *("reduction", "tensor", "scales", "zero_points"),
)
"""Fields that only some operators have."""
DEFAULT_DIALECT: Final = "onnx-13"
"""The default dialect of most operators."""


@dataclass(frozen=True)
class DialectFields:
    """The differences between requests of one dialect and those of the operator's other dialects.

    `needs_parameter` means that the first parameter has no default. `batch_dims` means that this field exists in
    addition to the parameter. `fills` means that slices out of bounds are filled by default.
    """

    needs_parameter: bool = False
    batch_dims: bool = False
    fills: bool = False


@dataclass(frozen=True, eq=False)
class Signature:
    """The fields of requests to an operator: its name, parameters, inputs in order, and dialects.

    A request may omit the `optional` inputs, and may specify a resident tensor for those in `residents`. `reductions`
    lists the reductions of each dialect of a scatter; `dialect_fields` holds the differences between dialects. `schema`
    holds the name and description of the requests in OpenAPI. If `keyed`, a request may have keys instead of indices.
    """

    operator: str
    parameters: tuple[Parameter, ...]
    dialects: tuple[str, ...]
    inputs: tuple[str, ...] = ("data", "indices")
    default_dialect: str = DEFAULT_DIALECT
    kind: Kind = "gather"
    reductions: Mapping[str, tuple[Reduction, ...]] = field(default_factory=dict)
    dialect_fields: Mapping[str, DialectFields] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    residents: tuple[str, ...] = ("data",)
    schema: tuple[str, str] = ("OperatorRequest", "A request to an operator.")
    keyed: bool = False

    @cached_property
    def arrays(self) -> tuple[str, ...]:
        """The arrays that a request may have."""
        return (*self.inputs, KEYS) if self.keyed else self.inputs

    def inputs_beside(self, given: Collection[str]) -> tuple[str, ...]:
        """Return the inputs of a request that has arrays with these names. If it has keys, they replace indices."""
        if self.keyed and KEYS in given:
            return tuple(KEYS if name == "indices" else name for name in self.inputs)
        return self.inputs

    @cached_property
    def further(self) -> tuple[str, ...]:
        """The inputs other than data and indices."""
        return tuple(name for name in self.inputs if name not in ("data", "indices"))

    @cached_property
    def resident_fields(self) -> dict[str, str]:
        """For each input that may be resident, the query field that specifies the tensor."""
        return {name: "tensor" if name == "data" else name for name in self.residents}

    @cached_property
    def named_beside(self) -> dict[str, str]:
        """For each input that may be resident, the parameter in the inference protocol that specifies the tensor.

        If only data may be resident, no parameter is needed, because a resident tensor is itself a model.
        """
        return self.resident_fields if len(self.residents) > 1 else {}

    @cached_property
    def own_fields(self) -> tuple[str, ...]:
        """Names of the fields that only this operator's requests have."""
        own: tuple[str, ...] = READING_FIELDS if self.kind == "gather" else ("reduction",)
        if any(fields.batch_dims for fields in self.dialect_fields.values()):
            own = ("batch_dims", *own)
        return (*(parameter.name for parameter in self.parameters), *own, *self.named_beside.values())
