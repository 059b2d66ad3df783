"""The OpenAPI file allows what the service answers: the table's valid cases, and each 200 of the golden corpus."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl

import httpx
import pytest
from jsonschema import Draft202012Validator

from app.operators.registry import GRADIENTS, OPERATORS
from tests.conformance.answered import ANSWERED
from tests.conformance.cases import Case
from tests.conformance.gaps import gap_of
from tests.conformance.test_conformance import chosen, failures
from tests.conformance.transports import TRANSPORTS, Grpc, Target, Transport
from tests.conftest import SOAK
from tests.golden.answers import kept
from tests.golden.requests import requests
from tests.http.server import ROOT
from tests.parity.messages import SIZE

DOCUMENT = json.loads((ROOT / "openapi" / "openapi.json").read_bytes())
OVER_HTTP = [each for each in TRANSPORTS if not isinstance(each, Grpc)]
OPERATOR_PATHS = {row.path for row in OPERATORS.values()} | {row.path for row in GRADIENTS.values()} | {"/lookup"}
INFER = "/v2/models/{name}/infer"
SHARE = 1 if SOAK else 8


def validator(path: str) -> Draft202012Validator:
    """What judges a JSON body that is sent to a path."""
    schema = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return Draft202012Validator({**schema, "components": DOCUMENT["components"]})


VALIDATORS = {path: validator(path) for path in (*OPERATOR_PATHS, INFER, "/tensors/{name}/scatter")}


def template(path: str) -> str:
    """The path as the file has it."""
    return INFER if path.endswith("/infer") else "/tensors/{name}/scatter" if path.startswith("/tensors/") else path


def faults(url: str, body: bytes, size: str | None) -> list[str]:
    """What the file does not allow of a request with a JSON body, or JSON before binary items, or a query."""
    path, _, query = url.partition("?")
    path = template(path)
    named = {
        one["name"]: one["schema"] for one in DOCUMENT["paths"][path]["post"]["parameters"] if one["in"] == "query"
    }
    found = [
        f"{name}={value}"
        for name, value in parse_qsl(query, keep_blank_values=True)
        if value not in named.get(name, {"enum": ()}).get("enum", (value,))
    ]
    text = body if size is None else body[: int(size)]
    if text.startswith(b"{"):
        document = taken(json.loads(text), null=path == INFER)
        found += [error.message for error in VALIDATORS[path].iter_errors(document)]
    return found


def taken(value: Any, *, null: bool) -> Any:
    """A document without what the service takes besides: one item without a list, and null in the protocol."""
    if isinstance(value, list):
        return [taken(each, null=null) for each in value]
    if not isinstance(value, dict):
        return value
    found = {name: taken(each, null=null) for name, each in value.items() if each is not None or not null}
    if "values" in found and not isinstance(found["values"], list):
        found["values"] = [found["values"]]
    return found


@pytest.mark.parametrize("transport", OVER_HTTP, ids=lambda each: each.name)
def test_a_valid_request_is_one_that_the_file_allows(transport: Transport) -> None:
    def judged(request: httpx.Request) -> httpx.Response:
        wrong = faults(request.url.raw_path.decode(), request.content, request.headers.get(SIZE))
        return httpx.Response(400, json={"status": 400, "wrong": wrong})

    with httpx.Client(base_url="http://localhost", transport=httpx.MockTransport(judged)) as client:

        def check(case: Case) -> None:
            if case.error is None and gap_of(transport, case) is None:
                problem = transport.send(Target(client, None), case).problem
                assert problem is not None
                assert not problem["wrong"]

        failures(chosen(ANSWERED, transport, SHARE), check)


def test_whatever_is_answered_is_allowed_by_the_file() -> None:
    """Also where a request of the golden corpus is odd: what the file forbids is refused."""
    statuses = {name: line.split(" ", 3)[2] for name, line in kept().items()}
    looked_at = 0
    for asked in requests():
        path = template(asked.target.partition("?")[0])
        if asked.method == "POST" and statuses[asked.name] == "200" and path in VALIDATORS:
            looked_at += 1
            assert not faults(asked.target, asked.body, asked.headers.get(SIZE)), (asked.name, asked.body)
    assert looked_at > 100
