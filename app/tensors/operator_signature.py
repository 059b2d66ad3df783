"""What a format needs to know of an operator to read its requests: names, and no rule.

The rows of `app.operators.registry` hold one each; `wire` and `store` read no more of an operator than this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, get_args

from app.tensors.scatter_call import Reduction

OperatorName = Literal["gathernd", "gather", "gather_elements", "scatternd", "scatter_elements"]
OPERATOR_NAMES: Final[tuple[OperatorName, ...]] = get_args(OperatorName)
Parameter = Literal["batch_dims", "axis"]
PARAMETERS: Final[tuple[Parameter, ...]] = get_args(Parameter)
Kind = Literal["gather", "scatter"]
"""What an operator's requests have beside inputs, parameter, dialect and device: a gather `out_of_bounds`,
`fill_value` and `output_dtype`, a scatter `reduction`."""
OWN_FIELDS: Final = (*PARAMETERS, "out_of_bounds", "fill_value", "output_dtype", "reduction")
"""The fields that some operators' requests have and others' do not."""
DEFAULT_DIALECT: Final = "onnx-13"
"""The dialect of most operators' requests that name none."""


@dataclass(frozen=True)
class DialectFields:
    """How the requests of one dialect differ from those of the operator's others.

    `needs_parameter` says that the parameter has no default; `batch_dims` that there is one beside the parameter;
    `fills` that slices whose index is out of bounds are filled where a request does not say otherwise.
    """

    needs_parameter: bool = False
    batch_dims: bool = False
    fills: bool = False


@dataclass(frozen=True, eq=False)
class Signature:
    """An operator by its names: its own, that of its parameter, its inputs in their order, and its dialects.

    `parameter` is None for an operator that has none. `reductions` are those of each dialect of a scatter,
    `dialect_fields` how requests of some dialects differ. `pointer` names the parameter in a
    JSON body.
    """

    operator: OperatorName
    parameter: Parameter | None
    dialects: tuple[str, ...]
    inputs: tuple[str, ...] = ("data", "indices")
    default_dialect: str = DEFAULT_DIALECT
    kind: Kind = "gather"
    reductions: Mapping[str, tuple[Reduction, ...]] = field(default_factory=dict)
    dialect_fields: Mapping[str, DialectFields] = field(default_factory=dict)

    @cached_property
    def own_fields(self) -> tuple[str, ...]:
        """The fields of its requests that other operators do not have, by name."""
        own: tuple[str, ...] = (
            ("out_of_bounds", "fill_value", "output_dtype") if self.kind == "gather" else ("reduction",)
        )
        if any(fields.batch_dims for fields in self.dialect_fields.values()):
            own = ("batch_dims", *own)
        return own if self.parameter is None else (self.parameter, *own)

    @cached_property
    def pointer(self) -> str:
        """The parameter in a JSON body."""
        return f"/{self.parameter}"
