"""What hints of scatters, gradients, lookups and `out_of_bounds` ask for, beside the rules of `follow_hint`."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from math import prod
from typing import Any
from urllib.parse import parse_qsl

from app.tensors.dtypes import DTYPES
from tests.http.follow_hint import WHOLE, Request, at, put, rule


def flat(values: list[Any]) -> dict[str, Any]:
    """int64 of one dimension."""
    return WHOLE | {"shape": [len(values)], "values": values}


@rule(r"^Send (?P<low>0) at (?P<at>/\S+), since")
@rule(r"^Send an offset from (?P<low>\d+) to \d+ at (?P<at>/\S+), since")
@rule(r"^Send a number from (?P<low>-[0-9.e]+) to [0-9.e]+ at (?P<at>/\S+)\.")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, match["at"], json.loads(match["low"]))


@rule(r"^Send an offset for each bag of (/\S+), such as (\[0\])")
@rule(r"^Add 'offsets' at (/\S+)/offsets: .* such as (\[0\])")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, f"{match[1]}/offsets", flat(json.loads(match[2])))


@rule(r"^Convert the (\w+) of (/\S+) to (\w+)\.")
def _(request: Request, match: re.Match[str]) -> Request:
    if request.place.endswith("/datatype"):
        return put(request, request.place, DTYPES[match[3]].oip)
    return put(request, f"{match[2]}/{match[1]}/dtype", match[3])


@rule(r"^Give the (\w+) of (/\S+) one dimension")
def _(request: Request, match: re.Match[str]) -> Request:
    holder, name = at(request.document, f"{match[2]}/{match[1]}")
    return put(request, f"{match[2]}/{match[1]}/shape", [prod(holder[name]["shape"])])


@rule(r"^Send weights of shape (\[\d+\]) for (/\S+),")
def _(request: Request, match: re.Match[str]) -> Request:
    shape = json.loads(match[1])
    return put(request, f"{match[2]}/weights", {"dtype": "float32", "shape": shape, "values": [1] * prod(shape)})


@rule(r"^Send grad_output of shape (\[.*\])")
def _(request: Request, match: re.Match[str]) -> Request:
    shape = json.loads(match[1])
    return put(request, "/grad_output", {"dtype": "float32", "shape": shape, "values": [1] * prod(shape)})


@rule(r"^Leave out ('.+') at (/\S+), and")
@rule(r"^Leave out (?P<one>'\w+') at (?P<where>/\S+?)[,.]")
def _(request: Request, match: re.Match[str]) -> Request:
    document = request.document
    if match.groupdict().get("one"):
        holder, name = at(document, match["where"])
        del holder[name]
    else:
        holder, last = at(document, match[2])
        for name in re.findall(r"'(\w+)'", match[1]):
            del holder[last][name]
    return request.with_document(document)


@rule(r"^Leave out '(\w+)' or '(\w+)'\.")
def _(request: Request, match: re.Match[str]) -> Request:
    document = request.document
    del document[match[1]]
    return request.with_document(document)


@rule("^Send the sizes of the gather's data at /(data_shape): grad_output is of another gather")
@rule("^Add 'data_shape', the shape of the gather's data")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, "/data_shape", [4, 2])  # which the reader knows


@rule(r"^Send 'data_shape' (\[.*\]|[0-9,]+) in place of 'tensor'\.")
def _(request: Request, match: re.Match[str]) -> Request:
    if "?" in request.path:
        path = request.path.replace("tensor=", "").partition("?")[0]
        return put(Request(request.method, path, request.body, request.headers), "/query/data_shape", match[1])
    document = request.document
    del document["tensor"]
    return request.with_document(document | {"data_shape": json.loads(match[1])})


@rule("^Send 'concat': false")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, "/concat", False)


@rule("^Use a dialect such as '(.+?)'")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, "/dialect", match[1])


@rule(r"^(?:Ask for|Give the input) '(\w+)' once\.")
def _(request: Request, match: re.Match[str]) -> Request:
    document = request.document
    for listed in ("inputs", "outputs"):
        document[listed] = list({one["name"]: one for one in document.get(listed, [])}.values())
    return request.with_document(document)


@rule(r"^Write one of (?P<first>[\w-]+), .* at (?P<at>/\S+)\.")
@rule(r"^Write '(?P<first>\w+)' at (?P<at>/\S+), or leave out")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, match["at"], match["first"])


@rule(r"^Write a finite number at (?P<at>/\S+), such as (?P<value>\S+) or")
@rule(r"^Write .*, such as (?P<value>.+?), (?:or \"NaN\", )?at (?P<at>/\S+), since the type is")
@rule(r"^Write JSON text at (?P<at>/\S+), such as (?P<value>\S+),")
@rule(r"^Write (?P<value>[0-9,]+) at (?P<at>/\S+): the sizes")
def _(request: Request, match: re.Match[str]) -> Request:
    query = match["at"].startswith("/query/")
    return put(request, match["at"], match["value"] if query else json.loads(match["value"]))


@rule(r"^Write a list at (/\S+), (even of a single feature|with an object of)")
def _(request: Request, match: re.Match[str]) -> Request:
    given = request.document["features"]
    return put(request, match[1], [given] if isinstance(given, dict) else [{"tensor": "items", "indices": flat([0])}])


@rule(r"^Write '(output)' at (/\S+)\.")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, match[2], match[1])


@rule(r"^Move '(\w+)' from the query into the text '(\w+)' of __metadata__")
def _(request: Request, match: re.Match[str]) -> Request:
    path, _, query = request.path.partition("?")
    end = 8 + int.from_bytes(request.body[:8], "little")
    header = json.loads(request.body[8:end])
    text = json.loads(header["__metadata__"][match[2]]) | {match[1]: dict(parse_qsl(query))[match[1]]}
    header["__metadata__"][match[2]] = json.dumps(text)
    written = json.dumps(header).encode()
    return replace(request, path=path, body=len(written).to_bytes(8, "little") + written + request.body[end:])
