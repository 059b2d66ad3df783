"""What a format needs to know of an operator to read its requests: names, and no rule.

The rows of `app.operators.registry` hold one each; `formats` and `store` read no more of an operator than this.
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
    """An integer that tells an operator how to read its inputs, by its name in requests; `default` if left out."""

    name: str
    description: str
    default: int = 0


BATCH_DIMS: Final = Parameter("batch_dims", "Leading dimensions that are batches.")
AXIS: Final = Parameter("axis", "Axis that indices are positions on; negative counts from the back.")
GATHER_AXIS: Final = Parameter("gather_axis", "Axis that indices are positions on: the first one.")
QUANTIZE_AXIS: Final = Parameter(
    "quantize_axis", "Axis along which blocks have one scale each: the last one of `data`; -1 always is.", 1
)
BLOCK_SIZE: Final = Parameter("block_size", "Values of a block: a power of 2, at least 16.", 128)
BITS: Final = Parameter("bits", "Bits of a value, 8, or 4 for two in a byte, the low half first.", 4)
PARAMETERS: Final = (BATCH_DIMS, AXIS, GATHER_AXIS, QUANTIZE_AXIS, BLOCK_SIZE, BITS)
Reduction = Literal["none", "add", "mul", "min", "max"]
REDUCTIONS: Final[tuple[Reduction, ...]] = get_args(Reduction)
Kind = Literal["gather", "scatter", "gradient", "lookup", "table_scatter"]
"""The family of a request. Beside inputs, parameters, dialect and device a gather has `READING_FIELDS`, a scatter
`reduction`; a lookup has features; a table_scatter changes a resident tensor."""
READING_FIELDS: Final = ("out_of_bounds", "fill_value", "output_dtype")
"""The fields that gathers and lookups have beside their inputs."""
OWN_FIELDS: Final = (
    *(parameter.name for parameter in PARAMETERS),
    *READING_FIELDS,
    *KEY_FIELDS,
    *("reduction", "tensor", "scales", "zero_points"),
)
"""The fields that some operators' requests have and others' do not."""
DEFAULT_DIALECT: Final = "onnx-13"
"""The dialect of most operators' requests that name none."""


@dataclass(frozen=True)
class DialectFields:
    """How the requests of one dialect differ from those of the operator's others.

    `needs_parameter` says that the first parameter has no default; `batch_dims` that there is one beside it;
    `fills` that slices whose index is out of bounds are filled where a request does not say otherwise.
    """

    needs_parameter: bool = False
    batch_dims: bool = False
    fills: bool = False


@dataclass(frozen=True, eq=False)
class Signature:
    """What requests to an operator say: its name, its parameters, its inputs in their order, and its dialects.

    A request may leave out the inputs that are `optional`, and name a resident tensor in place of those in `residents`.
    `reductions` are those of each dialect of a scatter, `dialect_fields` how requests of some dialects differ.
    `schema` is the name of the requests in OpenAPI, and what it says of them. If `keyed`, a request may have keys in
    place of indices.
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
        """The arrays that its requests may have."""
        return (*self.inputs, KEYS) if self.keyed else self.inputs

    def inputs_beside(self, given: Collection[str]) -> tuple[str, ...]:
        """The inputs of a request that has arrays of these names: with keys, those are in place of indices."""
        if self.keyed and KEYS in given:
            return tuple(KEYS if name == "indices" else name for name in self.inputs)
        return self.inputs

    @cached_property
    def further(self) -> tuple[str, ...]:
        """The inputs beside data and indices."""
        return tuple(name for name in self.inputs if name not in ("data", "indices"))

    @cached_property
    def resident_fields(self) -> dict[str, str]:
        """By input, the field that names a resident tensor in its place in a query."""
        return {name: "tensor" if name == "data" else name for name in self.residents}

    @cached_property
    def named_beside(self) -> dict[str, str]:
        """The same among the parameters of the inference protocol.

        Data alone needs no name there: a resident tensor is a model of its own.
        """
        return self.resident_fields if len(self.residents) > 1 else {}

    @cached_property
    def own_fields(self) -> tuple[str, ...]:
        """The fields of its requests that other operators do not have, by name."""
        own: tuple[str, ...] = READING_FIELDS if self.kind == "gather" else ("reduction",)
        if any(fields.batch_dims for fields in self.dialect_fields.values()):
            own = ("batch_dims", *own)
        return (*(parameter.name for parameter in self.parameters), *own, *self.named_beside.values())
