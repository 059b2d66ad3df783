"""What the OpenAPI file allows a request to say beside its arrays, and what the codecs accept, is the same.

Of gathers, scatters and the inference protocol; `schema_samples` says how. What the schemas cannot say of each route is
listed here and there, each as a rule.
"""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from app.errors import GatherError
from app.formats.json.query import read_explain
from app.formats.json.read_request import read_request
from app.formats.oip.infer_document import Model
from app.formats.oip.read_body import read_body
from app.formats.safetensors.read_request import read_request as read_safetensors
from app.operators.registry import OPERATORS
from app.requests.schemas.scatter_request import ScatterRequest
from app.tensors.operator_signature import OWN_FIELDS
from app.tensors.scatter_call import TABLE_SCATTER
from app.tensors.shape_limits import Limits
from tests.wire.json_requests import read_call
from tests.wire.schema_samples import (
    INFER,
    PROTOCOL_RULES,
    TENSOR_RULES,
    Maker,
    Rule,
    accepts,
    binary,
    body_schema,
    dialect_rules,
    hold,
    hold_query,
    is_json,
    query_schema,
    tensors,
    typed,
)

pytestmark = pytest.mark.usefixtures("every_codec")

GATHERS = ("/gathernd", "/gather", "/gather_elements", "/gather_block_quantized")
SCATTERS = ("/scatternd", "/scatter_elements")
SCATTER = "/tensors/{name}/scatter"
MODELS = {name: Model(name, row.signature) for name, row in OPERATORS.items()}
MODELS["items"] = Model("items", OPERATORS["gathernd"].signature, resident=True)
GATHER_RULES: dict[str, Rule] = {
    "the name of a resident tensor stands alone": lambda document: all(
        len(one) == 1 for one in tensors(document) if "tensor" in one
    ),
    "data that is no resident tensor has a dtype": lambda document: all(
        "dtype" in one for one in tensors(document) if "tensor" not in one
    ),
}


def infer_rules(model: Model) -> dict[str, Rule]:
    signature = model.signature
    own = {*signature.own_fields} | ({"batch_dims"} if signature.operator == "gather" else set())
    return (
        dialect_rules(signature, lambda document: document.get("parameters", {}))
        | PROTOCOL_RULES
        | {
            "inputs say datatype and shape unless they are in JSON and for a resident tensor": lambda document: all(
                one.keys() >= {"datatype", "shape"}
                or (model.resident and ("shape" in one or "binary_data_size" not in one.get("parameters", {})))
                for one in document["inputs"]
            ),
            "each input of the model is given once and there is no other": lambda document: inputs_are_right(
                model, document
            ),
            "the parameter of another operator is none of this model": lambda document: (
                not document.get("parameters", {}).keys() & set(OWN_FIELDS) - own
            ),
            "the dialect is one of the model's operator": lambda document: (
                document.get("parameters", {}).get("dialect", signature.default_dialect) in signature.dialects
            ),
            "a fill value is the text of a JSON value": lambda document: is_json(
                document.get("parameters", {}).get("fill_value", "0")
            ),
            "the output is called output": lambda document: all(
                one["name"] == "output" for one in document.get("outputs", ())
            ),
            "an output is asked for once": lambda document: len(document.get("outputs", ())) <= 1,
        }
    )


def inputs_are_right(model: Model, document: dict[str, Any]) -> bool:
    """Each input is there, or a parameter names a resident tensor in its place, or it may be left out."""
    parameters = document.get("parameters", {})
    named = [name for name, field in model.signature.named_beside.items() if field in parameters]
    given = sorted([one["name"] for one in document["inputs"]] + named)
    needed = [name for name in model.inputs if name not in model.signature.optional or name in given]
    return given == sorted(needed)


@pytest.mark.parametrize("path", [*GATHERS, *SCATTERS])
def test_operators(path: str) -> None:
    signature = OPERATORS[path[1:]].signature
    rules = TENSOR_RULES | GATHER_RULES | dialect_rules(signature, lambda document: document)
    hold(body_schema(path), rules, Maker(path), lambda body: read_call(body, signature, Limits()))


def test_scatters() -> None:
    hold(
        body_schema(SCATTER),
        TENSOR_RULES,
        Maker(SCATTER),
        lambda body: read_request(body, b"", TABLE_SCATTER, Limits())[0],
    )


@pytest.mark.parametrize("name", MODELS)
def test_infer_requests(name: str) -> None:
    model = MODELS[name]

    def read(body: bytes) -> None:
        try:
            read_body(body, None, model, Limits())
        except GatherError as error:
            # OpenAPI knows no counts, and the items that follow the JSON are not there.
            counted = error.code in ("element_count_mismatch", "value_not_representable")
            if not counted and "bytes follow the JSON" not in error.detail:
                raise

    roles = ("data", *(one for one in model.inputs if one not in ("data", *model.signature.optional)))
    maker = Maker(name, roles)
    maker.foreign = {*OWN_FIELDS} - {*model.signature.own_fields} | {*model.signature.named_beside.values()}
    hold(body_schema(INFER), infer_rules(model), maker, read, infer=True)


@pytest.mark.parametrize("path", [*GATHERS, *SCATTERS])
def test_queries_of_operators(path: str) -> None:
    signature = OPERATORS[path[1:]].signature
    rules = dialect_rules(signature, lambda document: document)
    if signature.kind == "gather":
        rules["a fill value is the text of a JSON value"] = lambda document: is_json(document.get("fill_value", "0"))

    def read(query: bytes) -> None:
        fields = {field.partition(b"=")[0].decode() for field in query.split(b"&")}
        named = [name for name, field in signature.resident_fields.items() if field in fields]
        body = binary([name for name in signature.inputs if name not in named])
        read_safetensors(body, query, signature, Limits())

    hold_query(path, rules, read)


def test_queries_of_scatters() -> None:
    body = binary(["indices", "updates"])
    hold_query(SCATTER, {}, lambda query: read_safetensors(body, query, TABLE_SCATTER, Limits()))


@pytest.mark.parametrize("query", ["", "explain=true", "explain=false", "explain=x", "explain=", "axis=1"])
def test_queries_of_gathers_in_json(query: str) -> None:
    schema = {name: one for name, one in query_schema("/gather")["properties"].items() if name == "explain"}
    fields = dict([query.split("=")]) if query else {}
    wanted = {"type": "object", "properties": schema, "additionalProperties": False}
    allowed = Draft202012Validator(wanted).is_valid(
        {name: typed(name, value, wanted) for name, value in fields.items()}
    )
    assert accepts(lambda: read_explain(query.encode(), ScatterRequest))[0] == allowed
