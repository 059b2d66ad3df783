"""The bodies of `PUT /aliases/{alias}` and `PUT /aliases`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field, SkipValidation

from app.errors import invalid_field
from app.json_text import lossless_json
from app.requests.schemas.invalid_fields import validated
from app.requests.schemas.member_types import ABSENT, Detail, JsonString, RequestModel

MOST_ALIASES: Final = 100
"""Aliases that a request may move: one reading of the request on the event loop, and one transaction, of which etcd
takes 128 puts at most."""
MOST_BYTES: Final = MOST_ALIASES << 10
"""Bytes of a body that has so many: longest names and ETags take some 500 for each."""
_MEMBER: Final = "aliases"
_TARGET: Final = Detail("tensor must be a text, the version that the alias is to name, as in 'items@7'")
_ALIASES: Final = Detail(f"aliases must be an object with 1 to {MOST_ALIASES} members, from aliases to versions")
_CONDITION: Final = Detail("{name} must be a text, the ETag of the alias with its double quotes, or *")


class AliasRequest(RequestModel):
    """What an alias is to name."""

    tensor: Annotated[JsonString, _TARGET] = Field(
        description="The version of a tensor, `NAME@7`; never an alias, and never a name without a number."
    )


class AliasMoveRequest(AliasRequest):
    """What one of several aliases is to name, and on which condition."""

    if_match: Annotated[JsonString, _CONDITION] = Field(
        ABSENT, description="The ETag that the alias must have, or several with commas between them, or * for any."
    )
    if_none_match: Annotated[JsonString, _CONDITION] = Field(
        ABSENT, description="* where there must be no such alias, or ETags that it must not have."
    )


class AliasesRequest(RequestModel):
    """Aliases that are made or moved in one step."""

    aliases: Annotated[
        dict[SkipValidation[str], SkipValidation[JsonString | AliasMoveRequest]],
        Field(min_length=1, max_length=MOST_ALIASES),
        _ALIASES,
    ] = Field(description="By alias the version of a tensor that it is to name, `NAME@7`, or that with conditions.")


class AskedMove(NamedTuple):
    """One of several aliases, its place in the body, and what is asked of it."""

    alias: str
    pointer: str
    target_pointer: str
    asked: AliasMoveRequest


def alias_target(document: Any) -> str:
    """What the alias of a JSON document is to name, as it was written. Raises invalid_field."""
    return validated(AliasRequest, document).tensor


def alias_moves(document: Any) -> Iterator[AskedMove]:
    """What the aliases of a JSON document are to name. Raises invalid_field."""
    for alias, asked in validated(AliasesRequest, document).aliases.items():
        member = lossless_json.printable(alias).replace("~", "~0").replace("/", "~1")
        pointer = f"/{_MEMBER}/{member}"
        given: Any = asked
        if isinstance(given, str):
            yield AskedMove(alias, pointer, pointer, AliasMoveRequest(tensor=given))
        elif type(given) is dict:
            found = validated(AliasMoveRequest, given, pointer)
            yield AskedMove(alias, pointer, f"{pointer}/tensor", found)
        else:
            detail = "an alias is given the version that it is to name, as in 'items@7', or an object with that"
            raise invalid_field(pointer, detail, f'Write at {pointer} a version, such as "items@7".')
