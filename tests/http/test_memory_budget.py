"""Resident memory against the budget, for every route and format: what a request makes the service take is charged."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from app.errors import CODES
from tests.conftest import SOAK, slow_but_for
from tests.http.conftest import Start
from tests.http.memory_asks import BINARY, JSON, MIB, Ask, deflated, in_chunks, json_call, ordered, texts
from tests.http.memory_asks_of_operators import CASES as OPERATOR_CASES
from tests.http.memory_asks_of_operators import TABLE as TABLE_OF_ROWS
from tests.http.raw import TINY
from tests.http.server import Server
from tests.http.tensors import put_raw, put_strings
from tests.http.test_tls import make_pair
from tests.oip.bodies import octets

BUDGET = 160 * MIB
MARGIN = BUDGET // 8 * 3 + 64 * MIB
"""What the service may hold beside its budget: the budget of small requests, freed memory that the C library keeps, and
blocks of outputs that are kept, an eighth of the budget each; and 64 MiB for buffers of the network and of threads."""
REFUSED = {413: "payload_too_large", 503: "overloaded"}
TABLE = np.arange(256, dtype=np.uint8)


def narrow(dtype: str, path: str = "/gathernd") -> Ask:
    """Indices of `dtype` in the binary format, 24 MiB of items at most; the output is they themselves."""
    count = 24 * MIB // max(1, np.dtype(dtype).itemsize // 2)
    indices = (np.arange(count, dtype=np.uint32) % 256).astype(dtype)
    shape = (count, 1) if path == "/gathernd" else (count,)
    dialect = "?dialect=openvino-8" if path == "/gathernd" else ""
    expected = indices.astype(np.uint8)
    return Ask(
        path + dialect, save({"data": TABLE, "indices": indices.reshape(shape)}), (BINARY,),
        lambda body: bool(np.array_equal(load(body)["output"], expected)),
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


def v2_narrow() -> Ask:
    indices = ordered(24 * MIB)
    body, fields = binary_infer({"data": ("UINT8", TABLE), "indices": ("UINT8", indices)}, dialect="openvino-8")
    return Ask("/v2/models/gathernd/infer", body, fields, lambda body: body.endswith(indices.tobytes()))


def v2_strings(wide: bool) -> Ask:
    data = np.array(texts(400_000, wide), object)
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


def json_strings(wide: bool, encoding: str) -> Ask:
    count = 400_000
    data = {"dtype": "string", "shape": [count], "values": texts(count, wide)}
    indices = {"dtype": "int64", "shape": [count, 1], "values": list(range(count))}
    wanted = texts(count, wide)

    def right(body: bytes) -> bool:
        output = json.loads(body)["output"]
        return encoding == "base64" or output["values"] == wanted

    return Ask("/gathernd", json_call(data, indices, output_encoding=encoding), right=right)


def repeated_strings() -> Ask:
    """Few strings that are long, asked for often: the output is much more than the request."""
    data = {"dtype": "string", "shape": [1], "values": ["x" * MIB]}
    indices = {"dtype": "int64", "shape": [900, 1], "values": [0] * 900}
    return Ask("/gathernd", json_call(data, indices))


def answer_in_json(dtype: str, encoding: str) -> Ask:
    """A small request whose answer is large."""
    count = (8 if dtype == "bool" else 3) * MIB
    extremes: dict[str, list[Any]] = {"bool": [True, False], "complex128": [["NaN", -1.5], [2, "Infinity"]]}
    values = extremes.get(dtype, ["NaN", 0.1])
    row = [values[number % 2] for number in range(1024)]
    data = {"dtype": dtype, "shape": [1, 1024], "values": row}
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


def bad_bool() -> Ask:
    data = np.zeros(96 * MIB, np.uint8)
    data[-1] = 7
    body = save({"data": data.view(np.bool_), "indices": np.zeros((1, 1), np.int64)})
    return Ask("/gathernd", body, (BINARY,), lambda _: False, ("value_not_representable",))


def resident_strings(encoding: str) -> Ask:
    rows = np.arange(300_000) % 1000
    indices = {"dtype": "int64", "shape": [len(rows), 1], "values": rows.tolist()}
    return Ask("/gathernd", json_call({"tensor": "texts"}, indices, output_encoding=encoding))


def cases() -> dict[str, Callable[[], Ask]]:
    found: dict[str, Callable[[], Ask]] = {
        "safetensors, int32 indices of Gather": lambda: narrow("int32", "/gather"),
        "safetensors, deflated": lambda: deflated(narrow("uint8")),
        "safetensors, in chunks": lambda: in_chunks(narrow("uint8")),
        "JSON, in chunks": lambda: in_chunks(json_narrow()),
        "safetensors, the last index out of bounds": bad_last_index,
        "safetensors, the last bool no bool": bad_bool,
        "v2, uint8 indices": v2_narrow,
        "v2, BYTES": lambda: v2_strings(False),
        "v2, BYTES beyond 16 bits": lambda: v2_strings(True),
        "v2, BYTES, deflated both ways": lambda: deflated(v2_strings(True)),
        "JSON, uint8 indices": json_narrow,
        "JSON, deflated": lambda: deflated(json_narrow()),
        "JSON, one string 900 times": repeated_strings,
        "JSON, resident strings to values": lambda: resident_strings("values"),
        "JSON, resident strings to base64": lambda: resident_strings("base64"),
        "scatter, safetensors": lambda: scatter("binary"),
        "scatter, JSON": lambda: scatter("json"),
    }
    for dtype in ("uint8", "uint64"):
        found[f"safetensors, {dtype} indices"] = partial(narrow, dtype)
    for to in ("values", "base64"):
        for wide in (True, False):
            name = f"JSON, strings {'beyond 16 bits' if wide else 'of ASCII'} to {to}"
            found[name] = partial(json_strings, wide, to)
        for dtype in ("bool", "float64", "complex128"):
            found[f"JSON, {dtype} to {to}"] = partial(answer_in_json, dtype, to)
    return found


CASES = cases() | OPERATOR_CASES
FEW = (
    "safetensors, uint8 indices",
    "v2, BYTES beyond 16 bits",
    "JSON, one string 900 times",
    "JSON, float64 to values",
    "lookup, safetensors, bags",
    "lookup, safetensors, all offsets wrong",
    "scatter_elements, safetensors",
    "gathernd/backward, safetensors, sparse",
)
SOME = dict.fromkeys([*FEW, *list(CASES)[::3]])
"""`make test` asks those of FEW, `make test-all` every third."""


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
        assert put_strings(client, "texts", texts(1000, True)).status_code == 201
        assert put_raw(client, "table", TABLE_OF_ROWS).status_code == 201
        for _ in range(20):
            assert ask(server, Ask("/gathernd", TINY)) == "200"
        yield server, server.forget_peak()


def used(server: Server) -> float:
    """Bytes that are charged to the budget."""
    with server.client() as client:
        lines = client.get("/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith("gathernd_memory_used_bytes ")).split()[1])


def check_peak(measured: tuple[Server, int]) -> None:
    server, before = measured
    grown = server.peak() - before
    assert grown <= BUDGET + MARGIN, f"{grown / MIB:.0f} MiB under a budget of {BUDGET / MIB:.0f}"
    assert used(server) == 0, "something stays charged"
    assert ask(server, Ask("/gathernd", TINY)) == "200"


@pytest.mark.parametrize("name", slow_but_for(FEW, SOME, CASES))
@pytest.mark.timeout(300)
def test_a_request_stays_within_the_budget_or_is_refused(measured: tuple[Server, int], name: str) -> None:
    measured[0].forget_peak()
    one = CASES[name]()
    found = ask(measured[0], one)
    if name in OPERATOR_CASES:  # each fits the budget
        assert found in (one.refusals or ("200",))
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
    made = [CASES[name]() for name in (CASES if SOAK else source.sample(list(CASES), 24))]
    chosen = source.choices(made, k=2 * len(made) * soak_scale)
    measured[0].forget_peak()
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda one: ask(measured[0], one), chosen))
    assert found.count("200") >= len(found) // 10, found
    check_peak(measured)
