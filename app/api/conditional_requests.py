"""Reads If-Match and If-None-Match (RFC 9110, 13.1), compares their ETags, and answers 304."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from app.api.asgi_request import Field, RequestContext
from app.errors import GatherError, invalid_field
from app.store import Conditions

_MOST_TAGS: Final = 256
"""ETags that a condition may list, so that the event loop reads it in a tenth of a millisecond."""
_MEMBER: Final = re.compile(r'[ \t,]*+(\*|(?:W/)?"[\x21\x23-\x7e\x80-\xff]*")?[ \t]*+(?:,|\Z)')
"""A member of a list, behind any number of empty ones. Nothing is matched twice, however a field is broken."""
_BARE: Final = re.compile("[A-Za-z0-9._-]{1,80}")
"""An ETag without its quotes."""


def read_conditions(headers: Mapping[bytes, bytes]) -> Conditions:
    """Read the conditions of a request. Raises invalid_field if a field is neither `*` nor a list of entity tags.

    The ETags of this service are strong. If-None-Match compares weakly, so that `W/"x"` there means `"x"`; If-Match
    compares strongly, so that a weak tag there matches nothing.
    """
    match, none_match = _tags(headers, "if-match"), _tags(headers, "if-none-match")
    if none_match is not None:
        none_match = tuple(tag.removeprefix("W/") for tag in none_match)
    return Conditions(match, none_match)


def etag_field(etag: str) -> Field:
    """The header field ETag."""
    return b"etag", etag.encode()


def version_field(version: int) -> Field:
    """The header field that says which version of a tensor an answer is of."""
    return b"x-gathernd-data-version", b"%d" % version


async def is_unchanged(context: RequestContext, etag: str, *further: Field, kind: str = "tensor") -> bool:
    """Judge the conditions of a GET, of a tensor or what `kind` names; True once 304 has been sent.

    `further` are header fields of that answer besides ETag.
    """
    conditions = read_conditions(context.headers)
    Conditions(match=conditions.match).check(etag, kind)
    if conditions.none_match is not None and (etag in conditions.none_match or conditions.none_match == ("*",)):
        await context.send_empty(304, etag_field(etag), *further)
        return True
    return False


def _tags(headers: Mapping[bytes, bytes], name: str) -> tuple[str, ...] | None:
    """The entity tags of a field, ("*",) where one of them is `*`; None where there is no such field."""
    field = headers.get(name.encode())
    if field is None:
        return None
    text = field.decode("latin-1")
    tags: list[str] = []
    place = 0
    while place < len(text):
        member = _MEMBER.match(text, place)
        if member is None:
            raise _malformed(name, text)
        if member[1] is not None:
            tags.append(member[1])
            if len(tags) > _MOST_TAGS:
                raise invalid_field(
                    f"/{name}",
                    f"{name.title()} lists more than {_MOST_TAGS} ETags",
                    f"Send at most {_MOST_TAGS} ETags in {name.title()}.",
                )
        place = member.end()
    if not tags:
        raise _malformed(name, text)
    return ("*",) if "*" in tags else tuple(tags)


def _malformed(name: str, text: str) -> GatherError:
    hint = f"Send the ETag in {name.title()} with its double quotes, as the answer of GET has it in the field ETag."
    if _BARE.fullmatch(text):
        hint = f"Send '{name.title()}: \"{text}\"' with the double quotes, which are part of an ETag."
    return invalid_field(f"/{name}", f'{name.title()} must be * or a list of ETags, as in "a", "b"', hint)
