"""The bodies of the routes that manage tensors: aliases, imports and the number of replicas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field, SkipValidation

from app.errors import invalid_field
from app.json_text import lossless_json
from app.requests.schemas.invalid_fields import validate_document
from app.requests.schemas.member_types import ABSENT, Detail, JsonInteger, JsonString, RequestModel

MOST_ALIASES: Final = 100
"""Maximum number of aliases in one request. They move in one transaction, for which etcd allows 128 puts."""
MOST_BYTES: Final = MOST_ALIASES << 10
"""Size of the largest body in bytes: an alias with the longest names and ETags takes about 500."""
_MEMBER: Final = "aliases"
_TARGET: Final = Detail("tensor must be a string, the version that the alias points to, such as 'items@7'")
_ALIASES: Final = Detail(f"aliases must be an object with 1 to {MOST_ALIASES} members, from aliases to versions")
_CONDITION: Final = Detail("{name} must be a string, the ETag of the alias with its double quotes, or *")


class AliasRequest(RequestModel):
    """The target of an alias."""

    tensor: Annotated[JsonString, _TARGET] = Field(
        description="Version of a tensor, `NAME@7`. Must include the number and must not be an alias."
    )


class AliasMoveRequest(AliasRequest):
    """The target of one of several aliases, with its conditions."""

    if_match: Annotated[JsonString, _CONDITION] = Field(
        ABSENT, description="ETags, separated by commas, one of which the alias must have; or * for any."
    )
    if_none_match: Annotated[JsonString, _CONDITION] = Field(
        ABSENT, description="* if the alias must not exist, or a list of ETags that it must not have."
    )


class AliasesRequest(RequestModel):
    """Aliases to create or move in one step."""

    aliases: Annotated[
        dict[SkipValidation[str], SkipValidation[JsonString | AliasMoveRequest]],
        Field(min_length=1, max_length=MOST_ALIASES),
        _ALIASES,
    ] = Field(description="For each alias, its target version, `NAME@7`, or an object with the target and conditions.")


class AskedMove(NamedTuple):
    """One of several aliases, its place in the body, and its target."""

    alias: str
    pointer: str
    target_pointer: str
    asked: AliasMoveRequest


def alias_target(document: Any) -> str:
    """Return the target in the body of `PUT /aliases/{alias}`, unparsed. Raises invalid_field."""
    return validate_document(AliasRequest, document).tensor


def alias_moves(document: Any) -> Iterator[AskedMove]:
    """Yield the moves in the body of `PUT /aliases`. Raises invalid_field."""
    for alias, asked in validate_document(AliasesRequest, document).aliases.items():
        member = lossless_json.printable(alias).replace("~", "~0").replace("/", "~1")
        pointer = f"/{_MEMBER}/{member}"
        given: Any = asked
        if isinstance(given, str):
            yield AskedMove(alias, pointer, pointer, AliasMoveRequest(tensor=given))
        elif type(given) is dict:
            found = validate_document(AliasMoveRequest, given, pointer)
            yield AskedMove(alias, pointer, f"{pointer}/tensor", found)
        else:
            detail = (
                "an alias must be given the version that it points to, such as 'items@7', or an object with that "
                "version"
            )
            raise invalid_field(pointer, detail, f'Write at {pointer} a version, such as "items@7".')


MOST_REPLICAS: Final = 100
"""Maximum number of shards that may hold a copy of each row range."""
_NUMBER: Final = Detail(f"replicas must be an integer from 1 to {MOST_REPLICAS}")


class ReplicasRequest(RequestModel):
    """The number of shards that hold a copy of each row range of a table."""

    replicas: Annotated[JsonInteger, Field(ge=1, le=MOST_REPLICAS), _NUMBER] = Field(
        description="Number of shards that hold a copy of each row range, for all versions."
    )


def asked_replicas(document: Any) -> int:
    """Return the number of replicas in a JSON body. Raises invalid_field."""
    return validate_document(ReplicasRequest, document).replicas


_URL: Final = Detail("url must be a string, such as 'https://host/folder/table.npy'")
_NOTE: Final = Detail("note must be a string, shown wherever the version is described")
_TENSOR: Final = Detail("tensor must be a string, the name of one of the tensors of a safetensors file")
_KEYS: Final = Detail("keys must be a string, the name of the tensor that holds the keys of the rows")


class ImportRequest(RequestModel):
    """The source of an import."""

    url: Annotated[JsonString, _URL] = Field(
        description="URL (https, http, s3, file) of an npy or safetensors file, below a prefix in GATHERND_IMPORT_FROM."
    )
    tensor: Annotated[JsonString, _TENSOR] = Field(
        ABSENT, description="Name of the tensor to import, if a safetensors file has several."
    )
    keys: Annotated[JsonString, _KEYS] = Field(
        ABSENT,
        description="Name of the tensor with the keys of the rows, in a safetensors file. For string keys, NAME stands "
        "for NAME.offsets and NAME.bytes. The keys must come before the rows in the file.",
    )
    note: Annotated[JsonString, _NOTE] = Field(
        ABSENT, description="A note about the new version, like `note` in the query of an upload."
    )


def import_request(document: Any) -> ImportRequest:
    """Validate the body of an import. Raises invalid_field."""
    found = validate_document(ImportRequest, document)
    for member, text in (("tensor", found.tensor), ("keys", found.keys)):
        if any("\ud800" <= sign <= "\udfff" for sign in text or ""):
            raise invalid_field(f"/{member}", f"{member} has a lone surrogate, which no name in a file can have")
    return found
