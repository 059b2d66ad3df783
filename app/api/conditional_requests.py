"""Reads If-Match and If-None-Match (RFC 9110, 13.1), compares their ETags, and sends 304 responses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from app.api.asgi_request import Field, RequestContext
from app.errors import GatherError, invalid_field
from app.store import Conditions

_MOST_TAGS: Final = 256
"""Maximum number of ETags in a condition. It keeps the time for parsing on the event loop below 0.1 ms."""
_MEMBER: Final = re.compile(r'[ \t,]*+(\*|(?:W/)?"[\x21\x23-\x7e\x80-\xff]*")?[ \t]*+(?:,|\Z)')
"""Matches a list member and any empty members before it. The pattern never backtracks, even on malformed fields."""
_BARE: Final = re.compile("[A-Za-z0-9._-]{1,80}")
"""An ETag without its quotes."""


def read_conditions(headers: Mapping[bytes, bytes]) -> Conditions:
    """Read the conditions of a request. Raises invalid_field if a field is neither `*` nor a list of entity tags.

    The service's ETags are strong. If-None-Match compares weakly, so `W/"x"` there means `"x"`; If-Match compares
    strongly, so a weak tag there never matches.
    """
    return conditions_of(headers.get(b"if-match"), headers.get(b"if-none-match"), None)


def conditions_of(match: bytes | str | None, none_match: bytes | str | None, pointer: str | None) -> Conditions:
    """Parse If-Match and If-None-Match, given as header fields or as members of the JSON object at `pointer`.

    Raises invalid_field.
    """
    of_match, of_none_match = (
        _parse_etags(match, "if-match", pointer),
        _parse_etags(none_match, "if-none-match", pointer),
    )
    if of_none_match is not None:
        of_none_match = tuple(tag.removeprefix("W/") for tag in of_none_match)
    return Conditions(of_match, of_none_match, pointer)


def etag_field(etag: str) -> Field:
    """Return the ETag header field."""
    return b"etag", etag.encode()


def version_field(version: int) -> Field:
    """Return the header field that contains the version number of the data in a response."""
    return b"x-gathernd-data-version", b"%d" % version


async def is_unchanged(context: RequestContext, etag: str, *further: Field, kind: str = "tensor") -> bool:
    """Check the conditions of a GET request for a tensor, or for another `kind` of object.

    Returns True if it has sent 304. `further` lists header fields to send with the 304 in addition to ETag. Raises
    precondition_failed and invalid_field.
    """
    conditions = read_conditions(context.headers)
    Conditions(match=conditions.match).check(etag, kind)
    if conditions.none_match is not None and (etag in conditions.none_match or conditions.none_match == ("*",)):
        await context.send_empty(304, etag_field(etag), *further)
        return True
    return False


def _parse_etags(field: bytes | str | None, name: str, pointer: str | None) -> tuple[str, ...] | None:
    """Parse the entity tags of a field. Returns ("*",) if one of them is `*`, and None if the field is missing."""
    if field is None:
        return None
    text = field if isinstance(field, str) else field.decode("latin-1")
    tags: list[str] = []
    place = 0
    while place < len(text):
        member = _MEMBER.match(text, place)
        if member is None:
            raise _malformed(name, text, pointer)
        if member[1] is not None:
            tags.append(member[1])
            if len(tags) > _MOST_TAGS:
                where, shown = _pointer_and_name(name, pointer)
                detail = f"{shown} lists more than {_MOST_TAGS} ETags"
                raise invalid_field(where, detail, f"Send at most {_MOST_TAGS} ETags in {shown}.")
        place = member.end()
    if not tags:
        raise _malformed(name, text, pointer)
    return ("*",) if "*" in tags else tuple(tags)


def _pointer_and_name(name: str, pointer: str | None) -> tuple[str, str]:
    """Return the JSON pointer of a field, and its name as a caller writes it."""
    if pointer is None:
        return f"/{name}", name.title()
    member = name.replace("-", "_")
    return f"{pointer}/{member}", member


def _malformed(name: str, text: str, pointer: str | None) -> GatherError:
    where, shown = _pointer_and_name(name, pointer)
    hint = f"Send the ETag in {shown} with its double quotes, as in the ETag field of the answer of GET."
    if _BARE.fullmatch(text):
        sent = f"'{shown}: \"{text}\"'" if pointer is None else f'"{shown}": "\\"{text}\\""'
        hint = f"Send {sent} with the double quotes, which are part of an ETag."
    return invalid_field(where, f'{shown} must be * or a list of ETags, as in "a", "b"', hint)
