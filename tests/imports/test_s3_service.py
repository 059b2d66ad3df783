"""A service that imports from S3: the setting of the endpoint, the operator's keys, and errors as they are answered."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from tests.http.conftest import Start
from tests.http.held import ended
from tests.http.server import Server
from tests.http.tensors import npy, save

SECRET = "a-secret-that-nobody-reads"
KEYS = {"AWS_ACCESS_KEY_ID": "ours", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
TABLE = np.frombuffer(random.Random(3).randbytes(9 << 20), np.int8).reshape(9, 1 << 20)
"""More than two of the ranges that are asked for."""
SMALL = TABLE[0, :10].reshape(2, 5)


@pytest.fixture(scope="module")
def importing(start: Start, moto: str) -> Iterator[Server]:
    signed = {"authorization": "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request"}
    with httpx.Client(base_url=f"{moto}/of-service", headers=signed, trust_env=False, timeout=60) as bucket:
        assert bucket.put("").status_code == 200
        for key, content in (
            ("tables/a.npy", npy(TABLE)), ("tables/many.safetensors", save(first=TABLE, second=SMALL)),
            ("tables/words.txt", b"no tensor at all"), ("other/a.npy", npy(TABLE)),
        ):  # fmt: skip
            assert bucket.put(f"/{key}", content=content).status_code == 200
    allowed = "s3://of-service/tables/,s3://of-nobody/tables/"
    flags = ("--import-from", allowed, "--import-s3-endpoint", moto, "--keep-versions", "2")
    with start(*flags, environment=KEYS) as server:
        yield server


@pytest.fixture
def client(importing: Server) -> httpx.Client:
    return importing.shared_client()


def imported(client: httpx.Client, url: str, tensor: str | None = None) -> dict[str, Any]:
    """The import once it has ended, or the error that it was refused with."""
    answer = client.post("/tensors/t/import", json={"url": url, **({} if tensor is None else {"tensor": tensor})})
    return ended(client, answer) if answer.status_code == 202 else dict(answer.json())


def test_an_object_becomes_the_next_version_and_one_tensor_of_many_alone(client: httpx.Client) -> None:
    first = imported(client, "s3://of-service/tables/a.npy")
    assert (first["state"], first["bytes_done"], first["metadata"]["version"]) == ("done", TABLE.nbytes, 1), first
    assert client.get("/tensors/t/content?rows=8:9").content == TABLE[8].tobytes()
    second = imported(client, "s3://of-service/tables/many.safetensors", "second")
    assert (second["bytes_total"], second["metadata"]["version"]) == (10, 2)
    assert client.get("/tensors/t@2/content").content == SMALL.tobytes()
    assert client.get("/tensors/t@1").status_code == 200


@pytest.mark.parametrize(
    ("url", "status", "code", "said"),
    [
        ("s3://of-service/tables/missing.npy", 502, "import_failed", "there is no such object"),
        ("s3://of-nobody/tables/a.npy", 502, "import_failed", "there is no such object"),
        ("s3://of-service/tables/words.txt", 502, "import_failed", "neither an npy file nor a safetensors file"),
        ("s3://of-service/other/a.npy", 403, "forbidden", "does not import from this URL"),
        ("s3://of-service/tables/../other/a.npy", 422, "invalid_field", "a segment . or .."),
        ("s3://of-service/tables/many.safetensors", 422, "invalid_field", "the file has 2 tensors"),
    ],
)
def test_what_is_wrong_is_said_at_once(client: httpx.Client, url: str, status: int, code: str, said: str) -> None:
    found = imported(client, url)
    assert (found["status"], found["code"]) == (status, code), found
    assert said in found["detail"]


def test_the_operators_keys_are_told_to_nobody(client: httpx.Client, importing: Server) -> None:
    imported(client, "s3://of-service/tables/a.npy")
    imported(client, "s3://of-service/tables/missing.npy")
    told = client.get("/imports").text + client.get("/metrics").text + importing.log_text()
    assert "s3://of-service/tables/a.npy" in told
    for secret in (SECRET, "X-Amz-Signature", "Credential="):
        assert secret not in told
