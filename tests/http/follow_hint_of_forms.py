"""What hints of missing and mistyped members, of places in a text and of lists ask for, beside `follow_hint`.

Where a hint leaves a choice to its reader (which tensor, how many items), the reader's is made here.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from dataclasses import replace
from math import prod
from typing import Any
from urllib.parse import parse_qsl
from uuid import uuid4

from tests.http import follow_operator_hint  # noqa: F401, whose rules come before these
from tests.http.follow_hint import WHOLE, Request, at, follow, named, put, rule, splice

_LOOKUP = json.dumps({"features": [{"tensor": "items"}]})
_LISTED = {"/tensors": "items", "/aliases": "live"}
"""A name that the reader finds in a list."""


@rule(r"^(?:Use|Name|Write|Add) .*that (GET|POST) (/[a-z0-9/]+) lists")
def _(request: Request, match: re.Match[str]) -> Request:
    known = _LISTED.get(match[2])
    if known is None:
        return Request(match[1], match[2], b"{}" if match[1] == "POST" else b"")  # the list is what there is to see
    return put(request, request.place, known) if request.place != "/name" else named(request, known)


@rule(r"^Send POST to '([^']+)'")
def _(request: Request, match: re.Match[str]) -> Request:
    return Request("POST", match[1], b"{}")


@rule(r"^Ask for the tensor at (/\S+)\.")
def _(request: Request, match: re.Match[str]) -> Request:
    return Request("GET", match[1])


@rule(r"^Move the alias with PUT (/\S+) .* or remove it with DELETE")
def _(request: Request, match: re.Match[str]) -> Request:
    return Request("DELETE", match[1])


@rule("^Put a name behind the slash")
def _(request: Request, match: re.Match[str]) -> Request:
    return replace(
        request, path=re.sub("^/(tensors|aliases)/", lambda kind: kind[0] + _LISTED[kind[0][:-1]], request.path)
    )


# Members that are missing or of another form


def items(tensor: dict[str, Any]) -> list[Any]:
    """As many zeros as the shape of a tensor has items."""
    shape = tensor.get("shape", [1])
    return [0] * (prod(shape) if isinstance(shape, list) and all(type(size) is int for size in shape) else 1)


@rule(r"^Add '\w+' at (?P<at>/\S+): .*, such as (?P<value>.+)\.$")
@rule(r"^Write at (?P<at>/\S+) .*, such as (?P<value>.+)\.$")
@rule(r"^Write a (?:whole |smaller )?number at (?P<at>/\S+), (?:such as|as in) (?P<value>0)")
@rule(r"^Write a number from (?P<value>-?\d+) to -?\d+ at (?P<at>/\S+)\.")
@rule(r"^Write (?P<value>true|false)(?: or false)? at (?P<at>/\S+)\.")
@rule(r"^Write JSON text in double quotes at (?P<at>/\S+), such as (?P<value>\"?.+\"?)\.$")
def _(request: Request, match: re.Match[str]) -> Request:
    value = json.loads(match["value"])
    return put(
        request,
        match["at"],
        json.dumps(value) if match[0].startswith("Write JSON text") and not isinstance(value, str) else value,
    )


@rule(r"^Write '(output)' at (/\S+)\.")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, match[2], match[1])


@rule(r"^Add an input '(\S+)'\.")
def _(request: Request, match: re.Match[str]) -> Request:
    document = request.document
    document["inputs"].append({"name": match[1], "datatype": "INT64", "shape": [1], "data": [0]})
    return request.with_document(document)


@rule(r"^Write the name of a type at (/\S+), such as '(\w+)'\.")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, match[1], match[2])


@rule(r"^Write an object at (/\S+), with dtype, shape and values for a tensor")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, match[1], WHOLE)


@rule(r"^Write at (/\S+) an object with the name, datatype, shape and data")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, match[1], {"name": "indices", "datatype": "INT64", "shape": [1, 1], "data": [0]})


@rule(r"^Use one of the types (\w+),")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, request.place, match[1])


@rule(r"^Add '(values)' at (/\S+)/values, the items in a list")
@rule("^Send the items in (data), or as bytes")
@rule(r"^Write a list at (/\S+)/(values|data), such as \[0\]")
@rule(r"^Write a list at (?P<list>/\S+?)/(?:values|data), such as")
def _(request: Request, match: re.Match[str]) -> Request:
    document = request.document
    name = "data" if re.search("items in data|/data, such", match[0]) else "values"
    place = request.place.removesuffix(f"/{name}")
    holder, last = at(document, place)
    holder[last] = {**holder[last], name: items(holder[last])}
    return request.with_document(document)


@rule(r"^Put a list at (/\S+) in place of one value")
def _(request: Request, match: re.Match[str]) -> Request:
    holder, last = at(request.document, match[1])
    return put(request, match[1], [holder[last]])


@rule(r"^Put one value at (/\S+) in place of a list")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, match[1], 0)


@rule(r"^Write the item at (/\S+) as a pair")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, match[1], [0, 0])


@rule(r"^Add '(shape)' at (/\S+), which base64 does not give")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, match[2], [1])


@rule("^Send each bool as one byte, 0 or 1")
@rule("^Send each string in UTF-8")
@rule(r"^Encode the bytes with \+ and /")
@rule(r"^Write a string at (/\S+)/base64\.")
def _(request: Request, match: re.Match[str]) -> Request:
    if request.place == "/body":
        return replace(request, body=bytes(len(request.body)))
    holder, _ = at(request.document, request.place)
    return put(request, request.place, b64encode(bytes(8 * len(items(holder)))).decode())


@rule(r"^Send (\d+) items of string, each behind the number of its bytes in (\d) bytes")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, request.place, b64encode(bytes(int(match[1]) * int(match[2]))).decode())


@rule(r"^Write the object at (/\S+) as a string")
def _(request: Request, match: re.Match[str]) -> Request:
    holder, last = at(request.document, match[1])
    given = holder[last]
    return put(request, match[1], json.dumps(given) if "features" in given else _LOOKUP)


# Queries and header fields


@rule(r"^Write a number from (\d+) to \d+ in place of")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, request.place, match[1])


@rule(r"^Add '(\w+)' to the query, as in \?([^ ,]+,\d+)")
@rule(r"^Add the tensor '(\w+)' to the body, or name a resident one in the query, as in \?(\S+)\.")
def _(request: Request, match: re.Match[str]) -> Request:
    for pair in match[2].split("&"):
        name, _, value = pair.partition("=")
        request = put(request, f"/query/{name}", value)
    return request


@rule(r"^Move '(\w+)' from the query into the text '(\w+)' of __metadata__")
def _(request: Request, match: re.Match[str]) -> Request:
    path, _, query = request.path.partition("?")
    end = 8 + int.from_bytes(request.body[:8], "little")
    header = json.loads(request.body[8:end])
    text = json.loads(header["__metadata__"][match[2]]) | {match[1]: dict(parse_qsl(query))[match[1]]}
    header["__metadata__"][match[2]] = json.dumps(text)
    written = json.dumps(header).encode()
    return replace(request, path=path, body=len(written).to_bytes(8, "little") + written + request.body[end:])


@rule("^Send in Inference-Header-Content-Length the number of bytes of the JSON")
def _(request: Request, match: re.Match[str]) -> Request:
    return request.with_header("Inference-Header-Content-Length", str(len(request.body)))


@rule("^Send (?:an|a new) Idempotency-Key")
def _(request: Request, match: re.Match[str]) -> Request:
    return request.with_header("Idempotency-Key", uuid4().hex)


# Places in a text


@rule(r"^Put a colon or a comma before what begins at byte (\d+)")
def _(request: Request, match: re.Match[str]) -> Request:
    return splice(request, int(match[1]), int(match[1]), ",")


@rule(r"^Put a (colon|comma) before what begins at byte (\d+)\.")
def _(request: Request, match: re.Match[str]) -> Request:
    return splice(request, int(match[2]), int(match[2]), {"colon": ":", "comma": ","}[match[1]])


@rule(r"^Close the text that begins at byte (\d+) with a double quote where it ends")
def _(request: Request, match: re.Match[str]) -> Request:
    begins = int(match[1])
    text = re.match(rb'"[^,:\]}"]*', request.body[begins:])
    assert text is not None
    return splice(request, begins + text.end(), begins + text.end(), '"')


@rule(r"^Put a double quote before \S+ at byte (\d+)")
def _(request: Request, match: re.Match[str]) -> Request:
    return splice(request, int(match[1]), int(match[1]), '"')


@rule(r"^Put a \] before the comma ahead of byte (\d+)")
def _(request: Request, match: re.Match[str]) -> Request:
    comma = request.body.rindex(b",", 0, int(match[1]))
    return splice(request, comma, comma, "]")


@rule(r"^Put a \[ at byte (\d+), before the first value(, and a \] behind the last)?")
def _(request: Request, match: re.Match[str]) -> Request:
    opens = int(match[1])
    values = re.match(rb"[-0-9., eE+]*[0-9]", request.body[opens:])
    assert values is not None
    return splice(request, opens, opens + values.end(), "[" + values[0].decode() + ("]" if match[2] else ""))


@rule(r"^Put a value before the . at byte (\d+), or leave out what asks for one")
@rule(r"^Leave out the [\]}:_] at byte (\d+)")
def _(request: Request, match: re.Match[str]) -> Request:
    return splice(request, int(match[1]), int(match[1]) + 1, "")


@rule(r"^Write \[ in place of \( at byte (\d+)")
def _(request: Request, match: re.Match[str]) -> Request:
    return splice(request, int(match[1]), int(match[1]) + 1, "[")


@rule(r'^Write texts in double quotes: "(\S+)" in place of \S+ at byte (\d+)\.')
def _(request: Request, match: re.Match[str]) -> Request:
    return splice(request, int(match[2]), int(match[2]) + len(match[1]), f'"{match[1]}"')


@rule(r"^In the JSON text at (/\S+): (.*)")
def _(request: Request, match: re.Match[str]) -> Request:
    if not request.place.startswith(match[1]):  # the array that the text speaks of is an input
        return follow(request, match[2], request.place)
    holder, last = at(request.document, match[1])
    return put(request, match[1], follow(Request("POST", "", holder[last].encode()), match[2]).body.decode())


@rule("^Send one JSON object as the (?:body|text)")
def _(request: Request, match: re.Match[str]) -> Request:
    return replace(request, body=_LOOKUP.encode() if "text" in match[0] else b"{}")


@rule("^Leave out the input ")
def _(request: Request, match: re.Match[str]) -> Request:
    document = request.document
    del document["inputs"][int(request.place.split("/")[2])]
    return request.with_document(document)


@rule(r"^Write the sizes with commas, as in shape=([0-9,]+)\.")
def _(request: Request, match: re.Match[str]) -> Request:
    return put(request, "/query/shape", match[1])


@rule("^Send no index for axis")
def _(request: Request, match: re.Match[str]) -> Request:
    document = request.document
    holder, _ = at(document, re.split("/values|/data(?=/[0-9]|$)|/base64", request.place)[0] + "/shape")
    holder["shape"][0] = 0
    holder["data" if "data" in holder else "values"] = []
    holder.pop("base64", None)
    return request.with_document(document)


@rule(r"^Put a } before the comma ahead of byte (\d+) if")
def _(request: Request, match: re.Match[str]) -> Request:
    comma = request.body.rindex(b",", 0, int(match[1]))
    return splice(request, comma, comma, "}")


@rule(r"^Put a ([\]}]) before the [\]}] at byte (\d+)")
def _(request: Request, match: re.Match[str]) -> Request:
    return splice(request, int(match[2]), int(match[2]), match[1])


@rule(r"^Write a decimal number in place of (\S+) at byte (\d+)\.")
def _(request: Request, match: re.Match[str]) -> Request:
    return splice(request, int(match[2]), int(match[2]) + len(match[1]), "0")


@rule(r"^Put a \{ before byte (\d+)")
def _(request: Request, match: re.Match[str]) -> Request:
    return splice(request, int(match[1]), int(match[1]), "{")
