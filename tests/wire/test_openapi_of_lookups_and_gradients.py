"""What OpenAPI allows lookups and gradients to say beside their arrays, and what the codecs accept, is the same.

As `test_openapi_against_codecs` has it for the other routes.
"""

from __future__ import annotations

import json
from copy import deepcopy
from math import isfinite
from typing import Any

import pytest

from app.formats.json.read_request import read_request
from app.formats.oip.infer_document import LOOKUP_MODEL
from app.formats.oip.read_body import read_body
from app.formats.safetensors.read_request import read_request as read_safetensors
from app.operators.registry import GRADIENTS
from app.tensors.lookup_call import ARRAYS, LOOKUP_SIGNATURE
from app.tensors.operator_signature import OWN_FIELDS
from app.tensors.shape_limits import Limits
from tests.wire.schema_samples import (
    DOCUMENT,
    INFER,
    PROTOCOL_RULES,
    TENSOR_RULES,
    Maker,
    Rule,
    binary,
    body_schema,
    gather_8_rules,
    hold,
    hold_query,
)

pytestmark = pytest.mark.usefixtures("every_codec")

LOOKUP = "/lookup"
ONE_OUTPUT = json.dumps({"features": [{"tensor": "items"}]})
OUTPUTS_APART = json.dumps({"features": [{"tensor": "items"}], "concat": False})


def features(document: dict[str, Any]) -> list[dict[str, Any]]:
    return document["features"]  # type: ignore[no-any-return]


FILL_RULE: dict[str, Rule] = {
    "a fill value is for fill": lambda document: (
        "fill_value" not in document or document.get("out_of_bounds", "error") == "fill"
    ),
}
POOLING_RULES: dict[str, Rule] = {
    "bags have offsets, single rows have none": lambda document: all(
        ("offsets" in one) == (one.get("pooling", "none") != "none") for one in features(document)
    ),
    "weights are for sums": lambda document: all(
        "weights" not in one or one.get("pooling") == "sum" for one in features(document)
    ),
}


class LookupMaker(Maker):
    """Features mostly have the arrays that their pooling asks for."""

    def object(self, schema: dict[str, Any], name: str) -> dict[str, Any]:
        members = super().object(schema, name)
        if "pooling" in schema["properties"] and self.rng.random() < 0.8:
            pooling = members.get("pooling", "none")
            if pooling == "none":
                members.pop("offsets", None)
            elif "offsets" in schema["properties"]:
                members.setdefault("offsets", {"dtype": "int64", "shape": [1], "values": [0]})
            if pooling != "sum":
                members.pop("weights", None)
        if "concat" in schema["properties"] and members.get("out_of_bounds") != "fill" and self.rng.random() < 0.8:
            members.pop("fill_value", None)
        return members


class InferMaker(Maker):
    """Requests to the model `lookup`, of one feature."""

    def object(self, schema: dict[str, Any], name: str) -> dict[str, Any]:
        members = super().object(schema, name)
        if "binary_data_output" in schema["properties"]:
            if self.rng.random() < 0.8:
                for foreign in ("dialect", "device", *OWN_FIELDS):
                    members.pop(foreign, None)
            if self.rng.random() < 0.95:
                members["lookup"] = self.rng.choice([ONE_OUTPUT, OUTPUTS_APART])
        elif "datatype" in schema["properties"] and isinstance(members.get("parameters"), dict):
            members["parameters"].pop("binary_data_size", None)  # here what follows the JSON is nothing
        elif "inputs" in schema["properties"]:
            members.setdefault("parameters", {"lookup": ONE_OUTPUT})
            if self.rng.random() < 0.5:
                members["outputs"] = [{"name": self.rng.choice(["output", "0.output"])}]
        return members

    def array(self, schema: dict[str, Any], name: str) -> list[Any]:
        found = super().array(schema, name)
        if name == "inputs" and self.rng.random() < 0.9:
            found = found[:1]
            for one in found:
                if isinstance(one, dict):
                    one["name"] = "0.indices"
        return found


class GradientMaker(Maker):
    """The shape mostly is given once."""

    def object(self, schema: dict[str, Any], name: str) -> dict[str, Any]:
        members = super().object(schema, name)
        if "grad_output" in schema["properties"] and self.rng.random() < 0.8:
            if "tensor" in members:
                members.pop("data_shape", None)
            else:
                members.setdefault("data_shape", [2])
        return members


def test_lookups() -> None:
    rules = TENSOR_RULES | POOLING_RULES | FILL_RULE
    hold(
        body_schema(LOOKUP),
        rules,
        LookupMaker(LOOKUP),
        lambda body: read_request(body, b"", LOOKUP_SIGNATURE, Limits()),
    )


def test_lookups_beside_binary_arrays() -> None:
    """The JSON in the header of safetensors is the request without its arrays."""
    schemas = deepcopy(DOCUMENT["components"]["schemas"])
    feature = schemas["LookupFeature"]
    for name in ARRAYS:
        del feature["properties"][name]
    feature["required"] = ["tensor"]
    request = schemas["LookupRequest"]
    request["properties"]["features"]["items"] = feature

    def read(text: bytes) -> None:
        document = json.loads(text)
        given = document.get("features") if isinstance(document, dict) else None
        names: list[str] = []
        for number, one in enumerate(given if isinstance(given, list) else ()):
            pooled = isinstance(one, dict) and one.get("pooling", "none") != "none"
            names += [f"{number}.{name}" for name in (("indices", "offsets") if pooled else ("indices",))]
        body = binary(names, {"lookup": text.decode()})
        read_safetensors(body, b"", LOOKUP_SIGNATURE, Limits())

    hold(request, FILL_RULE, LookupMaker("beside"), read)


def outputs_asked(document: dict[str, Any]) -> list[str]:
    return [one["name"] for one in document.get("outputs", ())]


INFER_RULES: dict[str, Rule] = PROTOCOL_RULES | {
    "inputs of a lookup say datatype and shape": lambda document: all(
        one.keys() >= {"datatype", "shape"} for one in document["inputs"]
    ),
    "the parameter lookup is the rest of the request": lambda document: (
        document.get("parameters", {}).get("lookup") in (ONE_OUTPUT, OUTPUTS_APART)
    ),
    "each input of a feature is given once and there is no other": lambda document: (
        [one["name"] for one in document["inputs"]] == ["0.indices"]
    ),
    "the parameter of an operator is none of a lookup": lambda document: (
        not document["parameters"].keys() & {*OWN_FIELDS, "dialect", "device"} if "parameters" in document else True
    ),
    "an output is one of the request": lambda document: (
        {*outputs_asked(document)}
        <= {"output" if document.get("parameters", {}).get("lookup") == ONE_OUTPUT else "0.output"}
    ),
    "an output is asked for once": lambda document: len(outputs_asked(document)) == len({*outputs_asked(document)}),
}


def test_infer_requests_for_lookups() -> None:
    hold(
        body_schema(INFER),
        INFER_RULES,
        InferMaker("lookup"),
        lambda body: read_body(body, None, LOOKUP_MODEL, Limits()),
        infer=True,
    )


def is_finite(document: dict[str, Any]) -> bool:
    try:
        return isfinite(float(document.get("lda_coeff", 1)))
    except OverflowError:
        return False


def gradient_rules(name: str) -> dict[str, Rule]:
    rules: dict[str, Rule] = {
        "exactly one of data_shape and tensor is given": lambda document: (
            ("data_shape" in document) != ("tensor" in document)
        ),
        "lda_coeff is a finite binary64": is_finite,
    }
    return rules | (gather_8_rules(lambda document: document) if name == "gather_backward" else {})


def are_sizes(given: str) -> bool:
    return given == "" or all(size.isdecimal() and size.isascii() for size in given.split(","))


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    row = GRADIENTS[name]

    def read(body: bytes) -> None:
        read_request(body, b"", row.signature, Limits())

    hold(body_schema(row.path), TENSOR_RULES | gradient_rules(name), GradientMaker(name), read)


@pytest.mark.parametrize("name", GRADIENTS)
def test_queries_of_gradients(name: str) -> None:
    row = GRADIENTS[name]
    body = binary(["indices", "grad_output"])
    rules = gradient_rules(name) | {
        "data_shape is sizes with commas": lambda document: are_sizes(document.get("data_shape", "")),
    }

    def read(query: bytes) -> None:
        read_safetensors(body, query, row.signature, Limits())

    hold_query(row.path, rules, read, ("data_shape", "tensor"))
