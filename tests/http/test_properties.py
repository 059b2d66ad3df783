"""Random requests of every kind, valid and not, against the rules and the gather stated once more in rules.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod
from random import Random
from struct import unpack
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import samples
from tests.http.forms import COMPLEX, FLOATS, INTEGERS, TYPES, items, nested, packed, same
from tests.http.rules import CODES, DIALECTS, bad_indices, broken, gathered, is_gather_8, position

COUNT = 1200
EXAMPLES = samples(COUNT)
REQUESTS = settings(
    max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
SIGNS = ("", "a", "ä", "日本", "🙂", '"', "\\", "\x00", "\n", "/", "a" * 50, "\u2028", "\U0010ffff")
SPECIAL = ("NaN", "Infinity", "-Infinity", 0.0, -0.0, 1, -1)
EXTREMES = (2**63 - 1, -(2**63), 2**62, -(2**62), 2**32, -(2**32))


def value_of(dtype: str, source: Random) -> Any:
    """A value that the type holds exactly."""
    if dtype == "bool":
        return source.random() < 0.5
    if dtype == "string":
        return source.choice(SIGNS)
    if dtype in INTEGERS:
        bits = int(dtype.strip("uint"))
        low, high = (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return source.choice((low, high, source.randint(low, high)))
    if dtype in COMPLEX:
        part = "float32" if dtype == "complex64" else "float64"
        return [value_of(part, source), value_of(part, source)]
    if source.random() < 0.2:
        return source.choice(SPECIAL)
    size, code = {"float16": (2, "<e"), "bfloat16": (2, "<f"), "float32": (4, "<f"), "float64": (8, "<d")}[dtype]
    raw = source.randbytes(size)
    value: float = unpack(code, bytes(2) + raw if dtype == "bfloat16" else raw)[0]
    return value if value - value == 0 else 1.5  # neither infinite nor NaN


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Path and body, flat, of a request that is valid but for what is spoiled at the end."""
    path, dialect = draw(st.sampled_from(sorted(DIALECTS)))
    data_types, index_types, _ = DIALECTS[path, dialect]
    source = draw(st.builds(Random, st.integers(0, 2**32)))
    dtype = draw(st.sampled_from(sorted(data_types)))
    shape = draw(
        st.lists(st.sampled_from((1, 2, 3, 4, 2, 3, 0)), min_size=1, max_size=6).filter(lambda s: prod(s) <= 600)
    )
    body: dict[str, Any] = {"data": {"dtype": dtype}, "indices": {"dtype": draw(st.sampled_from(sorted(index_types)))}}
    if dialect != "onnx-13" or draw(st.booleans()):
        body["dialect"] = dialect
    if path == "/gather":
        axis = draw(st.integers(-len(shape), len(shape) - 1))
        if axis or dialect == "openvino-8" or draw(st.booleans()):
            body["axis"] = axis
        index_shape = draw(st.lists(st.sampled_from((1, 2, 3, 0)), max_size=4))
        if dialect == "openvino-8":
            b = draw(st.integers(0, axis % len(shape)))
            index_shape = [*shape[:b], *index_shape]
            if b or draw(st.booleans()):
                body["batch_dims"] = draw(st.sampled_from([b, b - len(index_shape)])) if b < len(index_shape) else b
            if draw(st.booleans()):
                body["out_of_bounds"] = "error"
    elif path == "/gather_elements":
        axis = draw(st.integers(-len(shape), len(shape) - 1))
        if axis or draw(st.booleans()):
            body["axis"] = axis
        index_shape = [draw(st.sampled_from((size, size, size // 2, min(size, 1)))) for size in shape]
        index_shape[axis] = draw(st.sampled_from((1, 2, 3, 5, 0)))
    else:
        b = draw(st.integers(0, len(shape) - 1)) if dialect != "onnx-11" else 0
        if b or draw(st.booleans()):
            body["batch_dims"] = b
        middle = draw(st.lists(st.sampled_from((1, 2, 3, 1, 2, 0)), max_size=3))
        index_shape = [*shape[:b], *middle, draw(st.integers(1, len(shape) - b))]
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 2)))):
        spoil_shape(path, body, shape, index_shape, source)
    body["data"] |= {"shape": shape, "values": [value_of(dtype, source) for _ in range(prod(shape))]}
    spread = draw(st.sampled_from((0, 0, 0, 0.02, 0.5)))
    body["indices"] |= {"shape": index_shape, "values": indices_for(path, body, shape, index_shape, source, spread)}
    for _ in range(draw(st.sampled_from((0, 0, 0, 1)))):
        spoil_value(body, source)
    return path, body


def spoil_shape(path: str, body: dict[str, Any], shape: list[int], index_shape: list[int], source: Random) -> None:
    name = "batch_dims" if path == "/gathernd" or (is_gather_8(path, body) and source.random() < 0.5) else "axis"
    match source.randrange(8):
        case 0:
            body[name] = source.choice((-7, -1, 1, 2, 6, 7, 2**63, -(2**64)))
        case 1 if index_shape:
            index_shape[source.randrange(len(index_shape))] = source.choice((0, 1, 2, 5))
        case 2:
            shape[source.randrange(len(shape))] = source.choice((0, 1, 2, 5))
        case 3:
            del index_shape[: source.choice((1, 9))]
        case 4:
            body["data"]["dtype"] = source.choice((*TYPES, "float8"))
        case 5:
            body["indices"]["dtype"] = source.choice((*TYPES, "int"))
        case 6:
            body["device"] = source.choice(("gpu", "tpu", "cpu", "auto"))
        case 7:
            body[source.choice(("Axis", "batch_dim", name))] = 0


def indices_for(
    path: str, body: dict[str, Any], shape: list[int], index_shape: list[int], source: Random, spread: float
) -> list[Any]:
    """Good indices as far as the shapes allow that, and bad ones by the share `spread`."""
    dtype = body["indices"]["dtype"]
    wrap = DIALECTS[path, body.get("dialect", "onnx-13")][2]
    start = body.get("batch_dims" if path == "/gathernd" else "axis", 0)
    values: list[Any] = []
    for item in range(prod(index_shape)):
        j = item % index_shape[-1] if path == "/gathernd" and index_shape else 0
        place = start + j
        size = shape[place] if -len(shape) <= place < len(shape) else 1
        value = source.randrange(-size if wrap else 0, size) if size else 0
        if source.random() < spread:
            value = source.choice((size, -size - 1, size + 1, -1, *EXTREMES))
        values.append(_fitting(dtype, value))
    return values


def _fitting(dtype: str, value: int) -> Any:
    """`value`, or what is nearest to it in a type that cannot hold it."""
    if dtype not in INTEGERS:
        return {"bool": False, "string": "0", "complex64": [0, 0], "complex128": [0, 0]}.get(dtype, 0)
    bits = int(dtype.strip("uint"))
    low, high = (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return max(low, min(high, value))


def spoil_value(body: dict[str, Any], source: Random) -> None:
    given = body[source.choice(("data", "indices"))]
    values = given["values"]
    match source.randrange(3):
        case 0:
            values.append(values[-1] if values else 0)
        case 1 if values:
            del values[source.randrange(len(values))]
        case 2 if values:
            values[source.randrange(len(values))] = source.choice(
                (None, 2**70, -0.5, "x", True, "NaN", 3, 1e39, "\ud800")
            )


FORMS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"flat": dict, "nested": nested, "base64": packed}


def _send(
    client: httpx.Client, path: str, body: dict[str, Any], forms: tuple[str, str], encoding: str
) -> httpx.Response:
    sent = {
        **body,
        "data": FORMS[forms[0]](body["data"]),
        "indices": FORMS[forms[1]](body["indices"]),
        "output_encoding": encoding,
    }
    return client.post(path, content=json.dumps(sent))


def test_a_request_is_answered_as_the_rules_say(every_client: httpx.Client) -> None:
    compared = 0

    @REQUESTS
    @given(requests(), st.tuples(*[st.sampled_from(sorted(FORMS))] * 2), st.sampled_from(("values", "base64")))
    def compare(request_: tuple[str, dict[str, Any]], forms: tuple[str, str], encoding: str) -> None:
        nonlocal compared
        _is_answered_as_the_rules_say(every_client, *request_, forms, encoding)
        compared += 1

    compare()
    assert compared >= EXAMPLES


def _is_answered_as_the_rules_say(
    client: httpx.Client, path: str, body: dict[str, Any], forms: tuple[str, str], encoding: str
) -> None:
    faults = broken(path, body)
    if set(faults) & {"dtype", "count", "values"}:
        forms = ("flat", "flat")  # the other forms cannot even say it
    answer = _send(client, path, body, forms, encoding)
    about = (body, forms, answer.text[:600])
    if faults:
        assert answer.status_code == 422, about
        assert answer.json()["code"] in CODES[faults[0]], (faults, about)
        if faults[0] == "index values":
            _names_every_bad_index(path, body, forms[1], answer.json())
        return
    assert answer.status_code == 200, about
    output = answer.json()["output"]
    shape, values = gathered(path, body)
    if output["dtype"] in INTEGERS:  # of which 0.0 and 1e2 are, too
        values = [int(value) for value in values]
    assert output["shape"] == shape, about
    assert output["dtype"] == body["data"]["dtype"], about
    assert ("base64" in output) == (encoding == "base64"), about
    assert same(output["dtype"], items(output), values), about


def _names_every_bad_index(path: str, body: dict[str, Any], form: str, problem: dict[str, Any]) -> None:
    wrong = bad_indices(path, body)
    index_shape = body["indices"]["shape"]
    assert problem["total"] == len(wrong)
    expected = []
    for bad in wrong[:10]:
        where = position(bad.item, index_shape)
        pointer = {
            "flat": f"/indices/values/{bad.item}",
            "nested": "/".join(("/indices/values", *map(str, where))),
            "base64": "/indices/base64",
        }[form]
        if not index_shape:
            pointer = problem["errors"][0]["pointer"]  # a scalar has no coordinates: tested by name elsewhere
        expected.append(
            {
                "pointer": pointer,
                "position": where,
                "value": bad.value,
                "axis": bad.axis,
                "size": bad.size,
                "allowed": bad.allowed,
            }
        )
    assert problem["errors"] == expected


@pytest.mark.slow
def test_the_requests_are_of_every_kind() -> None:
    """The strategy reaches what it is for: each type, each dialect, ranks 1 to 6, and each rule first broken."""
    seen: set[Any] = set()

    @settings(
        max_examples=4000, database=None, suppress_health_check=list(HealthCheck), derandomize=True, deadline=None
    )
    @given(requests())
    def look(request_: tuple[str, dict[str, Any]]) -> None:
        path, body = request_
        faults = broken(path, body)
        seen.add(faults[0] if faults else "valid")
        if not faults:
            seen.add(body["data"]["dtype"])
            seen.add((path, body.get("dialect", "onnx-13")))
            seen.add(("rank", len(body["data"]["shape"])))
            seen.add(("empty", prod(body["data"]["shape"]) == 0))

    look()
    assert set(TYPES) <= seen
    assert set(DIALECTS) <= seen
    assert {("rank", rank) for rank in range(1, 7)} <= seen
    assert {("empty", True), ("empty", False), "valid"} <= seen
    assert set(CODES) - {"framing", "limits"} <= seen
    assert set(FLOATS) <= seen
