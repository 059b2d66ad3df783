"""The rows of the table of operators: whole, and each distinct."""

from __future__ import annotations

import pytest

from app.operators.registry import OPERATORS, Operator
from app.requests.schemas.operator_request import operator_request
from app.tensors.operator_signature import OPERATOR_NAMES, PARAMETERS
from app.tensors.tensor_name import RESERVED


def test_there_is_a_row_for_each_name_and_its_name_is_reserved() -> None:
    assert tuple(OPERATORS) == OPERATOR_NAMES
    assert set(OPERATORS) < set(RESERVED)


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=lambda operator: operator.name)
def test_a_row_says_of_its_operator_what_the_schema_of_its_requests_says(operator: Operator) -> None:
    signature, model = operator.signature, operator_request(operator.signature)
    fields = model.model_json_schema()["properties"]
    beside = {"batch_dims"} if any(own.batch_dims for own in signature.dialect_fields.values()) else set()
    assert set(fields) & {one.name for one in PARAMETERS} == {one.name for one in signature.parameters} | beside
    assert set(signature.inputs) < set(fields)
    assert signature.dialects == tuple(operator.dialects) == tuple(fields["dialect"]["enum"])
    assert signature.default_dialect == model.model_fields["dialect"].default == signature.dialects[0]
    assert operator.codes
    for name, dialect in operator.dialects.items():
        assert dialect.name == name
        assert {"data_dtype", "index_dtype", "index_out_of_bounds"} < set(dialect.rules)
