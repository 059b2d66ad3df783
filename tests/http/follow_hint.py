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

from app.tensors.dtypes import DTYPES


@dataclass(frozen=True)
class Request:
    """A request. The query of `path` is not encoded; header fields are in lower case."""

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    place: str = field(default="", compare=False)
    """The pointer of the error whose hint is being followed."""

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
_LOOKUP = "/parameters/lookup/"
RULES: list[tuple[re.Pattern[str], Rule]] = []


def rule(pattern: str) -> Callable[[Rule], Rule]:
    """Registers what to do where `pattern` is in a hint; the first that is there counts."""

    def register(function: Rule) -> Rule:
        RULES.append((re.compile(pattern), function))
        return function

    return register


def follow(request: Request, hint: str, place: str = "") -> Request:
    """`request`, changed as `hint` says; `place` is the pointer of the error."""
    if place.startswith(_LOOKUP):  # a place in the text of a parameter
        inner = Request("POST", "", request.document["parameters"]["lookup"].encode())
        hint = hint.removeprefix(f"In the JSON text at {_LOOKUP[:-1]}: ")
        text = follow(inner, hint, place.removeprefix(_LOOKUP[:-1])).body.decode()
        return put(request, _LOOKUP[:-1], text)
    request = replace(request, place=place)
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


def is_in_body(request: Request) -> bool:
    """Whether `place` is that of a member of a JSON body."""
    if not request.body.startswith(b"{") or not request.place:
        return False
    try:
        holder, last = at(request.document, request.place)
    except (KeyError, IndexError, TypeError, ValueError):
        return False
    return isinstance(holder, list) or (isinstance(holder, dict) and last in holder)


def with_query(request: Request, fields: list[tuple[str, str]]) -> Request:
    path, _, _ = request.path.partition("?")
    return replace(request, path=f"{path}?{urlencode(fields, safe=',:')}" if fields else path)


def query_of(request: Request) -> list[tuple[str, str]]:
    return parse_qsl(request.path.partition("?")[2], keep_blank_values=True)


def put(request: Request, pointer: str, value: Any) -> Request:
    """The same with `value` at `pointer` of its body, or of its query."""
    if pointer.startswith("/query/"):
        fields = {**dict(query_of(request)), pointer.removeprefix("/query/"): str(value)}
        return with_query(request, list(fields.items()))
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


@rule(r"^Write a .*number.* at (?P<at>/[^\s,]+),.* or use (?P<type>dtype|datatype) '(?P<dtype>\w+)'")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, re.split("/values|/data/(?=[0-9])", match["at"])[0] + "/" + match["type"], match["dtype"])


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


@rule(r"""^Write '(\S*)' in place of (?P<quote>['"])(.*?)(?P=quote)(?: at|[.,;:]| in the| for the)""")
def _(request: Request, match: re.Match[str]) -> Request:
    near, given = match[1], match[3]
    if request.place.startswith("/query/"):
        named = request.place.removeprefix("/query/")
        fields = query_of(request)
        if named == given and any(name == given for name, _ in fields):
            return with_query(request, [(near if name == given else name, value) for name, value in fields])
        return with_query(request, [(name, near if name == named else value) for name, value in fields])
    if is_in_body(request):
        document = request.document
        holder, last = at(document, request.place)
        if isinstance(holder[last], dict) and holder[last].get("name") == given:
            holder[last]["name"] = near
        elif last == given:
            renamed = {near if name == given else name: value for name, value in holder.items()}
            holder.clear()
            holder.update(renamed)
        else:
            holder[last] = near
        return request.with_document(document)
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


@rule(r"^Leave out '(\w+)' of (\S+)\.")
def _(request: Request, match: re.Match[str]) -> Request:
    document = request.document
    holder, last = at(document, request.place)
    del holder[last][match[1]]
    return request.with_document(document)


@rule(r"^Leave out '([^']*)' in the query")
def _(request: Request, match: re.Match[str]) -> Request:
    return with_query(request, [(name, value) for name, value in query_of(request) if name != match[1]])


@rule(r"^Leave out '([^']*)', (?!')")
def _(request: Request, match: re.Match[str]) -> Request:
    document = request.document
    if is_in_body(request):
        holder, last = at(document, request.place)
        del holder[last]
        return request.with_document(document)
    holder = document if match[1] in document else document["parameters"]
    del holder[match[1]]
    return request.with_document(document)


@rule(r"^Move '(\w+)' from the query into the body")
def _(request: Request, match: re.Match[str]) -> Request:
    if "safetensors" in match.string and not request.body.startswith(b"{"):
        return request.with_header("content-type", "application/x-safetensors")
    path, _, query = request.path.partition("?")
    value = dict(parse_qsl(query))[match[1]]
    return replace(request, path=path).with_document(
        {**request.document, match[1]: json.loads(value) if value[:1].isdigit() else value}
    )


@rule(r"^Convert (\w+) to (\w+)")
def _(request: Request, match: re.Match[str]) -> Request:
    return converted(request, match[2])


def converted(request: Request, dtype: str) -> Request:
    """The same with the tensor at fault of another type, its values written anew."""
    document = request.document
    holder, last = at(document, request.place)
    holder[last] = DTYPES[dtype].oip if last == "datatype" else dtype
    items = "data" if last == "datatype" else "values"
    if "base64" in holder:
        del holder["base64"]
        holder[items] = [0] * prod(holder["shape"])
    else:
        holder[items] = json.loads(re.sub(r'"(-?[0-9]+)"', r"\1", json.dumps(holder[items])))
    return request.with_document(document)


# Shapes


@rule(r"^Send (\d+) values in the list at (/\S+), .*: (\d+) came")
def _(request: Request, match: re.Match[str]) -> Request:
    holder, last = at(request.document, match[2])
    given = holder[last]
    assert len(given) == int(match[3])
    return put(request, match[2], (given + (given[-1:] or [0]) * int(match[1]))[: int(match[1])])


@rule(r"^Send .+ values in \S+, .* or make the shape fit them: (\d+) came")
@rule(r"^Send \d+ bytes for .* make the shape fit the (\d+) items that came")
def _(request: Request, match: re.Match[str]) -> Request:
    if request.place == "/body":
        return put(request, "/query/shape", match[1])
    return put(request, request.place.rpartition("/")[0] + "/shape", [int(match[1])])


@rule(r"^Give (/\S+) a dimension: \[1\] in place of \[\]")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, match[1], [1])


@rule(r"^Make dimension (\d+) of indices (\d+)(?:,| or less)")
@rule(r"^Make the last dimension of indices (?P<last>\d+)\.")
def _(request: Request, match: re.Match[str]) -> Request:
    last = "last" in match.groupdict()
    document = request.document
    indices, _ = at(document, request.place or "/indices/shape")
    indices.setdefault("shape", [len(indices.get("data") or indices.get("values") or [])])
    indices["shape"][-1 if last else int(match[1])] = int(match[1] if last else match[2])
    count = prod(indices["shape"])
    items = "data" if "data" in indices else "values"
    indices[items] = ((indices.get(items) or [0]) * count)[:count]
    indices.pop("base64", None)
    return request.with_document(document)


@rule(r"^Give indices (\d+) dimensions?")
def _(request: Request, match: re.Match[str]) -> Request:
    document = request.document
    shape, rank = document["indices"].get("shape", [len(document["indices"]["values"])]), int(match[1])
    document["indices"]["shape"] = [1] * (rank - len(shape)) + shape if rank >= len(shape) else [prod(shape)]
    return request.with_document(document)


@rule(r"^Send updates of shape (\[.*\])")
def _(request: Request, match: re.Match[str]) -> Request:
    document = request.document
    shape = json.loads(match[1])
    document["updates"] = {"dtype": document["updates"]["dtype"], "shape": shape, "values": [0] * prod(shape)}
    return request.with_document(document)


@rule(r"^Ask for rows=(\d+:\d+)")
@rule(r"^Write rows=(\d+:\d+)")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, "/query/rows", match[1])


# Headers, paths, methods, keys, limits


@rule(r"^Use the path '([^']+)'")
def _(request: Request, match: re.Match[str]) -> Request:
    query = request.path.partition("?")[2]
    return replace(request, path=match[1] if "?" in match[1] or not query else f"{match[1]}?{query}")


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


@rule(r"^Use '([^']+)' at (/\S+) for the current version, or a number")
def _(request: Request, match: re.Match[str]) -> Request:
    return named(request, match[1]) if match[2] == "/name" else put(request, match[2], match[1])


@rule(r"^PUT '([^']+)', without the number")
def _(request: Request, match: re.Match[str]) -> Request:
    return named(request, match[1])


@rule(r"^Write '([^']+)' at (/\S+), which is its current version")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, match[2], match[1])


@rule("^Use another name for the (?:alias|tensor)")
def _(request: Request, match: re.Match[str]) -> Request:
    return named(request, "another")


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


@rule(r"^(?:Read the (?:tensor|alias) again, and send|Send) '(?P<name>[A-Za-z-]+): (?P<value>.+?)'")
def _(request: Request, match: re.Match[str]) -> Request:
    fields = {**request.headers, match["name"].lower(): match["value"]}
    replaced = re.search("in place of (If-None-Match)", match.string)
    if replaced is not None:
        del fields[replaced[1].lower()]
    return replace(request, headers=fields)


@rule("^Leave out (If-Match)|^Leave out the field (?P<field>[A-Za-z-]+)")
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
