"""Small parts of requests out of the OpenAPI file's schemas, many with something wrong, and who judges them.

Each is judged twice: by an independent validator of JSON schema, and by the codec. What a schema cannot say is a rule
that is held as exactly as the schemas are: rules are what the service refuses besides, `tolerant` what it takes
besides.
"""

from __future__ import annotations

import json
from base64 import b64decode
from binascii import Error as NoBase64
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from random import Random
from struct import pack
from typing import Any
from urllib.parse import quote

from jsonschema import Draft202012Validator

from app.errors import GatherError
from app.tensors.operator_signature import Signature
from tests.conftest import SOAK
from tests.http.server import ROOT


def _to_the_end(member: dict[str, Any]) -> dict[str, Any]:
    """Python's `$`, as the validator has it, lets a line break follow; that of JSON schema does not."""
    pattern = member.get("pattern")
    return {**member, "pattern": pattern.replace("$", r"\Z")} if isinstance(pattern, str) else member


DOCUMENT = json.loads((ROOT / "openapi" / "openapi.json").read_bytes(), object_hook=_to_the_end)
INFER = "/v2/models/{name}/infer"
COUNT = (1000 * SOAK if SOAK else 2000) // 17
"""Samples of each test that calls `hold` or `hold_query`, of which there are more than seventeen."""


class Raw(str):
    """A value by its JSON text."""

    __slots__ = ()


NUMBERS = [0, 1, 2, -1, 2**63, -(2**63) - 1, 10**50, *map(Raw, ("1.0", "1e2", "0.0", "-0", "10E-1", "1e30", "1e400"))]
STRINGS = ["", "a", "items", "int8", "onnx-13", "AAAA", "é", "a\n", "\ud800", "x" * 129, "true", "1", ".a"]
ODD = [
    None,
    True,
    False,
    1.5,
    Raw("1e-1"),
    [],
    [1],
    [True],
    ["1"],
    [None],
    [Raw("1.0")],
    {},
    {"a": 1},
    *NUMBERS,
    *STRINGS,
]


OUTPUTS = ["output"] * 7 + ["0.output"]


def body_schema(path: str) -> dict[str, Any]:
    content = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    return {**content["schema"], "components": DOCUMENT["components"]}


def query_schema(path: str) -> dict[str, Any]:
    fields = {
        one["name"]: one["schema"] for one in DOCUMENT["paths"][path]["post"]["parameters"] if one["in"] == "query"
    }
    return {"type": "object", "properties": fields, "additionalProperties": False}


class Maker:
    """Makes values for schemas; one in `rare` is odd."""

    def __init__(self, seed: object, roles: Sequence[str] = ("data", "indices")) -> None:
        self.rng = Random(repr(seed))
        self.roles = roles
        self.foreign: Collection[str] = ()
        """Parameters of an infer request that mostly are left out, since other models have them."""
        self.rare = 30

    def value(self, schema: dict[str, Any], name: str = "") -> Any:
        """A value that the schema allows, unless something odd comes up."""
        rng = self.rng
        if rng.randrange(self.rare) == 0:
            return rng.choice(ODD)
        if "$ref" in schema:
            schema = DOCUMENT["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return rng.choice(schema["enum"])
        if "type" not in schema:
            return rng.choice(ODD)
        return getattr(self, schema["type"])(schema, name)

    def object(self, schema: dict[str, Any], name: str) -> dict[str, Any]:
        members = {
            key: self.value(member, key)
            for key, member in schema["properties"].items()
            if self.rng.random() < (0.98 if key in schema.get("required", ()) else 0.4)
        }
        if "binary_data_output" in schema["properties"] and self.rng.random() < 0.8:
            members = {key: value for key, value in members.items() if key not in self.foreign}
        if self.rng.randrange(self.rare) == 0:
            extra = ["x", "tensor", "axis", "batch_dims", "\ud800", "shared_memory_region", "classification", "a/b"]
            members[self.rng.choice(extra)] = self.rng.choice(ODD)
        if "binary_data" in schema["properties"] and self.rng.randrange(10) == 0:
            members["classification"] = self.rng.choice(ODD)
        if name == "data" and self.rng.random() < 0.3:
            members = {"tensor": "items"}
        elif self.rng.random() < 0.8:  # what is usual
            if "dtype" in schema["properties"]:
                members.pop("tensor", None)
                members.setdefault("dtype", "int8")
                members.setdefault("shape", [1])
                members.pop(*("base64",) if self.rng.random() < 0.7 else ("values",), None)
                if not members.keys() & {"values", "base64"}:
                    members["values"] = [0]
            if "datatype" in schema["properties"]:
                if isinstance(members.get("parameters"), dict):
                    members["parameters"].pop("binary_data_size", None)
                members.setdefault("data", [0])
                if self.rng.random() < 0.9:
                    members.setdefault("datatype", "INT64")
                    members.setdefault("shape", [1])
        return members

    def array(self, schema: dict[str, Any], name: str) -> list[Any]:
        if name == "inputs" and self.rng.random() < 0.95:
            found = [self.value(schema["items"]) for _ in range(self.rng.choice([1, 2, 3, *[len(self.roles)] * 3]))]
            for one, role in zip(found, self.rng.sample(self.roles, len(self.roles)), strict=False):
                if isinstance(one, dict) and self.rng.random() < 0.95:
                    one["name"] = "indices" if len(found) == 1 else role
            return found
        return [self.value(schema["items"]) if schema["items"] else 0 for _ in range(self.rng.choice([0, 1, 1, 2]))]

    def number(self, schema: dict[str, Any], name: str) -> Any:
        return self.rng.choice([*NUMBERS, 1.5, Raw("-0.25e3")])

    def integer(self, schema: dict[str, Any], name: str) -> Any:
        return self.rng.choice(NUMBERS)

    def boolean(self, schema: dict[str, Any], name: str) -> bool:
        return self.rng.random() < 0.5

    def string(self, schema: dict[str, Any], name: str) -> str:
        usual = {
            "fill_value": self.rng.choice(["1", "[0, 1]"]),
            "base64": "AA==",
            "tensor": "items",
            "name": self.rng.choice(["data", "indices"]) if "pattern" not in schema else self.rng.choice(OUTPUTS),
        }
        return usual.get(name, "a") if self.rng.random() < 0.9 else self.rng.choice(STRINGS)


def text(value: Any) -> str:
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {text(member)}" for key, member in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(text, value)) + "]"
    return json.dumps(value)


def number(digits: str) -> int | float:
    """JSON schema counts 1.0 as an integer, and so 1e400, which a float cannot hold."""
    exact = Decimal(digits)
    return int(exact) if exact == exact.to_integral_value() else float(exact)


def tensors(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The arrays of a request, those of a lookup's features too."""
    for name in ("data", "indices", "updates", "scales", "zero_points", "grad_output", "offsets", "weights"):
        if name in document:
            yield document[name]
    for feature in document.get("features", ()):
        yield from tensors(feature)


def is_base64(given: str) -> bool:
    try:
        b64decode(given, validate=True)
    except (ValueError, NoBase64):
        return False
    return True


def refuse(name: str) -> None:
    raise ValueError(name)


def is_json(given: str) -> bool:
    try:
        json.loads(given.encode(), parse_constant=refuse)
    except ValueError:
        return False
    return True


Rule = Callable[[dict[str, Any]], bool]
TENSOR_RULES: dict[str, Rule] = {
    "a tensor has exactly one of values and base64": lambda document: all(
        ("values" in one) != ("base64" in one) for one in tensors(document) if "tensor" not in one
    ),
    "base64 needs a shape": lambda document: all(
        "shape" in one for one in tensors(document) if "base64" in one and "tensor" not in one
    ),
    "what stands as base64 is base64": lambda document: all(
        is_base64(one["base64"]) for one in tensors(document) if "base64" in one
    ),
}


PROTOCOL_RULES: dict[str, Rule] = {
    "an input has its items in data, or behind the JSON": lambda document: all(
        ("data" in one) != ("binary_data_size" in one.get("parameters", {})) for one in document["inputs"]
    ),
    "no tensor lies in shared memory": lambda document: all(
        "shared_memory_region" not in one.get("parameters", {})
        for one in [*document["inputs"], *document.get("outputs", ())]
    ),
    "no output is classified": lambda document: all(
        not one.get("parameters", {}).get("classification") for one in document.get("outputs", ())
    ),
    "an id is Unicode": lambda document: not any("\ud800" <= c <= "\udfff" for c in document.get("id", "")),
}


def gather_8_rules(parameters: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Rule]:
    """Those on the fields of a Gather, or of its gradient, that only Gather-8 has or needs."""

    def is_gather_8(document: dict[str, Any]) -> bool:
        return parameters(document).get("dialect") == "openvino-8"

    return {
        "batch_dims beside an axis is Gather-8's": lambda document: (
            "batch_dims" not in parameters(document) or is_gather_8(document)
        ),
        "Gather-8 needs an axis": lambda document: not is_gather_8(document) or "axis" in parameters(document),
    }


def dialect_rules(signature: Signature, parameters: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Rule]:
    """The rules on the fields that depend on the dialect, which are those that `parameters` finds in a request."""
    gather = signature.operator == "gather"
    if signature.kind == "scatter":
        return {
            "the dialect has the reduction": lambda document: (
                parameters(document).get("reduction", "none")
                in signature.reductions.get(parameters(document).get("dialect", signature.default_dialect), ("none",))
            )
        }

    def is_gather_8(document: dict[str, Any]) -> bool:
        return gather and parameters(document).get("dialect") == "openvino-8"

    rules: dict[str, Rule] = {
        "a fill value is for fill": lambda document: (
            "fill_value" not in parameters(document)
            or parameters(document).get("out_of_bounds", "fill" if is_gather_8(document) else "error") == "fill"
        )
    }
    if signature.operator == "gather_elements":
        rules["GatherElements-6 needs an axis"] = lambda document: (
            parameters(document).get("dialect") != "openvino-6" or "axis" in parameters(document)
        )
    return rules | gather_8_rules(parameters) if gather else rules


def listed(items: Any) -> Any:
    """A tensor without dimensions may have its one item without a list."""
    return items if items is None or isinstance(items, list | dict) else [items]


def tolerant(document: Any, *, infer: bool) -> Any:
    """`document` as the schema wants it, where the service takes more: one item without a list; and in the protocol
    null for a member that may be left out.
    """
    if not isinstance(document, dict):
        return document
    if not infer:
        found = {
            name: {**one, "values": listed(one["values"])} if isinstance(one, dict) and "values" in one else one
            for name, one in document.items()
        }
        if isinstance(found.get("features"), list):
            found["features"] = [tolerant(feature, infer=False) for feature in found["features"]]
        return found

    def without_null(value: Any, *names: str) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: member for key, member in value.items() if member is not None or key not in names}

    found = without_null(document, "id", "parameters", "outputs")
    for name, further in (("inputs", ("parameters", "data")), ("outputs", ("parameters",))):
        if isinstance(found.get(name), list):
            found[name] = [without_null(one, *further) for one in found[name]]
            for one in found[name]:
                if isinstance(one, dict) and "parameters" in one:
                    one["parameters"] = without_null(one["parameters"], "binary_data_size", "binary_data")
                if isinstance(one, dict) and name == "inputs" and "data" in one:
                    one["data"] = listed(one["data"])
    if "parameters" in found:
        found["parameters"] = without_null(found["parameters"], "binary_data_output")
    return found


def accepts(read: Callable[[], object]) -> tuple[bool, str]:
    """Whether what stands beside the arrays is accepted: what is wrong with an array's items is another matter."""
    try:
        read()
    except GatherError as error:
        return error.code not in ("malformed_request", "invalid_field", "unsupported_dtype", "not_implemented"), str(
            error
        )
    return True, "accepted"


def hold(
    schema: dict[str, Any],
    rules: dict[str, Rule],
    maker: Maker,
    read: Callable[[bytes], object],
    *,
    infer: bool = False,
) -> None:
    """Hold what `maker` makes for `schema` against schema, rules and service."""
    validator = Draft202012Validator(schema)
    found = {True: 0, False: 0}
    broken = dict.fromkeys(rules, 0)
    for _ in range(COUNT):
        sent = text(maker.value(schema))
        wanted = tolerant(json.loads(sent, parse_float=number), infer=infer)
        allowed = validator.is_valid(wanted)
        faults = [name for name, rule in rules.items() if allowed and not rule(wanted)]
        for name in faults:
            broken[name] += 1
        accepted, said = accepts(lambda sent=sent: read(sent.encode()))  # type: ignore[misc]
        assert accepted == (allowed and not faults), f"{sent}\nschema: {allowed}, rules: {faults}, service: {said}"
        found[accepted] += 1
    assert min(found.values()) >= COUNT // 20, found
    check_all_broken(broken)


def check_all_broken(broken: dict[str, int]) -> None:
    """Among as many samples as a soak takes, each rule is what decides at least once: none is listed in vain."""
    assert COUNT < 1000 or all(broken.values()), broken


def typed(name: str, value: str, schema: dict[str, Any]) -> Any:
    """The value of a query's field as OpenAPI reads it, from text."""
    kind = schema["properties"].get(name, {}).get("type")
    if kind == "integer" and value.removeprefix("-").isdecimal() and value.isascii():
        return int(value)
    if kind == "number" and value.strip("0123456789+-.eE") == "":
        with suppress(ValueError):
            return float(value)
    return value == "true" if kind == "boolean" and value in ("true", "false") else value


USUAL = {
    "tensor": "items",
    "fill_value": "1",
    "data_shape": "2,3",
    "lda_coeff": "-0.5",
    "explain": "true",
    "sparse": "true",
}
IN_QUERY = ["", "0", "-1", "01", "1.0", "1e2", "-", "9" * 30, "true", "True", "x", "items", ".a", "a\n", "é", "onnx-1",
            "2,3", "2,", "1e400", "+.5", "nan"]  # fmt: skip


def hold_query(path: str, rules: dict[str, Rule], read: Callable[[bytes], object], one_of: Sequence[str] = ()) -> None:
    """Hold queries of `path`, mostly with one of the fields `one_of`, against schema, rules and service."""
    schema = query_schema(path)
    validator = Draft202012Validator(schema)
    rng = Random(path)
    found = {True: 0, False: 0}
    broken = dict.fromkeys(rules, 0)

    def value(name: str, field: dict[str, Any]) -> str:
        if rng.random() < 0.4:
            return rng.choice(IN_QUERY)
        return str(rng.choice(field["enum"])) if "enum" in field else USUAL.get(name, "0")

    for _ in range(COUNT):
        names = [name for name in schema["properties"] if rng.random() < 0.3]
        if one_of and rng.random() < 0.8:
            names = [name for name in names if name not in one_of] + [rng.choice(one_of)]
        sent = {name: value(name, schema["properties"][name]) for name in names}
        if rng.random() < 0.05:
            sent[rng.choice(["x", "axis", "batch_dims", "reduction", "data"])] = "0"
        query = "&".join(f"{name}={quote(given)}" for name, given in sent.items())
        wanted = {name: typed(name, given, schema) for name, given in sent.items()}
        allowed = validator.is_valid(wanted)
        faults = [name for name, rule in rules.items() if allowed and not rule(wanted)]
        for name in faults:
            broken[name] += 1
        accepted, said = accepts(lambda query=query: read(query.encode()))  # type: ignore[misc]
        assert accepted == (allowed and not faults), f"{query}\nschema: {allowed}, rules: {faults}, service: {said}"
        found[accepted] += 1
    assert min(found.values()) >= COUNT // 20, found
    check_all_broken(broken)


def binary(names: Sequence[str], metadata: dict[str, str] | None = None) -> bytes:
    """A body in safetensors with these tensors, all int64 and of no items."""
    layout = {name: {"dtype": "I64", "shape": [0], "data_offsets": [0, 0]} for name in names}
    head = json.dumps(layout if metadata is None else {"__metadata__": metadata, **layout}).encode()
    return pack("<Q", len(head)) + head
