"""Read sources at s3://, from the operator's endpoint and with the operator's credentials.

obstore (extra `cloud`) finds the credentials in the same way as AWS's own tools (AWS_ACCESS_KEY_ID and so on, a web
identity or the machine's role), and signs a URL for each request. The request itself is sent here, because the library
would follow redirects to any host and would read an endless response into memory.
"""

from __future__ import annotations

import os
import re
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, Final

import httpx

from app.imports.http_ranges import (
    FIELDS,
    LATER,
    HttpRanges,
    amazon_checksum,
    client,
    connection_cut,
    parse_retry_after,
    validators_of,
)
from app.imports.source import CHANGED, Checksum, Interrupted, SourceFailed
from app.imports.source_urls import SourceUrl

_MD5: Final = re.compile(r'"([0-9a-f]{32})"')
_VALID: Final = timedelta(minutes=10)
"""How long a signed URL is valid: longer than a range may take."""

_NO_KEYS: Final = {"access_key_id": "none", "secret_access_key": "none"}


class S3Source(HttpRanges):
    """An object in a bucket."""

    CONDITION = "if-match"

    def __init__(self, url: SourceUrl, endpoint: str | None) -> None:
        """`endpoint` is the URL of the S3 service, or None for AWS."""
        super().__init__()
        try:
            import obstore  # noqa: PLC0415  (of an extra)
            import obstore.store  # noqa: PLC0415
        except ImportError:
            raise SourceFailed(
                "s3:// needs obstore, which is not installed",
                "Have the operator install the extra `cloud` ('.[cloud]' in a checkout), or upload the file with PUT.",
            ) from None
        self._library: Any = obstore
        self._key = url.path[1:]
        # The library always signs, and needs keys for that even when the signature is not used.
        self._is_signed = os.environ.get("AWS_SKIP_SIGNATURE", "").lower() not in ("1", "true", "on", "yes", "y")
        is_http = endpoint is not None and endpoint.startswith("http://")
        options: dict[str, Any] = {
            "client_options": {"timeout": "10 seconds", "connect_timeout": "10 seconds", "allow_http": is_http},
            "retry_config": {"max_retries": 1, "retry_timeout": timedelta(seconds=10)},
            **({} if endpoint is None else {"endpoint": endpoint}),
            **({} if self._is_signed else _NO_KEYS),
        }
        try:
            self._store: Any = obstore.store.S3Store(url.host, **options)
        except Exception:  # noqa: BLE001  (the library's errors share no class)
            raise _not_valid() from None
        self._client = client(tls=not is_http, of_environment=True)

    async def close(self) -> None:
        """See `Source`."""
        await super().close()
        await self._client.aclose()

    async def _open(self) -> bytes:
        self.size, etag, checksum = await self._read_metadata()
        if self.size == 0:
            self.checksum = checksum
            return b""
        head = await super()._open()
        if (self._validators or {}).get("etag") != etag:
            raise SourceFailed(CHANGED)
        self.checksum = self.checksum or checksum
        return head

    async def _read_metadata(self) -> tuple[int, str | None, Checksum | None]:
        """Return the object's size, its ETag if it is strong, and its checksum if the service provides one."""
        async with AsyncExitStack() as stack:
            answer = await self._send(stack, "HEAD", {"x-amz-checksum-mode": "ENABLED"})
            if answer.status_code in (400, 403):  # the checksum field is not signed, and some services refuse that
                answer = await self._send(stack, "HEAD", {})
            _check_status(answer, (200,))
            size = answer.headers.get("content-length", "")
            if not re.fullmatch("[0-9]{1,19}", size):
                raise SourceFailed("the service that has it does not say its size")
            etag = validators_of(answer).get("etag")
            return int(size), etag, amazon_checksum(answer.headers) or _md5_of(etag, answer.headers)

    async def _ask(self, stack: AsyncExitStack, headers: dict[str, str]) -> httpx.Response:
        answer = await self._send(stack, "GET", headers)
        _check_status(answer, (200, 206, 412, 416))
        return answer

    async def _send(self, stack: AsyncExitStack, method: str, headers: dict[str, str]) -> httpx.Response:
        try:
            signed = await self._library.sign_async(self._store, method, self._key, _VALID)
        except Exception as error:  # noqa: BLE001  (the library's errors share no class; its texts may quote secrets)
            raise self._failure(error) from None
        if not self._is_signed:
            signed = signed.partition("?")[0]
        fields = httpx.Headers(headers, FIELDS)
        try:
            answer = await self._client.send(self._client.build_request(method, signed, headers=fields), stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise Interrupted("the service that has it did not respond") from None
        except httpx.TransportError:
            raise connection_cut() from None
        except (httpx.InvalidURL, ValueError):  # httpx parses the field Location as well
            raise SourceFailed("the response of the service that has it could not be read") from None
        stack.push_async_callback(answer.aclose)
        answer.headers.encoding = FIELDS
        return answer

    def _failure(self, error: Exception) -> SourceFailed | Interrupted:
        from obstore import exceptions  # noqa: PLC0415

        if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
            return _refused()
        if isinstance(error, exceptions.InvalidPathError | exceptions.UnknownConfigurationKeyError | ValueError):
            return _not_valid()
        return Interrupted("the operator's credentials for s3 could not be found")


def _refused() -> SourceFailed:
    return SourceFailed("the service that has it refuses the operator's credentials")


def _not_valid() -> SourceFailed:
    return SourceFailed("its key, or the operator's settings for s3, are not valid")


def _check_status(answer: httpx.Response, expected: tuple[int, ...]) -> None:
    """Raise Interrupted or SourceFailed if a response's status is not expected."""
    status = answer.status_code
    if status in expected:
        return
    if status in LATER:
        raise Interrupted(
            f"the service that has it responded with {status}", parse_retry_after(answer.headers.get("retry-after"))
        )
    if status == 404:
        raise SourceFailed("there is no such object")
    if status in (401, 403):
        raise _refused()
    if 300 <= status < 400:
        raise SourceFailed(
            f"the service that has it redirects ({status}), which is not followed",
            "Have the operator check AWS_REGION and GATHERND_IMPORT_S3_ENDPOINT.",
        )
    raise SourceFailed(f"the service that has it responded with {status}")


def _md5_of(etag: str | None, headers: httpx.Headers) -> Checksum | None:
    """Return the MD5 in an ETag, or None. With SSE-KMS and SSE-C, an ETag looks like an MD5 but is not one."""
    md5 = _MD5.fullmatch(etag or "")
    encryption = headers.get("x-amz-server-side-encryption", "AES256")
    if md5 is None or encryption != "AES256" or "x-amz-server-side-encryption-customer-algorithm" in headers:
        return None
    return Checksum("md5", bytes.fromhex(md5[1]))
