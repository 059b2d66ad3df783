"""Response models for resident tensors, aliases and imports, for OpenAPI and generated clients."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field, JsonValue
from pydantic.json_schema import SkipJsonSchema

from app.api.schemas.answers import OpenModel
from app.requests.schemas.member_types import DTypeName, Size
from app.store.tensor_metadata import MOST_RANGES

_TIME: Final[dict[str, JsonValue]] = {"format": "date-time"}


class TableRange(OpenModel):
    """Rows of a table in a cluster, numbered as in a download, and the shards that hold them."""

    start: Size = Field(description="The first row.")
    stop: Size = Field(description="The row after the last one.")
    shards: list[str] = Field(description="Names or addresses of the shards that hold the range.")
    primary: str | SkipJsonSchema[None] = Field(
        None,
        description="The shard that orders scatters to the range; present after this version's first scatter.",
    )
    in_sync: list[str] | SkipJsonSchema[None] = Field(
        None,
        description="The shards that have every acknowledged scatter; present after this version's first scatter.",
    )


class TableKeys(OpenModel):
    """The keys of a table: one distinct key for each row of axis 0."""

    dtype: Literal["int64", "uint64", "string"]
    sha256: str = Field(
        description="SHA-256 of dtype, shape and keys as uploaded, in hex. Strings count as one uint8 tensor: the "
        "offsets (int64), then the bytes."
    )


class ResidentTensor(OpenModel):
    """The metadata of a version of a resident tensor; in lists, of the current version."""

    name: str
    version: Size = Field(description="Number of the version. Each upload of the name creates the next one.")
    versions: list[Size] = Field(description="Numbers of all versions that are kept.")
    dtype: DTypeName
    shape: list[Size]
    bytes: Size = Field(description="Bytes of its items. A string needs its UTF-8 and 4 bytes for its length.")
    etag: str = Field(
        description="Identifies this data, across all tensors and all times. In quotes, as in the header."
    )
    sha256: str = Field(
        description="SHA-256 of dtype, shape and items as uploaded, in hex. The same for every format of the upload; "
        "scatters do not change it."
    )
    created: str = Field(description="When the name was created (RFC 3339).", json_schema_extra=_TIME)
    modified: str = Field(description="When the data last changed.", json_schema_extra=_TIME)
    prefault: bool = Field(description="Whether the data is read into memory ahead of requests.")
    lock: bool = Field(description="Whether the service keeps the data in memory.")
    keys: TableKeys | None = Field(description="The keys of its rows; null if it has none.")
    capacity: Size | SkipJsonSchema[None] = Field(
        None,
        description="For tables with keys: rows it can hold before it grows. In a cluster: its number of rows.",
    )
    replicas: Size | SkipJsonSchema[None] = Field(
        None, description="In a cluster: number of shards that hold a copy of each row range."
    )
    ranges: list[TableRange] | SkipJsonSchema[None] = Field(
        None, description=f"In a cluster, but not in lists: its first {MOST_RANGES} row ranges."
    )
    note: str | SkipJsonSchema[None] = Field(None, description="The note of the upload, if it had one.")
    damaged: bool | SkipJsonSchema[None] = Field(None, description="In lists: true if the data is damaged.")


class TensorList(OpenModel):
    """Resident tensors in the order of their names."""

    tensors: list[ResidentTensor]
    next: str | None = Field(description="Value of `after` for the next page of tensors; null at the end.")


_CHANGED_RANGES: Final = Field(
    None,
    description=(
        "In a cluster: number of row ranges that it changed. Each range changes in one step, one range after the other."
    ),
)


class ScatterAnswer(OpenModel):
    """The tensor after the scatter."""

    name: str = Field(description="Its name, as in the path.")
    etag: str
    ranges: Size | SkipJsonSchema[None] = _CHANGED_RANGES


class UpsertAnswer(OpenModel):
    """The table after the upsert. A repeated request gets its first answer."""

    name: str = Field(description="Its name, as in the path.")
    etag: str
    rows: Size = Field(description="Number of its rows.")
    inserted: Size = Field(description="Number of keys that were new.")
    ranges: Size | SkipJsonSchema[None] = _CHANGED_RANGES


class RemoveAnswer(OpenModel):
    """The table after the removal. A repeated request gets its first answer."""

    name: str = Field(description="Its name, as in the path.")
    etag: str
    rows: Size = Field(description="Number of its rows.")
    removed: Size = Field(description="Number of rows removed.")
    missing: Size = Field(description="Number of distinct keys that the table did not have.")
    ranges: Size | SkipJsonSchema[None] = _CHANGED_RANGES


class AliasBody(OpenModel):
    """An alias, and the version of a tensor that it points to."""

    alias: str = Field(description="Its own name.")
    tensor: str = Field(description="The version that it points to, `NAME@7`.")
    version: Size = Field(description="The number of that version.")
    etag: str = Field(description="Changes with each move. In quotes, as in the header.")
    created: str = Field(description="When the alias was created (RFC 3339).", json_schema_extra=_TIME)
    modified: str = Field(description="When it was last moved.", json_schema_extra=_TIME)


class AliasList(OpenModel):
    """Aliases in the order of their names."""

    aliases: list[AliasBody]
    next: str | None = Field(description="Value of `after` for the next page of aliases; null at the end.")


class ImportBody(OpenModel):
    """An import: its target, its progress, and its outcome."""

    id: str
    name: str = Field(description="The tensor that gets the next version.")
    url: str = Field(description="The source URL without its query.")
    tensor: str | None = Field(description="The name of the tensor in a safetensors file, if the request gave it.")
    state: Literal["running", "done", "failed", "cancelled"]
    bytes_done: Size = Field(description="Bytes of items read so far.")
    bytes_total: Size = Field(description="Bytes of items in total.")
    created: str = Field(description="When it began (RFC 3339).", json_schema_extra=_TIME)
    ended: str | None = Field(description="When it ended; null while it runs.", json_schema_extra=_TIME)
    error: dict[str, Any] | None = Field(description="Why it failed, as the body of an error; null otherwise.")
    metadata: ResidentTensor | None = Field(description="The new version, once it is done; null otherwise.")


class ImportList(OpenModel):
    """Imports in the order in which they began."""

    imports: list[ImportBody]
    next: str | None = Field(description="Value of `after` for the next page of imports; null at the end.")
