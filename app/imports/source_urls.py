"""Parse the URLs of sources strictly, and compare them with the prefixes that an operator allows.

A URL is either understood completely or refused. It is never repaired, so no two parsers can disagree about its host or
path. A prefix matches whole segments of the path, and must have the same scheme, host and port.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Final
from unicodedata import normalize
from urllib.parse import unquote

from app.errors import GatherError, invalid_field

Network = IPv4Network | IPv6Network
SCHEMES: Final = ("https", "http", "s3", "file")
MAX_CHARACTERS: Final = 4096
_PORTS: Final = {"https": 443, "http": 80}
_PARTS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^?#]*)(\?[^#]*)?(#.*)?", re.DOTALL)
_HOST: Final = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*"
)
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_NUMBER: Final = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
"""A last label that makes some parsers mistake the host for an IPv4 address or a part of one."""
_AUTHORITY: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:@]*)(?::([0-9]{1,5}))?")
_ESCAPE: Final = re.compile(r"%(..)?", re.DOTALL)
_HEX: Final = re.compile(r"[0-9A-Fa-f]{2}")
_FORBIDDEN: Final = re.compile(r"%(25)*(2[ef]|5c|[01][0-9a-f]|7f|c[01]|e0%(25)*[89]|f0%(25)*8)", re.IGNORECASE)
"""Escapes of a dot, slash, backslash or control character, including repeated escapes; and octets that begin an
overlong UTF-8 form of one, which some servers accept.
"""
_UP: Final = re.compile(r"\.\.?(;|%(25)*(3b|20)|\Z)", re.IGNORECASE)
"""A segment `.` or `..`, or one that becomes such a segment when a server cuts off a trailing space or parameters after
a semicolon.
"""
_LOOK_ALIKE: Final = str.maketrans({"\u3002": ".", "\\": "/"})
"""Look-alikes that remain after NFKC: a full stop that host names may have instead of a dot, and the backslash."""
_UNRESERVED: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_~")


class BadUrl(Exception):
    """The text is not a valid URL of a source. The message says why."""


@dataclass(frozen=True, slots=True)
class SourceUrl:
    """A URL. `host` is a name or address in lowercase (for s3, the bucket; for file, ""). `port` is 0 if there is none.

    `path` begins with a slash; its escapes are kept for http and https, and decoded for file. `query` includes the
    question mark.
    """

    scheme: str
    host: str
    port: int
    path: str
    query: str = ""

    @property
    def address(self) -> IPv4Address | IPv6Address | None:
        """The host as an address, or None if it is a name."""
        for kind in (IPv4Address, IPv6Address):
            try:
                return kind(self.host)
            except AddressValueError:
                continue
        return None

    @property
    def authority(self) -> str:
        """The host, and the port unless it is the scheme's default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS.get(self.scheme, 0) else f"{host}:{self.port}"

    @property
    def shown(self) -> str:
        """The URL without its query, which may hold credentials."""
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def target(self) -> str:
        """The whole URL."""
        return self.shown + self.query


def parse(text: str) -> SourceUrl:
    """Parse a URL. Raises BadUrl."""
    if len(text) > MAX_CHARACTERS:
        raise BadUrl(f"it has more than {MAX_CHARACTERS} characters")
    if not text.isprintable() or "\\" in text:
        raise BadUrl("it has a backslash or a character that cannot be printed")
    match = _PARTS.fullmatch(text)
    if match is None:
        raise BadUrl("it does not have the form https://host/path")
    scheme, authority, path, query, fragment = match[1].lower(), match[2], match[3], match[4] or "", match[5]
    if scheme not in SCHEMES:
        raise BadUrl(f"its scheme is not one of {', '.join(SCHEMES)}")
    if fragment is not None:
        raise BadUrl("it has a fragment; the tensor of a safetensors file is named in 'tensor'")
    if "@" in authority:
        raise BadUrl("it has a user or a password, which are not supported")
    _check_path(scheme, path)
    if scheme == "file":
        if authority.lower() not in ("", "localhost") or not path or query:
            raise BadUrl("a file has the form file:///folder/name")
        return SourceUrl(scheme, "", 0, _decode(path))
    if scheme == "s3":
        if not _BUCKET.fullmatch(authority) or query:
            raise BadUrl("an object has the form s3://bucket/key")
        return SourceUrl(scheme, authority, 0, _check_unescaped(path or "/"))
    if not text.isascii() or " " in text:
        raise BadUrl("it has characters that are not escaped")
    host, port = _host_and_port(scheme, authority)
    return SourceUrl(scheme, host, port, _normalize(path or "/"), query)


def _host_and_port(scheme: str, authority: str) -> tuple[str, int]:
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        raise BadUrl("its host and port are not those of a URL")
    host, port = match[1].lower(), int(match[2] or _PORTS[scheme])
    if not 1 <= port <= 65535:
        raise BadUrl("its port is not from 1 to 65535")
    try:
        if host.startswith("["):
            return str(IPv6Address(host[1:-1])), port
        if _NUMBER.fullmatch(host.rpartition(".")[2]):
            return str(IPv4Address(host)), port
    except AddressValueError:
        raise BadUrl("its address is not written as 192.0.2.1 or [2001:db8::1]") from None
    if not _HOST.fullmatch(host):
        raise BadUrl("its host is not a name of letters, digits, dots and hyphens")
    return host, port


def _check_path(scheme: str, path: str) -> None:
    if _FORBIDDEN.search(path):
        raise BadUrl("its path has an escaped dot, slash, backslash or control character")
    segments = path.split("/")[1:]
    if any(_UP.match(segment) for segment in (*segments, *_decode_fully(path).split("/"))):
        raise BadUrl("its path has a segment . or .., or one that some servers read as that")
    if scheme not in _PORTS and "" in segments[:-1]:
        raise BadUrl("its path has an empty segment")


def _decode_fully(path: str) -> str:
    """Decode all escapes in a path, even escaped escapes, and replace look-alikes of dots and slashes.

    Some servers and file systems interpret paths this way. S3 keys, however, are signed unchanged.
    """
    while (decoded := unquote(path)) != path:
        path = decoded
    return path if path.isascii() else normalize("NFKC", path).translate(_LOOK_ALIKE)


def _check_escapes(path: str) -> None:
    for match in _ESCAPE.finditer(path):
        if match[1] is None or not _HEX.fullmatch(match[1]):
            raise BadUrl("its path has a % that begins no escape")


def _decode(path: str) -> str:
    _check_escapes(path)
    try:
        text = unquote(path, errors="strict")
    except UnicodeDecodeError:
        raise BadUrl("its path is not UTF-8") from None
    if "\0" in text or not text.isprintable():
        raise BadUrl("its path has a character that cannot be printed")
    return text


def _check_unescaped(path: str) -> str:
    if "%" in path:
        raise BadUrl("its key has a %, and keys of s3 are not escaped")
    return path


def _normalize(path: str) -> str:
    """Remove unnecessary escapes from a path and write the others in uppercase."""
    _check_escapes(path)

    def normal(match: re.Match[str]) -> str:
        octet = int(match[1], 16)
        return chr(octet) if octet in _UNRESERVED else match[0].upper()

    return _ESCAPE.sub(normal, path)


@dataclass(frozen=True, slots=True)
class Prefix:
    """A prefix of URLs that may be imported. Its host may have public addresses and addresses in `networks`."""

    url: SourceUrl
    networks: tuple[Network, ...] = ()

    def covers(self, url: SourceUrl) -> bool:
        """Return whether a URL begins with this prefix, comparing whole segments."""
        own = self.url
        if (own.scheme, own.host, own.port) != (url.scheme, url.host, url.port):
            return False
        return url.path == own.path or url.path.startswith(own.path if own.path.endswith("/") else own.path + "/")


def parse_prefix(text: str) -> Prefix:
    """Parse one entry of the setting: a URL, then networks such as 10.0.0.0/8, separated by spaces. Raises BadUrl."""
    words = text.split()
    if not words:
        raise BadUrl("it is empty")
    url = parse(words[0])
    if url.query:
        raise BadUrl("a prefix has no query")
    try:
        networks = tuple(ip_network(word) for word in words[1:])
    except ValueError:
        raise BadUrl("only networks such as 10.0.0.0/8 may follow the prefix") from None
    if networks and url.scheme not in _PORTS:
        raise BadUrl("networks are for https and http")
    if url.scheme == "file" and url.path == "/":
        raise BadUrl("a prefix of files names a folder")
    return Prefix(url, networks)


class AllowedSources:
    """The prefixes that an operator allows. `s3_endpoint` is the URL of the service for `s3://`, or None for AWS."""

    def __init__(self, prefixes: Sequence[Prefix], s3_endpoint: str | None = None) -> None:
        self.prefixes = tuple(prefixes)
        self.s3_endpoint = s3_endpoint

    def check(self, text: str) -> SourceUrl:
        """Parse and check the URL that a client sends. Raises invalid_field and forbidden."""
        try:
            url = parse(text)
        except BadUrl as problem:
            raise invalid_field(
                "/url", f"the URL is not accepted: {problem}", "Send a URL such as https://host/folder/table.npy."
            ) from None
        if url.scheme not in _PORTS and url.path.endswith("/"):
            raise invalid_field("/url", "the URL names a folder", "Name a file in it.")
        if not self.find_prefixes(url):
            raise GatherError(
                "forbidden",
                "this service does not import from this URL"
                if self.prefixes
                else "this service does not import from any URL",
                pointer="/url",
                hint="Have the operator add a prefix of the URL to GATHERND_IMPORT_FROM, or upload the file with PUT.",
            )
        return url

    def find_prefixes(self, url: SourceUrl) -> list[Prefix]:
        """Return the prefixes that cover a URL."""
        return [prefix for prefix in self.prefixes if prefix.covers(url)]
