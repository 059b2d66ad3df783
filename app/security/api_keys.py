"""Who may do what: API keys from a file that may change at any time, and the rule for a service that has none.

The file holds lines `sha256hex scope[,scope] label`, so nobody who reads it can call the service. It is looked at once
a second, away from requests, and what is broken is not taken: the last good content stays in force. A key can thus be
added, tried and its predecessor removed with the service running.

A request carries its key as `Authorization: Bearer KEY`. What is looked up is the SHA-256 of what was sent: how long
that takes says nothing about any key, since nobody can steer a digest towards another. Keys themselves, which are 256
random bits, are never kept.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from time import time
from typing import Final, Literal, Protocol, get_args

from app.api.asgi_request import RequestContext
from app.errors import GatherError
from app.server import request_header_cache

Scope = Literal["gather", "tensors"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")

_LINE: Final = re.compile(r"([0-9A-Fa-f]{64})[ \t]+([a-z]+(?:,[a-z]+)*)[ \t]+(\S+)")
_PUBLIC: Final = frozenset({"/livez", "/readyz", "/errors", "/docs", "/openapi.json"})
_PUBLIC_UNDER: Final = ("/v2/health/", "/errors/", "/docs/")
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_RECENT_S: Final = 2.0
_LARGEST_FILE: Final = 1 << 20

logger = logging.getLogger("gathernd")


class BadKeysFile(Exception):
    """The keys file cannot be used; the text says where and why, and never shows the line."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key that may be used: SHA-256 of its text, what it may do, and what people call it."""

    digest: bytes
    scopes: frozenset[Scope]
    label: str


def parse(text: str) -> list[Key]:
    """The keys of a file's text. Empty lines and lines that start with `#` are comments. Raises BadKeysFile."""
    keys: list[Key] = []
    labels: set[str] = set()
    digests: set[bytes] = set()
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        key = _parse_line(stripped, number)
        if key.label in labels or key.digest in digests:
            raise BadKeysFile(f"line {number}: the label or the key of an earlier line")
        labels.add(key.label)
        digests.add(key.digest)
        keys.append(key)
    return keys


def _parse_line(line: str, number: int) -> Key:
    match = _LINE.fullmatch(line)
    if match is None or not LABEL.fullmatch(match[3]):
        raise BadKeysFile(f"line {number}: not of the form 'sha256hex scope[,scope] label'")
    scopes = [scope for scope in SCOPES if scope in match[2].split(",")]
    if len(scopes) != len(match[2].split(",")):
        raise BadKeysFile(f"line {number}: the scopes are {' and '.join(SCOPES)}, each at most once")
    return Key(bytes.fromhex(match[1]), frozenset(scopes), match[3])


def read(path: Path) -> list[Key]:
    """The keys of the file. Raises BadKeysFile, also where the file cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
        if len(content) > _LARGEST_FILE:
            raise BadKeysFile(f"the file is larger than {_LARGEST_FILE} bytes")
        return parse(content.decode())
    except OSError as error:
        raise BadKeysFile(error.strerror or type(error).__name__) from None
    except UnicodeDecodeError:
        raise BadKeysFile("the file is not text in UTF-8") from None


def is_public(path: str) -> bool:
    """Whether a route needs no key even where keys are asked for.

    The OpenAPI file is one, because the page at /docs, which is, shows nothing without it.
    """
    return path in _PUBLIC or path.startswith(_PUBLIC_UNDER)


def changes_tensors(method: str, path: str) -> bool:
    """Whether a request would change a resident tensor."""
    return (path == "/tensors" or path.startswith("/tensors/")) and method not in _READING


class Access(Protocol):
    """Judges each request before it is routed. What it says of a gather holds for as long as `epoch` is the same."""

    epoch: object

    def check(self, context: RequestContext) -> None:
        """Raises unauthorized and forbidden."""
        ...


class ReadOnly:
    """A service without keys that others can reach: everything but changes to tensors.

    Which address a caller has proves nothing: behind a proxy everybody has the proxy's.
    """

    epoch: object = "as long as the process"

    def check(self, context: RequestContext) -> None:
        """Raises forbidden for what would change a tensor."""
        if changes_tensors(context.method, context.path):
            raise GatherError(
                "forbidden",
                "tensors cannot be changed on an address that others reach without keys: set GATHERND_API_KEYS_FILE to "
                "a keys file ('gathernd keys add' makes one), or have the service listen on a loopback address",
            )


class Keys:
    """The keys in force, as the file said when it was last good."""

    def __init__(self, path: Path, last_good: str | None = None) -> None:
        """Read the file. Raises BadKeysFile: a service that is to ask for keys does not start without them.

        A worker that starts while the file is broken takes `last_good`, the lines that its parent read before.
        """
        self.path = path
        self._keys: dict[bytes, Key] = {}
        self.epoch = object()
        self._problem = ""
        self._signature = self._stat()
        try:
            self.take(read(path))
        except BadKeysFile:
            if last_good is None:
                raise
            self._signature = None
            self.take(parse(last_good))

    def check(self, context: RequestContext) -> None:
        """Raises unauthorized for a request without a known key, forbidden where its key has not the scope."""
        credential = context.credential
        key = None if credential is None else self._keys.get(credential)
        if key is None:
            if is_public(context.path):
                return
            raise _unauthorized(credential)
        scope: Scope = "tensors" if changes_tensors(context.method, context.path) else "gather"
        if scope not in key.scopes and context.path != "/metrics" and not is_public(context.path):
            raise GatherError("forbidden", f"this route needs a key with the scope {scope!r}")

    async def watch(self, interval: float = 1.0) -> None:
        """Read the file again whenever it changes. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(interval)
            # Read in a thread, since a file system may hang; taken over here, where requests are judged.
            found = await asyncio.to_thread(self.changed)
            if found is not None:
                self.take(found)

    def changed(self) -> list[Key] | None:
        """What the file says if it is another than the last time and sound, else None."""
        signature = self._stat()
        if signature == self._signature and not self._recent(signature):
            return None
        try:
            found = read(self.path)
        except BadKeysFile as error:
            # Said once for each problem; a file that is being written is read again in a second.
            self._signature = None
            if str(error) != self._problem:
                self._problem = str(error)
                logger.error("keys file: %s; the keys read before stay in force", error)
            return None
        self._signature = signature
        return found

    def take(self, found: Sequence[Key]) -> None:
        """Put these keys in force and no others."""
        keys = {key.digest: key for key in found}
        if self._problem or keys != self._keys:
            logger.info("keys file: %d keys in force", len(keys))
        self._problem = ""
        if keys != self._keys:
            self._keys = keys
            self.epoch = object()
            request_header_cache.known.clear()

    def text(self) -> str:
        """The keys in force, as a file would give them."""
        return "".join(
            f"{key.digest.hex()} {','.join(sorted(key.scopes))} {key.label}\n" for key in self._keys.values()
        )

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    @staticmethod
    def _recent(signature: tuple[int, int, int] | None) -> bool:
        # A file can be written twice within one tick of its clock.
        return signature is None or time() - signature[0] / 1e9 < _RECENT_S


def _unauthorized(credential: bytes | None) -> GatherError:
    if credential is None:
        return GatherError("unauthorized", "this service asks for a key: send 'Authorization: Bearer KEY'")
    if not credential:
        return GatherError("unauthorized", "the Authorization field is not of the form 'Bearer KEY'")
    return GatherError("unauthorized", "the key is not known to this service")


def access(path: Path | None, *, loopback: bool, last_good: str | None = None) -> Access | None:
    """What judges the requests of a service with this keys file, or None where everything is allowed.

    `last_good` is for workers, see `Keys`. Raises BadKeysFile.
    """
    if path is not None:
        return Keys(path, last_good)
    return None if loopback else ReadOnly()


def add(path: Path, label: str, scopes: Sequence[Scope]) -> str:
    """Make a key, put its line at the end of the file, which may not exist yet, and return its text.

    Raises BadKeysFile, also for a label that the file has or that is not one, and OSError.
    """
    if not LABEL.fullmatch(label):
        raise BadKeysFile(f"{label!r} is not a label: letters, digits and . _ @ - , at most 64")
    text = f"gathernd_{secrets.token_urlsafe(32)}"
    ordered = ",".join(scope for scope in SCOPES if scope in scopes)
    with _rewriting(path) as lines:
        if any(key.label == label for key in parse("".join(lines))):
            raise BadKeysFile(f"there is a key with the label {label!r} already")
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        lines.append(f"{sha256(text.encode()).hexdigest()} {ordered} {label}\n")
    return text


def remove(path: Path, label: str) -> None:
    """Take the key with this label out of the file. Raises BadKeysFile, also where there is none, and OSError."""
    with _rewriting(path) as lines:
        left = [line for line in lines if not any(key.label == label for key in parse(line))]
        if len(left) == len(lines):
            raise BadKeysFile(f"no key has the label {label!r}")
        lines[:] = left


@contextmanager
def _rewriting(path: Path) -> Iterator[list[str]]:
    """The lines of the file, to be changed in place; then the file is replaced in one step, if they are sound.

    Comments stay. A new file is for its owner alone; one that is there keeps its mode and owner.
    """
    path = path.resolve()
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        lines: list[str] = []
        if path.exists():
            read(path)
            lines = path.read_text("utf-8").splitlines(keepends=True)
        yield lines
        parse("".join(lines))
        _replace(path, "".join(lines).encode())
        os.fsync(folder)
    finally:
        os.close(folder)


def _replace(path: Path, content: bytes) -> None:
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            if path.exists():
                status = path.stat()
                os.fchmod(fd, stat.S_IMODE(status.st_mode))
                if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(fd, status.st_uid, status.st_gid)
            file.write(content)
            file.flush()
            os.fsync(fd)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def described(keys: Sequence[Key]) -> Iterator[Mapping[str, str]]:
    """What may be shown of keys: label, scopes and the start of the digest."""
    for key in keys:
        yield {
            "label": key.label,
            "scopes": ",".join(scope for scope in SCOPES if scope in key.scopes),
            "sha256": key.digest.hex()[:12],
        }
