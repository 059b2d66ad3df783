"""Resident memory against the budget, for every route and format: what a request makes the service take is charged."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from app.errors import CODES
from tests.conftest import slow_but_for
from tests.http.conftest import Start
from tests.http.held import metric
from tests.http.lookups import Given, as_json, as_safetensors, loaded
from tests.http.raw import TINY
from tests.http.server import Server
from tests.http.tensors import put_raw, put_strings
from tests.http.test_tls import make_pair
from tests.oip.bodies import octets

MIB = 1 << 20
BINARY = "Content-Type: application/x-safetensors"
JSON = "Content-Type: application/json"
Check = Callable[[bytes], bool]
BUDGET = 160 * MIB
MARGIN = BUDGET // 8 * 3 + 64 * MIB
"""What the service may hold beside its budget: the budget of small requests, freed memory that the C library keeps, and
blocks of outputs that are kept, an eighth of the budget each; and 64 MiB for buffers of the network and of threads."""
REFUSED = {413: "payload_too_large", 503: "overloaded"}
TABLE = np.arange(256, dtype=np.uint8)
ROWS = np.arange(65_536, dtype=np.float32).reshape(4096, 16)
"""The resident tensor `table`; `flat` has 2^20 float64, `texts` 1,000 strings."""


@dataclass
class Ask:
    """One request: its path, body and header fields; `right` judges the body of an answer with status 200.

    `refusals` are codes that it may meet besides those of a full or too small budget.
    """

    path: str
    body: bytes
    fields: tuple[str, ...] = (JSON,)
    right: Check = lambda body: True
    refusals: tuple[str, ...] = ()
    chunked: bool = False


def ordered(count: int, dtype: Any = np.uint8) -> Any:
    return (np.arange(count) % 256).astype(dtype)


def texts(count: int) -> list[str]:
    return [f"\N{GRINNING FACE}some text {number}" for number in range(count)]


def json_call(data: Any, indices: Any, **more: Any) -> bytes:
    return json.dumps({"data": data, "indices": indices, **more}, ensure_ascii=False).encode()


def deflated(ask: Ask) -> Ask:
    fields = (*ask.fields, "Content-Encoding: gzip", "Accept-Encoding: gzip")
    return replace(ask, body=gzip.compress(ask.body, 1), fields=fields)


def narrow() -> Ask:
    """uint8 indices in the binary format, 24 MiB of them; the output is they themselves."""
    indices = ordered(24 * MIB)
    return Ask(
        "/gathernd?dialect=openvino-8", save({"data": TABLE, "indices": indices.reshape(-1, 1)}), (BINARY,),
        lambda body: bool(np.array_equal(load(body)["output"], indices)),
    )  # fmt: skip


def binary_infer(parts: dict[str, tuple[str, Any]], **parameters: Any) -> tuple[bytes, tuple[str, ...]]:
    """An infer request with its items behind the JSON."""
    inputs, raws = [], []
    for name, (datatype, array) in parts.items():
        raw = octets(array)
        shape = [array.size] if name == "data" else [array.size, 1]
        size = {"binary_data_size": len(raw)}
        inputs.append({"name": name, "datatype": datatype, "shape": shape, "parameters": size})
        raws.append(raw)
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True, **parameters}}).encode()
    return head + b"".join(raws), (f"Inference-Header-Content-Length: {len(head)}",)


def v2_strings() -> Ask:
    data = np.array(texts(400_000), object)
    body, fields = binary_infer({"data": ("BYTES", data), "indices": ("INT64", np.arange(400_000)[::-1].copy())})
    last = data[0].encode()
    return Ask("/v2/models/gathernd/infer", body, fields, lambda body: body.endswith(last))


def json_narrow() -> Ask:
    count = 8 * MIB
    body = (
        b'{"dialect":"openvino-8","data":{"dtype":"uint8","shape":[2],"values":[5,9]},"output_encoding":"base64",'
        b'"indices":{"dtype":"uint8","shape":[%d,1],"values":[' % count
    )
    return Ask("/gathernd", body + b",".join([b"1"] * count) + b"]}}", right=lambda body: len(body) > count)


def json_strings() -> Ask:
    count = 400_000
    data = {"dtype": "string", "shape": [count], "values": texts(count)}
    indices = {"dtype": "int64", "shape": [count, 1], "values": list(range(count))}
    return Ask(
        "/gathernd", json_call(data, indices), right=lambda body: json.loads(body)["output"]["values"] == texts(count)
    )


def repeated_strings() -> Ask:
    """Few strings that are long, asked for often: the output is much more than the request."""
    data = {"dtype": "string", "shape": [1], "values": ["x" * MIB]}
    indices = {"dtype": "int64", "shape": [900, 1], "values": [0] * 900}
    return Ask("/gathernd", json_call(data, indices), refusals=("payload_too_large",))


def answer_in_json(encoding: str) -> Ask:
    """A small request whose answer is large."""
    count = 3 * MIB
    data = {"dtype": "float64", "shape": [1, 1024], "values": ["NaN", 0.1] * 512}
    indices = {"dtype": "int64", "shape": [count // 1024, 1], "values": [0] * (count // 1024)}
    return Ask("/gathernd", json_call(data, indices, output_encoding=encoding))


def scatter(form: str) -> Ask:
    rows = np.arange(MIB, dtype=np.int64)
    if form == "binary":
        body = save({"indices": rows.reshape(-1, 1), "updates": ordered(MIB, np.float64)})
        return Ask("/tensors/flat/scatter", body, (BINARY,))
    indices = {"dtype": "int64", "shape": [MIB, 1], "values": [0] * MIB}
    updates = {"dtype": "float64", "shape": [MIB], "values": [1] * MIB}
    body = json.dumps({"indices": indices, "updates": updates, "reduction": "add"}).encode()
    return Ask("/tensors/flat/scatter", body, (JSON, "Idempotency-Key: a-key"))


def bad_last_index() -> Ask:
    indices = np.zeros((24 * MIB, 1), np.uint8)
    indices[-1] = 255
    body = save({"data": TABLE[:9], "indices": indices})
    return Ask("/gathernd?dialect=openvino-8", body, (BINARY,), lambda _: False, ("index_out_of_bounds",))


def resident_strings() -> Ask:
    rows = np.arange(300_000) % 1000
    indices = {"dtype": "int64", "shape": [len(rows), 1], "values": rows.tolist()}
    return Ask("/gathernd", json_call({"tensor": "texts"}, indices))


def is_scattered(body: bytes) -> bool:
    output = load(body)["output"]
    return bool((output[: 2 * MIB] == 1).all() and not output[2 * MIB :].any())


def scatter_binary() -> Ask:
    """A quarter of the data is updated."""
    indices = np.arange(2 * MIB, dtype=np.int32)
    body = save({"data": np.zeros(8 * MIB, np.float32), "indices": indices, "updates": np.ones(2 * MIB, np.float32)})
    return Ask("/scatter_elements?reduction=add", body, (BINARY,), is_scattered)


def scatter_strings() -> Ask:
    """Strings whose frames are joined with those of the updates."""
    count = 200_000
    data = {"dtype": "string", "shape": [count], "values": texts(count)}
    indices = {"dtype": "int64", "shape": [count, 1], "values": list(range(count))[::-1]}
    new = [text[::-1] for text in texts(count)]
    updates = {"dtype": "string", "shape": [count], "values": new}
    return Ask(
        "/scatternd", json_call(data, indices, updates=updates),
        right=lambda body: json.loads(body)["output"]["values"] == new[::-1],
    )  # fmt: skip


def backward_binary(route: str, query: str) -> Ask:
    """1.5 million slices of four float32 that go to 1,000 places, in turn."""
    count = 1_500_000
    indices = np.arange(count) % 1000
    shaped = indices.reshape(-1, 1) if route.startswith("/gathernd") else indices
    body = save({"grad_output": np.ones((count, 4), np.float32), "indices": shaped})
    name = "grad_values" if "sparse" in query else "grad_data"
    return Ask(f"{route}?{query}", body, (BINARY,), lambda body: bool((load(body)[name] == count // 1000).all()))


def backward_far() -> Ask:
    """As many places as a tensor may have, most of them empty."""
    places = np.arange(1_500_000)[::-1].copy() << 12
    body = save({"indices": places.reshape(-1, 1), "grad_output": np.ones(1_500_000, np.float32)})
    return Ask(
        f"/gathernd/backward?data_shape={1 << 33}&sparse=true", body, (BINARY,),
        lambda body: bool(np.array_equal(load(body)["grad_indices"].ravel(), places[::-1])),
    )  # fmt: skip


def lookup_binary() -> Ask:
    """A million bags of four rows."""
    count = 4_000_000
    indices, offsets = (np.arange(count) % 4096).astype(np.int32), np.arange(0, count, 4, dtype=np.int32)
    wanted = ROWS.reshape(-1, 4, 16).astype(np.float64).sum(axis=1)  # whole numbers, which float32 has exactly
    return Ask(
        "/lookup", as_safetensors([Given("table", indices, offsets, pooling="sum")]), (BINARY,),
        lambda body: bool(np.array_equal(loaded(body)[0]["output"][:1024], wanted)),
    )  # fmt: skip


def lookup_rows() -> Ask:
    """Rows of several features, joined."""
    body = as_safetensors([Given("table", np.arange(number, number + 400_000) % 4096) for number in range(3)])
    return Ask(
        "/lookup", body, (BINARY,),
        lambda body: bool(np.array_equal(loaded(body)[0]["output"][:4000, 16:32], ROWS[1:4001])),
    )  # fmt: skip


def lookup_replaced() -> Ask:
    """int32 indices of which each second one is out of bounds; bags of two."""
    count = 2_000_000
    indices = np.where(np.arange(count) % 2, 2**30, 1).astype(np.int32)
    given = Given("table", indices, np.arange(0, count, 2, dtype=np.int32), pooling="max")

    def right(body: bytes) -> bool:
        outputs, told = loaded(body)
        return bool(told["replaced"] == count // 2 and outputs["output"].shape == (count // 2, 16))

    return Ask("/lookup", as_safetensors([given], out_of_bounds="clip"), (BINARY,), right)


def lookup_bad_offsets() -> Ask:
    """Every offset but the first is beyond the indices."""
    offsets = np.full(8 * MIB, 9, np.int32)
    offsets[0] = 0
    given = Given("flat", np.zeros(3, np.int32), offsets, pooling="mean")
    return Ask("/lookup", as_safetensors([given]), (BINARY,), lambda _: False, ("offsets_invalid",))


def lookup_large_answer() -> Ask:
    """A small request whose answer is large."""
    given = Given("table", np.full(150_000, 4095, np.int32))
    body = json.dumps(as_json([given, given], output_encoding="base64", concat=False)).encode()
    return Ask("/lookup", body, right=lambda body: len(body) > 16 * MIB)


def lookup_strings() -> Ask:
    given = Given("texts", np.arange(200_000) % 1000)
    body = json.dumps(as_json([given, given])).encode()
    return Ask("/lookup", body, right=lambda body: json.loads(body)["output"]["values"][-1] == texts(1000)[-1])


CASES: dict[str, Callable[[], Ask]] = {
    "safetensors, uint8 indices": narrow,
    "safetensors, deflated": lambda: deflated(narrow()),
    "safetensors, in chunks": lambda: replace(narrow(), chunked=True),
    "safetensors, the last index out of bounds": bad_last_index,
    "v2, BYTES": v2_strings,
    "v2, BYTES, deflated both ways": lambda: deflated(v2_strings()),
    "JSON, uint8 indices": json_narrow,
    "JSON, strings": json_strings,
    "JSON, one string 900 times": repeated_strings,
    "JSON, resident strings": resident_strings,
    "JSON, float64 to values": lambda: answer_in_json("values"),
    "JSON, float64 to base64": lambda: answer_in_json("base64"),
    "scatter, safetensors": lambda: scatter("binary"),
    "scatter, JSON": lambda: scatter("json"),
    "scatter_elements, safetensors": scatter_binary,
    "scatternd, JSON, strings": scatter_strings,
    "gather/backward, safetensors": lambda: backward_binary("/gather/backward", "data_shape=1000,4"),
    "gathernd/backward, safetensors, sparse": lambda: backward_binary(
        "/gathernd/backward", "data_shape=1000,4&sparse=true"
    ),
    "gathernd/backward, safetensors, far places": backward_far,
    "lookup, safetensors, bags": lookup_binary,
    "lookup, safetensors, all offsets wrong": lookup_bad_offsets,
    "lookup, safetensors, clip": lookup_replaced,
    "lookup, safetensors, rows, joined": lookup_rows,
    "lookup, a large answer in base64": lookup_large_answer,
    "lookup, strings": lookup_strings,
}
FEW = (
    "safetensors, uint8 indices",
    "v2, BYTES",
    "JSON, one string 900 times",
    "JSON, float64 to values",
    "lookup, safetensors, bags",
    "lookup, safetensors, all offsets wrong",
    "scatter_elements, safetensors",
    "gathernd/backward, safetensors, sparse",
)
"""Those of `make test`."""


def ask(server: Server, one: Ask) -> str:
    """Send it; its status or code, which must be one that it may meet, and the answer right."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=120)
    try:
        pieces = (one.body[at : at + (1 << 16)] for at in range(0, len(one.body), 1 << 16))
        fields = dict(line.split(": ", 1) for line in one.fields)
        with suppress(ConnectionError):  # a refusal may come before the whole body has been sent
            connection.request("POST", one.path, pieces if one.chunked else one.body, fields)
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status == 200:
        assert one.right(gzip.decompress(body) if answer.headers["Content-Encoding"] == "gzip" else body)
        return "200"
    code = json.loads(body)["code"]
    assert code in CODES
    assert code in one.refusals or REFUSED.get(answer.status) == code, body
    return str(code)


@pytest.fixture(scope="module")
def measured(start: Start) -> Iterator[tuple[Server, int]]:
    """A server with a small budget, warmed up, and what it holds then."""
    flags = ("--memory-budget", str(BUDGET), "--max-body-bytes", "1GiB", "--threads", "2")
    with start(*flags) as server, server.client() as client:
        assert put_raw(client, "flat", np.zeros(MIB)).status_code == 201
        assert put_strings(client, "texts", texts(1000)).status_code == 201
        assert put_raw(client, "table", ROWS).status_code == 201
        for _ in range(20):
            assert ask(server, Ask("/gathernd", TINY)) == "200"
        yield server, server.forget_peak()


def check_peak(measured: tuple[Server, int]) -> None:
    server, before = measured
    grown = server.peak() - before
    assert grown <= BUDGET + MARGIN, f"{grown / MIB:.0f} MiB under a budget of {BUDGET / MIB:.0f}"
    assert metric(server, "gathernd_memory_used_bytes") == 0, "something stays charged"
    assert ask(server, Ask("/gathernd", TINY)) == "200"


@pytest.mark.parametrize("name", slow_but_for(FEW, CASES))
@pytest.mark.timeout(300)
def test_a_request_stays_within_the_budget_or_is_refused(measured: tuple[Server, int], name: str) -> None:
    measured[0].forget_peak()
    one = CASES[name]()
    assert ask(measured[0], one) in (one.refusals or ("200",))
    check_peak(measured)


def test_an_answer_over_tls_is_not_encrypted_whole_before_it_is_sent(start: Start, tmp_path: Path) -> None:
    pair = make_pair(tmp_path, "gathernd-test")
    with start(*pair.flags(), tls=pair.trusting()) as server:
        connection = HTTPSConnection("127.0.0.1", server.port, timeout=120, context=pair.trusting())
        for rows in (1, 64 * 16):
            row, indices = np.arange(65536, dtype=np.uint8).reshape(1, -1), np.zeros((rows, 1), np.int64)
            before = server.forget_peak()
            fields = {"Content-Type": "application/x-safetensors"}
            connection.request("POST", "/gathernd", save({"data": row, "indices": indices}), fields)
            answer = connection.getresponse()
            assert answer.status == 200
            sleep(0.5)  # a reader who takes a while: what is not sent yet waits in the service
            assert np.array_equal(load(answer.read())["output"], np.broadcast_to(row, (rows, 65536)))
        grown = server.peak() - before
        assert 64 * MIB <= grown <= (64 + 32) * MIB, f"{grown / MIB:.0f} MiB for an answer of 64"
        connection.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_requests_of_all_kinds_at_once_stay_within_the_budget(
    measured: tuple[Server, int], soak_scale: int
) -> None:
    source = random.Random(7)
    made = [make() for make in CASES.values()]
    chosen = source.choices(made, k=2 * len(made) * soak_scale)
    measured[0].forget_peak()
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda one: ask(measured[0], one), chosen))
    assert found.count("200") >= len(found) // 10, found
    check_peak(measured)
