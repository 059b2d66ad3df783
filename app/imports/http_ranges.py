"""Read a file over HTTP in ranges.

Reading resumes after a broken connection, every range is checked to come from the same version of the file, and the
time is limited. If a server does not support ranges, it sends the whole file in its first response; in that case, the
file is read from that response, in order.

The subclasses in `https_source` and `s3_source` decide how and where requests are sent.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import random
import re
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final

import httpx

from app import __version__
from app.imports.source import CHANGED, HEAD_BYTES, Checksum, Interrupted, SourceFailed
from app.imports.whole_http_answer import WholeAnswer

LATER: Final = frozenset((408, 425, 429, 500, 502, 503, 504))
"""Statuses after which a request is retried."""
FIELDS: Final = "latin-1"
"""Encoding of header fields. An ETag may contain any octets and is sent back unchanged."""
_TIMEOUT: Final = httpx.Timeout(30, connect=10)
_GRACE_S: Final = 60.0
"""Seconds allowed for the first bytes. Each range is allowed the same, plus its time at the rate `_SLOWEST`."""
_SLOWEST: Final = 1 << 14
"""Lowest accepted average rate of a range in bytes per second, not counting its `_GRACE_S`."""
_ATTEMPTS: Final = 6
"""The import fails after this many consecutive failures without a new byte."""
_FIRST_ATTEMPTS: Final = 3
"""The import fails after this many failed attempts to get the first bytes, because the client is waiting for its
response.
"""
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 10.0
_CONTENT_RANGE: Final = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})")
_EMPTY_RANGE: Final = re.compile(r"bytes \*/0")
_SHA256: Final = re.compile(
    r"(?:^|,)\s*sha-256=(?::([A-Za-z0-9+/]{43}=):|([A-Za-z0-9+/]{43}=))", re.IGNORECASE | re.ASCII
)


class HttpRanges(ABC):
    """A file behind HTTP; see `Source`. `CONDITION` is the header field that makes a range conditional on the ETag."""

    CONDITION = "if-range"

    def __init__(self) -> None:
        self.size: int | None = 0
        self.checksum: Checksum | None = None
        self._validators: dict[str, str] | None = None
        self._whole: WholeAnswer | None = None

    @abstractmethod
    async def _ask(self, stack: AsyncExitStack, headers: dict[str, str]) -> httpx.Response:
        """Send a GET with these header fields.

        Returns the response before its body is read. The status is 200, 206, 412 or 416.

        Header fields of requests and responses are encoded with the codec FIELDS. Raises Interrupted and SourceFailed.
        """

    @property
    def has_ranges(self) -> bool:
        """See `Source`."""
        return self._whole is None

    async def close(self) -> Any:
        """See `Source`."""
        if self._whole is not None:
            await self._whole.close()

    async def open(self) -> bytes:
        """See `Source`."""
        try:
            async with asyncio.timeout(_GRACE_S):
                attempts = _Attempts(_FIRST_ATTEMPTS)
                while True:
                    try:
                        return await self._open()
                    except Interrupted as failure:
                        await attempts.wait_for_retry(failure)
        except TimeoutError:
            raise _too_slow() from None

    async def _open(self) -> bytes:
        async with AsyncExitStack() as stack:
            answer = await self._request_range(stack, 0, HEAD_BYTES)
            if answer.status_code == 416 and _EMPTY_RANGE.fullmatch(answer.headers.get("content-range", "")):
                return b""
            if answer.status_code == 200:
                return await self._open_whole(stack, answer)
            begin, end, size = _range_of(answer)
            if (begin, end) != (0, min(HEAD_BYTES, size)):
                raise SourceFailed("the server sent a different range than requested")
            self.size = size
            self._validators = validators_of(answer)
            self.checksum = _checksum_of(answer)
            head = bytearray()
            try:
                async for piece in answer.aiter_raw():
                    head += piece
                    if len(head) > end:
                        raise SourceFailed("the server sends more than it announced")
            except httpx.TransportError:
                raise connection_cut() from None
            if len(head) < end:
                raise connection_cut()
            return bytes(head)

    async def _open_whole(self, stack: AsyncExitStack, answer: httpx.Response) -> bytes:
        whole = WholeAnswer(answer)
        try:
            head = await whole.head()
        except httpx.TransportError:
            raise connection_cut() from None
        self.size, self.checksum = whole.size, _checksum_of(answer)
        whole.keep_open(stack)
        self._whole = whole
        return head

    async def read(self, begin: int, end: int) -> bytearray:
        """See `Source`."""
        try:
            if self._whole is not None:
                return await self._whole.read(begin, end, self.size, _time_limit)
            async with _time_limit(end - begin):
                return await self._read(begin, end)
        except TimeoutError:
            raise _too_slow() from None

    async def _read(self, begin: int, end: int) -> bytearray:
        content = bytearray(end - begin)
        attempts = _Attempts()
        done = 0
        while done < len(content):
            came = done
            try:
                async with AsyncExitStack() as stack:
                    answer = await self._request_range(stack, begin + done, end)
                    self._check(answer, begin + done, end)
                    async for piece in answer.aiter_raw():
                        if done + len(piece) > len(content):
                            raise SourceFailed("the server sends more than it announced")
                        content[done : done + len(piece)] = piece
                        done += len(piece)
                if done < len(content):
                    raise connection_cut()
                if came == 0:
                    _check_digest(answer, content)
            except (Interrupted, httpx.TransportError) as failure:
                if done > came:
                    attempts.progress()
                await attempts.wait_for_retry(failure if isinstance(failure, Interrupted) else connection_cut())
        return content

    async def _request_range(self, stack: AsyncExitStack, begin: int, end: int) -> httpx.Response:
        """Request a range and return the response. Raises Interrupted and SourceFailed."""
        headers = {"range": f"bytes={begin}-{end - 1}"}
        etag = (self._validators or {}).get("etag")
        if etag is not None:
            headers[self.CONDITION] = etag
        answer = await self._ask(stack, headers)
        if answer.headers.get("content-encoding", "identity").lower() != "identity":
            raise SourceFailed("the server sends it compressed")
        return answer

    def _check(self, answer: httpx.Response, begin: int, end: int) -> None:
        """Raise SourceFailed unless a response has the requested range of the same file version as the first
        response.
        """
        if answer.status_code in (200, 412, 416):
            raise SourceFailed(CHANGED)
        if _range_of(answer) != (begin, end, self.size) or validators_of(answer) != self._validators:
            raise SourceFailed(CHANGED)


class _Attempts:
    """Counts the consecutive failures of one range."""

    def __init__(self, most: int = _ATTEMPTS) -> None:
        self._most = most
        self._failures = 0

    def progress(self) -> None:
        """Reset the count because bytes have arrived."""
        self._failures = 0

    async def wait_for_retry(self, failure: Interrupted) -> None:
        """Wait before the next attempt. Raises SourceFailed if there have been too many."""
        self._failures += 1
        if self._failures >= self._most:
            raise SourceFailed(f"{failure.why}, {self._most} times in a row")
        pause = min(_FIRST_PAUSE_S * 3 ** (self._failures - 1), _LONGEST_PAUSE_S)
        await asyncio.sleep(max(min(failure.retry_after, _LONGEST_PAUSE_S), pause * random.uniform(0.5, 1)))  # noqa: S311


def client(*, tls: bool, of_environment: bool = False) -> httpx.AsyncClient:
    """Create an HTTP client that does not follow redirects or store cookies.

    If `of_environment` is set, the client uses the proxies set in the environment.
    """
    return httpx.AsyncClient(
        trust_env=of_environment,
        follow_redirects=False,
        timeout=_TIMEOUT,
        verify=httpx.create_ssl_context() if tls else False,
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        headers={"user-agent": f"gathernd/{__version__}", "accept": "*/*", "accept-encoding": "identity"},
    )


def connection_cut() -> Interrupted:
    """Return the exception for a connection that ended too early."""
    return Interrupted("the connection was cut")


def _time_limit(size: int) -> asyncio.Timeout:
    return asyncio.timeout(_GRACE_S + size / _SLOWEST)


def _too_slow() -> SourceFailed:
    return SourceFailed("the server sends too slowly")


def _range_of(answer: httpx.Response) -> tuple[int, int, int]:
    """Return the start and end of a response's range, and the size of the whole file. Raises SourceFailed."""
    match = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", "").strip())
    if match is None or not int(match[1]) <= int(match[2]) < int(match[3]):
        raise SourceFailed("the server sent a range without saying which")
    return int(match[1]), int(match[2]) + 1, int(match[3])


def validators_of(answer: httpx.Response) -> dict[str, str]:
    """Return the fields that identify the file's version: a strong ETag, or else modification time and weak ETag."""
    etag = answer.headers.get("etag")
    if etag is not None and not etag.startswith("W/"):
        return {"etag": etag}
    given = {"weak etag": etag, "last-modified": answer.headers.get("last-modified")}
    return {name: value for name, value in given.items() if value is not None}


def _checksum_of(answer: httpx.Response) -> Checksum | None:
    """Return a whole file's checksum from a response, in an RFC 9530 field, the older Digest, or S3's own field."""
    for name in ("repr-digest", "digest"):
        match = _SHA256.search(answer.headers.get(name, ""))
        if match is not None:
            return Checksum("sha256", base64.b64decode(match[1] or match[2]))
    return amazon_checksum(answer.headers)


def amazon_checksum(headers: httpx.Headers) -> Checksum | None:
    """Return the checksum of a whole object from S3's header fields, or None."""
    given = headers.get("x-amz-checksum-sha256", "")
    if headers.get("x-amz-checksum-type", "FULL_OBJECT") != "FULL_OBJECT" or "-" in given:
        return None
    try:
        digest = base64.b64decode(given, validate=True)
    except ValueError:  # not base64, or not ASCII
        return None
    return Checksum("sha256", digest) if len(digest) == 32 else None


def _check_digest(answer: httpx.Response, content: bytearray) -> None:
    """Compare the received bytes of one response with its Content-Digest. Raises SourceFailed if they differ."""
    match = _SHA256.search(answer.headers.get("content-digest", ""))
    if match is not None and hashlib.sha256(content).digest() != base64.b64decode(match[1] or match[2]):
        raise SourceFailed("the received bytes do not match Content-Digest")


def parse_retry_after(field: str | None) -> float:
    """Parse the field Retry-After in seconds. Returns 0 if it is missing or not understood."""
    return float(field) if field is not None and re.fullmatch(r"[0-9]{1,4}", field) else 0.0
