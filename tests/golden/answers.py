"""What the service answered: asked over a connection, made equal for every run, and kept in a text file a group.

A line is `number request status fields body`. `request` names the bytes of the request; the body of an error is the
whole text, that of any other answer its SHA-256.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

from tests.golden.requests import TABLES, Asked
from tests.golden.source import octets

FOLDER = Path(__file__).parent / "answers"
FLAGS = ("--device", "cpu")
"""What a GPU or its want would say is not in the corpus."""
_FIELDS = ("content-type", "allow", "retry-after", "location", "www-authenticate", "content-encoding", "vary")
_CHANGING = re.compile(
    rb'("(?:request_id|created|modified)": ?)"[^"]*"|(\\*")[0-9a-zA-Z_-]{8,}-[0-9]+(?=\\*")|127\.0\.0\.1:[0-9]+'
)
"""The id of the request, times, ETags and the service's own address."""


class Service:
    """A connection to a service that has the tables of the corpus and nothing else."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection = HTTPConnection("127.0.0.1", port, timeout=60)
        for name, given in TABLES.items():
            query = f"dtype={given['dtype']}&shape={','.join(map(str, given['shape']))}"
            headers = {"content-type": "application/octet-stream", "if-none-match": "*"}
            line = self.ask(Asked(f"tables/{name}", "PUT", f"/tensors/{name}?{query}", headers, octets(given)))
            assert line.split(" ")[2] in ("201", "412"), line

    def ask(self, asked: Asked) -> str:
        """The line of the answer."""
        self._connection.request(asked.method, asked.target, asked.body, {"connection": "keep-alive", **asked.headers})
        answer = self._connection.getresponse()
        body = answer.read()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        kept = {name: value for name, value in headers.items() if name in _FIELDS or name.startswith("x-gathernd-")}
        fields = _CHANGING.sub(rb"\1\2*", json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()).decode()
        text = _CHANGING.sub(rb"\1\2*", body)
        if answer.status < 400 or not text.startswith(b"{"):
            text = hashlib.sha256(text).hexdigest()[:16].encode() if text else b"-"
        number = asked.name.partition("/")[2]
        return f"{number} {asked.digest} {answer.status} {fields} {text.decode()}"

    def close(self) -> None:
        self._connection.close()


@contextmanager
def service(port: int) -> Iterator[Service]:
    made = Service(port)
    try:
        yield made
    finally:
        made.close()


def kept() -> Mapping[str, str]:
    """The lines of all answers by the names of their requests."""
    found = {}
    for path in sorted(FOLDER.glob("*.txt")):
        for line in path.read_text().splitlines():
            found[f"{path.stem}/{line.partition(' ')[0]}"] = line
    return found


def keep(lines: Iterable[tuple[Asked, str]]) -> None:
    """Write the files anew."""
    groups: dict[str, list[str]] = defaultdict(list)
    for asked, line in lines:
        groups[asked.name.partition("/")[0]].append(line)
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.txt"):
        path.unlink()
    for group, listed in groups.items():
        (FOLDER / f"{group}.txt").write_text("\n".join(listed) + "\n")


def difference(asked: Asked, wanted: str, found: str) -> str:
    """The request, and what of its answer is another than before."""
    lines = difflib.unified_diff(_shown(wanted), _shown(found), "expected", "got", lineterm="", n=30)
    return "\n".join((f"{asked.name}: {asked}", "", *lines))


def _shown(line: str) -> list[str]:
    """An answer line by line, of an error each member."""
    _, _, status, rest = line.split(" ", 3)
    decoder = json.JSONDecoder()
    fields, end = decoder.raw_decode(rest)
    body = rest[end + 1 :].replace('":*', '":"*"')
    shown = json.dumps(json.loads(body), indent=1, ensure_ascii=False) if body.startswith("{") else body
    return [f"status {status}", *(f"{name}: {value}" for name, value in fields.items()), *shown.splitlines()]
