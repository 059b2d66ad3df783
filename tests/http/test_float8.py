"""The floats of 8 bits over HTTP: gathers in OpenVINO's dialects, resident tables, and what refuses them."""

from __future__ import annotations

import json

import httpx
import numpy as np
import pytest

from tests.conformance.cases import Told
from tests.conformance.transports import saved
from tests.http.forms import int64
from tests.http.tensors import NPY, RAW, SAFETENSORS, error

FLOAT8 = {"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0"}
OCTETS = bytes([0, 1, 0x38, 0x7B, 0x7F, 0x80, 0xB8, 0xFF])
ROWS = OCTETS[4:6] + OCTETS[:2]

pytestmark = pytest.mark.parametrize("dtype", FLOAT8)


def file_of(dtype: str) -> bytes:
    """A safetensors file with the table."""
    header = json.dumps({"table": {"dtype": FLOAT8[dtype], "shape": [4, 2], "data_offsets": [0, 8]}}).encode()
    return len(header).to_bytes(8, "little") + header + OCTETS


def uploaded(client: httpx.Client, dtype: str) -> str:
    """The name of a resident table of 4 rows."""
    name = f"table_{dtype}"
    query = {"dtype": dtype, "shape": "4,2"}
    answer = client.put(f"/tensors/{name}", params=query, content=OCTETS, headers={"content-type": RAW})
    assert answer.status_code in (200, 201), answer.text
    return name


def test_resident_tables_are_uploaded_gathered_and_downloaded(client: httpx.Client, dtype: str) -> None:
    name = uploaded(client, dtype)
    assert client.get(f"/tensors/{name}/content", headers={"accept": RAW}).content == OCTETS
    assert client.get(f"/tensors/{name}/content", headers={"accept": SAFETENSORS}).content.endswith(OCTETS)
    error(client.get(f"/tensors/{name}/content", headers={"accept": NPY}), 422, "unsupported_dtype")
    other = client.put("/tensors/of_a_file", content=file_of(dtype), headers={"content-type": SAFETENSORS})
    assert other.json()["dtype"] == dtype, other.text
    assert client.get("/tensors/of_a_file").json()["sha256"] == client.get(f"/tensors/{name}").json()["sha256"]
    indices = saved({"indices": Told("int64", (2, 1), np.array([[2], [0]]))})
    query = {"tensor": name, "dialect": "openvino-8"}
    answer = client.post("/gathernd", params=query, content=indices, headers={"content-type": SAFETENSORS})
    assert answer.content.endswith(ROWS), answer.text
    rows = client.post("/lookup", json={"features": [{"tensor": name, "indices": int64([2], [2, 0])}],
                                        "output_encoding": "base64"}).json()  # fmt: skip
    assert rows["output"] == {"dtype": dtype, "shape": [2, 2], "base64": "f4AAAQ=="}


def test_a_scatter_replaces_rows_of_a_resident_table(client: httpx.Client, dtype: str) -> None:
    name = uploaded(client, dtype)
    updates = {"dtype": dtype, "shape": [1, 2], "base64": "AAE="}
    body = {"indices": int64([1, 1], [3]), "updates": updates}
    assert client.post(f"/tensors/{name}/scatter", json=body).status_code == 200
    assert client.get(f"/tensors/{name}/content", headers={"accept": RAW}).content == OCTETS[:6] + b"\0\1"
