"""The OpenAPI file: it is the one in the repository, it describes every route, and its examples are true."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import jsonschema
import numpy as np
import pytest
from pydantic import BaseModel

from app.api.schemas import examples
from app.errors import CATALOGUE, CODES
from app.operators import registry
from app.requests.schemas.operator_request import operator_request
from tests.http.server import GATHERND, ROOT, run_program
from tests.http.tensors import NPY, npy

pytestmark = pytest.mark.long

METHODS = ("get", "put", "post", "delete", "patch", "head", "options")
OPERATORS: dict[str, type[BaseModel]] = {
    name: operator_request(row.signature) for name, row in registry.OPERATORS.items()
}


@pytest.fixture(scope="session")
def document(server: Any) -> dict[str, Any]:
    found: dict[str, Any] = server.shared_client().get("/openapi.json").json()
    return found


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (path, method, operation)
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if method in METHODS
    ]


def test_the_file_in_the_repository_is_the_one_that_is_served(document: dict[str, Any]) -> None:
    printed = run_program([GATHERND, "openapi"]).stdout.encode()
    assert json.loads(printed) == document
    assert (ROOT / "openapi" / "openapi.json").read_bytes() == printed, "make openapi writes it anew"


def test_what_any_request_may_be_refused_with_is_described(document: dict[str, Any]) -> None:
    """The limit on connections and a stop refuse requests of every kind; keys are asked for where they are needed."""
    for path, method, operation in operations(document):
        answers = operation["responses"]
        assert {"`overloaded`", "`not_ready`"} <= set(answers["503"]["description"].split()), (path, method)
        assert "Retry-After" in answers["503"]["headers"]
        assert ("401" in answers) == (operation.get("security") != []), (path, method)
        assert "401" not in answers or "WWW-Authenticate" in answers["401"]["headers"]
        codes = [code for answer in answers.values() for code in re.findall(r"`([a-z_]+)`", answer["description"])]
        assert len(codes) == len(set(codes)), (path, method)


ON_EVERY_ANSWER = {"content-length", "content-type", "date", "server-timing", "x-content-type-options", "x-request-id"}
OF_PAGES = {"content-security-policy", "referrer-policy"}
INFER = "/v2/models/{name}/infer"


@pytest.fixture(scope="module")
def table(server: Any) -> str:
    """The name of a resident tensor of two rows."""
    content = npy(np.zeros((2, 2), np.float32))
    answer = server.shared_client().put("/tensors/openapi-table", content=content, headers={"content-type": NPY})
    assert answer.status_code == 201
    return "openapi-table"


@pytest.mark.parametrize(
    ("path", "last", "sent", "status"),
    [
        ("/", "", {}, 200),
        ("/", "", {"if-none-match": "*"}, 304),
        ("/", "", {"if-none-match": "x"}, 422),
        ("/docs", "", {"if-none-match": "*"}, 304),
        ("/docs/{asset}", "swagger-ui.css", {}, 200),
        ("/docs/{asset}", "swagger-ui-bundle.js", {"if-none-match": "*"}, 304),
        ("/assets/{asset}", "main.js", {}, 200),
        ("/assets/{asset}", "page.css", {}, 200),
        ("/assets/{asset}", "favicon.svg", {}, 200),
        ("/assets/{asset}", "none", {}, 404),
        ("/favicon.ico", "", {"if-none-match": "*"}, 304),
        ("/errors", "", {"if-none-match": "*"}, 304),
        ("/errors/{code}", "internal", {"if-none-match": "x"}, 422),
        ("/tensors/{name}", "openapi-table", {"if-none-match": "*"}, 304),
        ("/tensors/{name}/content", "openapi-table", {"if-none-match": "*"}, 304),
        ("/tensors/{name}/content", "openapi-table", {"accept": NPY}, 200),
    ],
)
def test_an_answer_to_a_get_is_described(
    client: httpx.Client, document: dict[str, Any], table: str, path: str, last: str, sent: dict[str, str], status: int
) -> None:
    answer = client.get(re.sub(r"\{\w+\}", last, path), headers=sent)
    assert answer.status_code == status
    check_described(document["paths"][path]["get"], answer)


@pytest.mark.parametrize(
    ("model", "parameters", "status"),
    [
        ("openapi-table", {"out_of_bounds": "clip"}, 200),
        ("openapi-table", {"out_of_bounds": "error"}, 200),
        ("lookup", {"lookup": '{"features":[{"tensor":"openapi-none"}]}'}, 404),
        ("lookup", {"lookup": '{"features":[{"tensor":"openapi-table"}]}'}, 200),
        ("lookup", {"lookup": '{"features":[{"tensor":"openapi-table","pooling":"sum"}]}'}, 422),
    ],
)
def test_an_answer_to_an_infer_request_is_described(
    server: Any, document: dict[str, Any], table: str, model: str, parameters: dict[str, Any], status: int
) -> None:
    inputs = [{"name": "indices", "datatype": "INT64", "shape": [1, 1], "data": [1]}]
    if model == "lookup":
        inputs[0] |= {"name": "0.indices", "shape": [1]}
        if status == 422:
            inputs.append({"name": "0.offsets", "datatype": "INT64", "shape": [1], "data": [7]})
    asked = {"inputs": inputs, "parameters": parameters}
    headers = {"accept-encoding": "gzip"}
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
        answer = client.post(INFER.format(name=model), json=asked, headers=headers)
    assert answer.status_code == status, answer.text
    check_described(document["paths"][INFER]["post"], answer)


def check_described(operation: dict[str, Any], answer: httpx.Response) -> None:
    """Status, code, media type and header fields of `answer` stand in the description of its operation."""
    described = operation["responses"][str(answer.status_code)]
    fields = {name.lower() for name in described.get("headers", {})} | ON_EVERY_ANSWER
    if "pages" in operation["tags"]:
        fields |= OF_PAGES
    assert set(answer.headers) <= fields
    if answer.content:
        assert answer.headers["content-type"].partition(";")[0] in described["content"]
    if answer.status_code >= 400:
        assert f"`{answer.json()['code']}`" in described["description"]


def test_an_error_is_described_as_a_problem_with_known_codes(document: dict[str, Any]) -> None:
    for path, method, operation in operations(document):
        for status, answer in operation["responses"].items():
            if int(status) < 400 or path.startswith("/v2"):
                continue
            assert list(answer["content"]) == ["application/problem+json"], (path, method, status)
            codes = re.findall(r"`([a-z_]+)`", answer["description"])
            assert codes, (path, method, status)
            for code in codes:
                assert code in CODES
                assert CATALOGUE[code].status == int(status)


def schema_of(document: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    """A media type's schema that stands alone."""
    return {**content["schema"], "components": document["components"]}


def body_schema(document: dict[str, Any], operator: str) -> dict[str, Any]:
    return schema_of(document, document["paths"][f"/{operator}"]["post"]["requestBody"]["content"]["application/json"])


def answer_schema(document: dict[str, Any], operator: str, status: int) -> dict[str, Any]:
    content = document["paths"][f"/{operator}"]["post"]["responses"][str(status)]["content"]
    return schema_of(document, content["application/json" if status == 200 else "application/problem+json"])


SHOWN = [(operator, name) for operator, shown in examples.REQUESTS.items() for name in shown]


@pytest.mark.parametrize(("operator", "name"), SHOWN)
def test_a_request_that_is_shown_has_the_answer_that_is_shown(
    client: httpx.Client, document: dict[str, Any], operator: str, name: str
) -> None:
    _, sent, expected = examples.REQUESTS[operator][name]
    answer = client.post(f"/{operator}", json=sent)
    assert answer.status_code == 200, answer.text
    assert answer.json() == expected
    jsonschema.validate(sent, body_schema(document, operator))
    jsonschema.validate(expected, answer_schema(document, operator, 200))
    operation = document["paths"][f"/{operator}"]["post"]
    assert operation["requestBody"]["content"]["application/json"]["examples"][name]["value"] == sent
    assert operation["responses"]["200"]["content"]["application/json"]["examples"][name]["value"] == expected


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_lookup_that_is_shown_has_the_answer_that_is_shown(
    client: httpx.Client, document: dict[str, Any], operator: str
) -> None:
    data, path = examples.RESIDENT_DATA, f"/tensors/{examples.RESIDENT_NAME}"
    content = np.array(data["values"], data["dtype"]).reshape(data["shape"])
    sent, expected = examples.RESIDENT[operator]
    made = client.put(path, content=npy(content), headers={"content-type": NPY}).json()
    told = {"data_etag": made["etag"], "version": made["version"]} if "data_etag" in expected else {}
    try:
        assert client.post(f"/{operator}", json=sent).json() == expected | told
    finally:
        client.delete(path)
    jsonschema.validate(sent, body_schema(document, operator))
    jsonschema.validate(expected, answer_schema(document, operator, 200))
    operation = document["paths"][f"/{operator}"]["post"]
    assert operation["requestBody"]["content"]["application/json"]["examples"]["resident"]["value"] == sent
    assert operation["responses"]["200"]["content"]["application/json"]["examples"]["resident"]["value"] == expected


def test_every_error_that_is_shown_has_the_form_of_an_error(document: dict[str, Any]) -> None:
    """Their commands and answers are tested with the pages that show them, see test_error_pages.py."""
    shown = document["components"]["examples"]
    assert list(shown) == list(CODES)
    for code, example in shown.items():
        assert example["value"]["code"] == code
        jsonschema.validate(example["value"], {**document, "$ref": "#/components/schemas/Problem"})
