"""The API-key file: how it is read, and how keys are added and removed.

Its lines have the form `sha256hex scope[,scope] label`. The keys themselves, 256 random bits each, are never stored, so
reading the file does not enable anyone to call the service. Before each line that it adds, this module writes a
comment, `# added TIME DIGITS`, with the first digits of the line's SHA-256. Versions of the service that do not know
this comment can also read the file. `app.security.authorizer` decides which requests need which key.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal, get_args

from app.security.file_watcher import read_small_file

Scope = Literal["gather", "tensors"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")

_DIGITS: Final = 12
"""Number of hexadecimal digits of a SHA-256 that are shown to identify a key."""
_ADDED: Final = re.compile(rf"# added (\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ) ([0-9a-f]{{{_DIGITS}}})")
_LINE: Final = re.compile(r"([0-9A-Fa-f]{64})[ \t]+([a-z]+(?:,[a-z]+)*)[ \t]+(\S+)")


class BadKeysFile(Exception):
    """The keys file cannot be used. The message says where and why, but never includes the line."""


@dataclass(frozen=True, slots=True)
class Key:
    """An API key: the SHA-256 of its text, its scopes, its human-readable label, and when it was added.

    `added` is a time in RFC 3339 format in UTC, or "" if the file does not say.
    """

    digest: bytes
    scopes: frozenset[Scope]
    label: str
    added: str = field(default="", compare=False)

    @property
    def digits(self) -> str:
        """The first digits of the SHA-256."""
        return self.digest.hex()[:_DIGITS]


def key_digest(authorization: bytes) -> bytes:
    """Return the SHA-256 of the key in an Authorization field, or b"" if the field is not of the form `Bearer KEY`."""
    scheme, _, key = authorization.partition(b" ")
    return sha256(key.strip(b" \t")).digest() if scheme.lower() == b"bearer" else b""


def parse(text: str) -> list[Key]:
    """Parse the text of a keys file. Empty lines and lines that start with `#` are comments. Raises BadKeysFile."""
    keys: list[Key] = []
    labels: set[str] = set()
    digests: set[bytes] = set()
    added: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            comment = _ADDED.fullmatch(stripped)
            if comment is not None:
                added[comment[2]] = comment[1]
            continue
        key = _parse_line(stripped, number)
        key = replace(key, added=added.get(key.digits, ""))
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


def read_bytes(path: Path) -> bytes:
    """Return the contents of the file. Raises BadKeysFile."""
    try:
        return read_small_file(path)
    except OSError as error:
        raise BadKeysFile(error.strerror or type(error).__name__) from None


def decode(content: bytes) -> list[Key]:
    """Decode and parse the contents of a keys file. Raises BadKeysFile."""
    try:
        return parse(content.decode())
    except UnicodeDecodeError:
        raise BadKeysFile("the file is not text in UTF-8") from None


def decode_cluster_key(content: bytes) -> list[Key]:
    """Return a cluster's key, with every scope. The file contains the key itself, as it is sent in requests."""
    return [Key(sha256(content.strip()).digest(), frozenset(SCOPES), "cluster")]


def read(path: Path) -> list[Key]:
    """Read the keys in a file. Raises BadKeysFile, including when the file cannot be read."""
    return decode(read_bytes(path))


def add(path: Path, label: str, scopes: Sequence[Scope]) -> str:
    """Create a key, append its line to the file (created if missing), and return the key's text.

    Raises OSError, and BadKeysFile (also if the label is invalid or already in the file).
    """
    if not LABEL.fullmatch(label):
        raise BadKeysFile(f"{label!r} is not a label: letters, digits and . _ @ - , at most 64")
    text = f"gathernd_{secrets.token_urlsafe(32)}"
    ordered = ",".join(scope for scope in SCOPES if scope in scopes)
    with _rewrite(path) as lines:
        if any(key.label == label for key in parse("".join(lines))):
            raise BadKeysFile(f"there is a key with the label {label!r} already")
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        digest = sha256(text.encode()).hexdigest()
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        lines += [f"# added {now} {digest[:_DIGITS]}\n", f"{digest} {ordered} {label}\n"]
    return text


def remove(path: Path, label: str) -> None:
    """Remove the key with this label from the file.

    Raises OSError, and BadKeysFile (also if there is no such key).
    """
    with _rewrite(path) as lines:
        found = [key for key in parse("".join(lines)) if key.label == label]
        if not found:
            raise BadKeysFile(f"no key has the label {label!r}")
        lines[:] = [line for line in lines if not _belongs_to(line.strip(), found[0])]


def _belongs_to(line: str, key: Key) -> bool:
    """Return whether a line is the key's line or the comment that says when the key was added."""
    comment = _ADDED.fullmatch(line)
    return comment[2] == key.digits if comment is not None else any(each == key for each in parse(line))


@contextmanager
def _rewrite(path: Path) -> Iterator[list[str]]:
    """Yield the lines of the file as a list to change. Afterwards, replace the file atomically if the lines are valid.

    Comments are kept. A new file is accessible only to its owner; an existing file keeps its mode and owner.
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


def describe_keys(keys: Sequence[Key]) -> Iterator[Mapping[str, str]]:
    """Yield what may be shown about each key: its label, its scopes, the first digits of its digest, and when it was
    added.
    """
    for key in keys:
        yield {
            "label": key.label,
            "scopes": ",".join(scope for scope in SCOPES if scope in key.scopes),
            "sha256": key.digits,
            "added": key.added,
        }
