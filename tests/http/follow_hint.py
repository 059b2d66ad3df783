"""Follows the hint of an error to the letter: makes of a refused request the one that its hint asks for.

Nothing is known here of the mistakes that the tests make. A rule reads a hint's words and what it names (a type, a
name, a number, a header field, a path, a byte), and changes the request by them; so a hint with a wrong suggestion
makes a request that is refused again.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any
from urllib.parse import parse_qsl, urlencode


@dataclass(frozen=True)
class Request:
    """A request. The query of `path` is not encoded; header fields are in lower case."""

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def document(self) -> Any:
        """The body as JSON; of a key given twice the last."""
        return json.loads(self.body)

    def with_document(self, document: Any) -> Request:
        """The same with another JSON body."""
        return replace(self, body=json.dumps(document).encode())

    def with_header(self, name: str, value: str) -> Request:
        """The same with a header field."""
        return replace(self, headers={**self.headers, name.lower(): value})


KEYS: Mapping[str, str] = {"gather": "key-to-gather", "tensors": "key-for-all", "change": "key-to-change"}
"""The keys that an operator would hand out, by the scope that a hint asks for; the last has `tensors` alone."""
WHOLE = {"dtype": "int64", "shape": [1, 1], "values": [0]}
"""What is added where a tensor is missing, whose form hints leave to the reader."""
Rule = Callable[[Request, "re.Match[str]"], Request]
RULES: list[tuple[re.Pattern[str], Rule]] = []


def rule(pattern: str) -> Callable[[Rule], Rule]:
    """Registers what to do where `pattern` is in a hint; the first that is there counts."""

    def register(function: Rule) -> Rule:
        RULES.append((re.compile(pattern), function))
        return function

    return register


def follow(request: Request, hint: str) -> Request:
    """`request`, changed as `hint` says."""
    for pattern, function in RULES:
        match = pattern.search(hint)
        if match is not None:
            return function(request, match)
    raise AssertionError(f"nothing in this hint can be followed: {hint}")


def at(document: Any, pointer: str) -> tuple[Any, str | int]:
    """The object or list that has the member at `pointer`, and the member's name or number."""
    *way, last = pointer.removeprefix("/").split("/")
    for step in way:
        document = document[int(step) if isinstance(document, list) else step]
    return document, int(last) if isinstance(document, list) else last


def put(request: Request, pointer: str, value: Any) -> Request:
    """The same with `value` at `pointer` of its body, or of its query."""
    if pointer.startswith("/query/"):
        path, _, query = request.path.partition("?")
        fields = {**dict(parse_qsl(query)), pointer.removeprefix("/query/"): str(value)}
        return replace(request, path=f"{path}?{urlencode(fields, safe=',:')}")
    document = request.document
    holder, last = at(document, pointer)
    holder[last] = value
    return request.with_document(document)


# Bytes of JSON that is none


def splice(request: Request, first: int, end: int, text: str) -> Request:
    return replace(request, body=request.body[:first] + text.encode() + request.body[end:])


@rule(r"^Write (\S+) in place of (\S+) at byte (\d+)\.")
def _(request: Request, match: re.Match[str]) -> Request:
    first = int(match[3])
    assert request.body[first:].startswith(match[2].encode())
    return splice(request, first, first + len(match[2]), match[1])


@rule(r"^Leave out the comma before the (.) at byte (\d+)\.")
def _(request: Request, match: re.Match[str]) -> Request:
    comma = request.body.rindex(b",", 0, int(match[2]))
    return splice(request, comma, comma + 1, "")


@rule(r"^Put a comma before what begins at byte (\d+)")
def _(request: Request, match: re.Match[str]) -> Request:
    return splice(request, int(match[1]), int(match[1]), ",")


@rule(r"^Leave out the byte order mark, the first three bytes")
def _(request: Request, match: re.Match[str]) -> Request:
    return splice(request, 0, 3, "")


@rule(r"^Leave out the comment at byte (\d+)")
def _(request: Request, match: re.Match[str]) -> Request:
    return splice(request, int(match[1]), request.body.index(b"\n", int(match[1])), "")


@rule(r'^Write "(\w+)" in double quotes at byte (\d+)')
def _(request: Request, match: re.Match[str]) -> Request:
    return splice(request, int(match[2]), int(match[2]) + len(match[1]), f'"{match[1]}"')


@rule("^Write strings in double quotes")
def _(request: Request, match: re.Match[str]) -> Request:
    return replace(request, body=request.body.replace(b"'", b'"'))


@rule("^Encode the body as UTF-8")
def _(request: Request, match: re.Match[str]) -> Request:
    return replace(request, body=request.body.decode("utf-16").encode())


@rule(r"^Send the whole body: it ends at byte (\d+)")
def _(request: Request, match: re.Match[str]) -> Request:
    assert len(request.body) == int(match[1])
    opened: list[int] = []
    for byte in request.body:
        if byte in b"{[":
            opened.append(byte)
        elif byte in b"}]":
            opened.pop()
    return replace(request, body=request.body + bytes(byte + 2 for byte in reversed(opened)))


@rule("^Give '(.+)' once in its object")
def _(request: Request, match: re.Match[str]) -> Request:
    assert request.body.count(f'"{match[1]}"'.encode()) == 2
    return request.with_document(request.document)


@rule("^Send a JSON object as the body, which is empty")
def _(request: Request, match: re.Match[str]) -> Request:
    return request.with_document({"data": WHOLE | {"shape": [1]}, "indices": WHOLE})


# Values, types and names


@rule(r"^Write a (?:whole )?number.* at (?P<at>/\S+), or use dtype '(?P<dtype>\w+)'")
@rule(r"^Use dtype '(?P<dtype>\w+)', which holds the number at (?P<at>/\S+),")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, match["at"].split("/values")[0] + "/dtype", match["dtype"])


@rule(r"^Use an index from (-?\d+) to (-?\d+) at (/\S+)[,.]")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, match[3], int(match[2]))


@rule(r"^Use (?:a|an) (\w+) from (-?\d+) to (-?\d+)\.")
def _(request: Request, match: re.Match[str]) -> Request:
    where = "/query/" if "?" in request.path else "/" if "v2" not in request.path else "/parameters/"
    return put(request, where + match[1], int(match[2]))


@rule(r"^Write (-?\S+) without quotes at (/\S+)\.")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, match[2], json.loads(match[1]))


@rule(r"^Write (\S+) in double quotes at (/\S+)\.")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, match[2], match[1])


@rule(r"^Write (true|false|-?\d+) in place of (\S+) at (/\S+)\.")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, match[3], json.loads(match[1]))


@rule(r"^Write a number at (/\S+), or 'NaN' where there is none")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, match[1], "NaN")


@rule(r"^Write '([^']*)' in place of '([^']*)'")
def _(request: Request, match: re.Match[str]) -> Request:
    near, given = match[1], match[2]
    for quoted in ('"{}"', r"\"{}\"", r"\\\"{}\\\""):  # in a text of JSON, too, and in that of a header
        if quoted.format(given).encode() not in request.body:
            continue
        body = request.body.replace(quoted.format(given).encode(), quoted.format(near).encode())
        if "safetensors" in request.headers["content-type"]:  # which begins with the length of its header
            body = (int.from_bytes(body[:8], "little") + len(body) - len(request.body)).to_bytes(8, "little") + body[8:]
        return replace(request, body=body)
    assert given in request.path, "what is to be replaced is nowhere in the request"
    return replace(request, path=request.path.replace(given, near))


@rule(r"^Write (\{.*\}) at (/\S+),")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, match[2], json.loads(match[1]))


@rule(r"^Add '(\w+)' at (/\S+), such as (\d+)\.")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, match[2], int(match[3]))


@rule(r"^Add '(\w+)' at (/\S+), such as '(\w+)'\.")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, match[2], match[3])


@rule(r"^Add '(\w+)' at (/\S+)\.")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, match[2], WHOLE)


@rule(r"^Add the input '(\w+)' to (/\S+)\.")
def _(request: Request, match: re.Match[str]) -> Request:
    document = request.document
    document["inputs"].append({"name": match[1], "datatype": "INT64", "shape": [1, 1], "data": [0]})
    return request.with_document(document)


@rule(r"^Leave out '(\w+)' of (\w+)\.")
def _(request: Request, match: re.Match[str]) -> Request:
    document = request.document
    del document[match[2]][match[1]]
    return request.with_document(document)


@rule(r"^Leave out '(\w+)' in the query")
def _(request: Request, match: re.Match[str]) -> Request:
    path, _, query = request.path.partition("?")
    fields = [(name, value) for name, value in parse_qsl(query) if name != match[1]]
    return replace(request, path=path + ("?" + urlencode(fields) if fields else ""))


@rule(r"^Leave out '(\w+)', (?!')")
def _(request: Request, match: re.Match[str]) -> Request:
    document = request.document
    holder = document if match[1] in document else document["parameters"]
    del holder[match[1]]
    return request.with_document(document)


@rule(r"^Move '(\w+)' from the query into the body")
def _(request: Request, match: re.Match[str]) -> Request:
    path, _, query = request.path.partition("?")
    value = dict(parse_qsl(query))[match[1]]
    return replace(request, path=path).with_document({**request.document, match[1]: json.loads(value)})


@rule(r"^Convert (\w+) to (\w+)")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, f"/{match[1]}/dtype", match[2])


# Shapes


@rule(r"^Send (\d+) values in the list at (/\S+), .*: (\d+) came")
def _(request: Request, match: re.Match[str]) -> Request:
    holder, last = at(request.document, match[2])
    given = holder[last]
    assert len(given) == int(match[3])
    return put(request, match[2], (given + [given[-1]] * int(match[1]))[: int(match[1])])


@rule(r"^Send (\d+) values in (\w+), .* or make the shape fit them: (\d+) came")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, f"/{match[2]}/shape", [int(match[3])])


@rule(r"^Send \d+ bytes for .* make the shape fit the (\d+) items that came")
def _(request: Request, match: re.Match[str]) -> Request:
    if "?" in request.path:
        return put(request, "/query/shape", match[1])
    return put(request, "/data/shape", [int(match[1])])


@rule(r"^Give (/\S+) a dimension: \[1\] in place of \[\]")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, match[1], [1])


@rule(r"^Make dimension (\d+) of indices (\d+)(?:,| or less)")
@rule(r"^Make the last dimension of indices (?P<last>\d+)\.")
def _(request: Request, match: re.Match[str]) -> Request:
    last = "last" in match.groupdict()
    document = request.document
    indices = document["indices"]
    indices["shape"][-1 if last else int(match[1])] = int(match[1] if last else match[2])
    count = 1
    for size in indices["shape"]:
        count *= size
    indices["values"] = ((indices["values"] or [0]) * count)[:count]
    return request.with_document(document)


@rule(r"^Give indices (\d+) dimensions")
def _(request: Request, match: re.Match[str]) -> Request:
    document = request.document
    shape = document["indices"]["shape"]
    document["indices"]["shape"] = [1] * (int(match[1]) - len(shape)) + shape
    return request.with_document(document)


@rule(r"^Send updates of shape (\[.*\])")
def _(request: Request, match: re.Match[str]) -> Request:
    document = request.document
    shape = json.loads(match[1])
    document["updates"] = {"dtype": "float32", "shape": shape, "values": [0] * prod(shape)}
    return request.with_document(document)


@rule(r"^Ask for rows=(\d+:\d+)")
@rule(r"^Write rows=(\d+:\d+)")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, "/query/rows", match[1])


# Headers, paths, methods, keys, limits


@rule(r"^Use the path '(.+)'\.")
def _(request: Request, match: re.Match[str]) -> Request:
    return replace(request, path=match[1])


@rule(r"^Use the method (\w+)")
def _(request: Request, match: re.Match[str]) -> Request:
    return replace(request, method=match[1])


@rule("^Use the version '(.+?)'")
def _(request: Request, match: re.Match[str]) -> Request:
    return replace(request, path=re.sub("/versions/[^/]+", f"/versions/{match[1]}", request.path))


def named(request: Request, name: str) -> Request:
    """The same for another name in the path."""
    return replace(request, path=re.sub("^/(tensors|aliases)/[^/?]+", rf"/\1/{name}", request.path))


@rule(r"^Use '([^']+)' at (/\S+), or '[^']+' for the current version")
def _(request: Request, match: re.Match[str]) -> Request:
    return named(request, match[1]) if match[2] == "/name" else put(request, match[2], match[1])


@rule(r"^Use '([^']+)' for the current version, or a number")
@rule(r"^PUT '([^']+)', without the number")
def _(request: Request, match: re.Match[str]) -> Request:
    return named(request, match[1])


@rule(r"^Write '([^']+)' at (/\S+), which is its current version")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, match[2], match[1])


@rule("^Use another name for the alias")
def _(request: Request, match: re.Match[str]) -> Request:
    return named(request, "another")


@rule(r"^Use a name such as '(.+?)' at (/\S+)\.")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, match[2], match[1])


@rule("^Use a name such as '(.+?)'")
def _(request: Request, match: re.Match[str]) -> Request:
    return replace(request, path=re.sub("^/tensors/[^/?]+", f"/tensors/{match[1]}", request.path))


@rule("^Send 'Authorization: Bearer KEY'")
@rule("^Send a key with the scope '(?P<scope>.+?)'")
def _(request: Request, match: re.Match[str]) -> Request:
    return request.with_header("authorization", f"Bearer {KEYS[match.groupdict().get('scope', 'gather')]}")


@rule("^Send 'Content-Encoding: gzip' with a gzip stream")
def _(request: Request, match: re.Match[str]) -> Request:
    return replace(request.with_header("content-encoding", "gzip"), body=gzip.compress(request.body))


@rule(r"^(?:Read the tensor again, and send|Send) '(?P<name>[A-Za-z-]+): (?P<value>.+?)'")
def _(request: Request, match: re.Match[str]) -> Request:
    fields = {**request.headers, match["name"].lower(): match["value"]}
    replaced = re.search("in place of (If-None-Match)", match.string)
    if replaced is not None:
        del fields[replaced[1].lower()]
    return replace(request, headers=fields)


@rule("^Leave out (If-Match)|^Leave out the field (?P<field>Origin)")
def _(request: Request, match: re.Match[str]) -> Request:
    name = (match["field"] or match[1]).lower()
    return replace(request, headers={key: value for key, value in request.headers.items() if key != name})


@rule("^Call the service as (localhost)")
def _(request: Request, match: re.Match[str]) -> Request:
    return request.with_header("host", match[1])


@rule(r"^Send at most (\d+) bytes, or have the operator raise (GATHERND_\w+)")
def _(request: Request, match: re.Match[str]) -> Request:
    assert request.body[int(match[1]) :].strip() == b"", "only the end of a body is cut here, and it is white space"
    return replace(request, body=request.body[: int(match[1])])
