"""What a format needs to know of an operator to read its requests: names, and no rule.

The rows of `app.operators.registry` hold one each; `wire` and `store` read no more of an operator than this.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, get_args

OperatorName = Literal["gathernd", "gather", "gather_elements"]
OPERATOR_NAMES: Final[tuple[OperatorName, ...]] = get_args(OperatorName)
Parameter = Literal["batch_dims", "axis"]
PARAMETERS: Final[tuple[Parameter, ...]] = get_args(Parameter)
DEFAULT_DIALECT: Final = "onnx-13"


@dataclass(frozen=True, eq=False)
class Signature:
    """An operator by its names: its own, that of its parameter, its inputs in their order, and its dialects.

    The pointers name the parameter in a JSON body, in a query, and among the parameters of the inference protocol.
    """

    operator: OperatorName
    parameter: Parameter
    dialects: tuple[str, ...]
    inputs: tuple[str, ...] = ("data", "indices")
    default_dialect: str = DEFAULT_DIALECT

    @cached_property
    def pointer(self) -> str:
        """The parameter in a JSON body."""
        return f"/{self.parameter}"

    @cached_property
    def query_pointer(self) -> str:
        """The parameter in a query."""
        return f"/query/{self.parameter}"

    @cached_property
    def parameters_pointer(self) -> str:
        """The parameter of an infer request."""
        return f"/parameters/{self.parameter}"
