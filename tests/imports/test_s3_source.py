"""Objects of S3, from moto's server: whole, of one content, errors in our words.

moto takes any credentials of a URL that is signed: `test_s3_endpoint` checks them.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import random
from collections.abc import Iterator

import httpx
import pytest

from app.imports import http_ranges
from app.imports.s3_source import S3Source
from app.imports.source import PIECE_BYTES, SourceFailed
from app.imports.source_urls import parse
from tests.imports.sources import read_all

CONTENT = random.Random(1).randbytes(2 * PIECE_BYTES + 12345)


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_ranges, "_FIRST_PAUSE_S", 0.0)
    for name, value in (("ACCESS_KEY_ID", "ours"), ("SECRET_ACCESS_KEY", "secret"), ("REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)


@pytest.fixture(scope="module")
def bucket(moto: str) -> Iterator[httpx.Client]:
    signed = {"authorization": "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request"}
    with httpx.Client(base_url=f"{moto}/models", headers=signed, trust_env=False, timeout=60) as client:
        assert client.put("").status_code == 200
        assert client.put("/tables/a.npy", content=CONTENT).status_code == 200
        assert client.put("/empty", content=b"").status_code == 200
        yield client


def source(moto: str, key: str = "tables/a.npy", bucket: str = "models") -> S3Source:
    return S3Source(parse(f"s3://{bucket}/{key}"), moto)


@pytest.mark.parametrize("key", ["tables/a.npy", "empty"])
def test_what_comes_is_what_is_there(moto: str, bucket: httpx.Client, key: str) -> None:
    one = source(moto, key)
    content = CONTENT if key != "empty" else b""
    assert read_all(one) == content
    assert one.checksum is not None
    assert (one.checksum.algorithm, one.checksum.digest) == ("md5", hashlib.md5(content).digest())


def test_a_sha256_of_the_object_goes_before_its_etag(moto: str, bucket: httpx.Client) -> None:
    digest = hashlib.sha256(CONTENT).digest()
    fields = {"x-amz-sdk-checksum-algorithm": "SHA256", "x-amz-checksum-sha256": base64.b64encode(digest).decode()}
    assert bucket.put("/checked", content=CONTENT, headers=fields).status_code == 200
    one = source(moto, "checked")
    read_all(one)
    assert one.checksum is not None
    assert (one.checksum.algorithm, one.checksum.digest) == ("sha256", digest)


def test_the_etag_of_several_parts_or_of_another_key_is_no_checksum(moto: str, bucket: httpx.Client) -> None:
    fields = {"x-amz-server-side-encryption": "aws:kms", "x-amz-server-side-encryption-aws-kms-key-id": "key"}
    assert bucket.put("/encrypted", content=b"x", headers=fields).status_code == 200
    begun = bucket.post("/parts?uploads").text
    upload = begun[begun.index("<UploadId>") + 10 : begun.index("</UploadId>")]
    etag = bucket.put(f"/parts?partNumber=1&uploadId={upload}", content=b"x").headers["etag"]
    parts = (
        f"<CompleteMultipartUpload><Part><ETag>{etag}</ETag><PartNumber>1</PartNumber></Part></CompleteMultipartUpload>"
    )
    assert bucket.post(f"/parts?uploadId={upload}", content=parts).status_code == 200
    for key in ("encrypted", "parts"):
        one = source(moto, key)
        assert read_all(one) == b"x"
        assert one.checksum is None, key


def test_an_object_that_is_changed_meanwhile_is_refused(moto: str, bucket: httpx.Client) -> None:
    assert bucket.put("/changing", content=CONTENT).status_code == 200

    async def work() -> None:
        one = source(moto, "changing")
        await one.open()
        assert (await asyncio.to_thread(bucket.put, "/changing", content=b"x" + CONTENT[1:])).status_code == 200
        await one.read(0, 100)

    with pytest.raises(SourceFailed, match="changed"):
        asyncio.run(work())


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    with pytest.raises(SourceFailed, match="obstore") as failure:
        source("http://127.0.0.1:9")
    assert failure.value.hint is not None
    assert "'.[cloud]' in a checkout" in failure.value.hint
