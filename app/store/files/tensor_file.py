"""The file of a resident tensor: its layout, its header page, and the checksums of its blocks.

    offset 0      eight uint64 words that change while the tensor is served (see `HeaderWord`)
    offset 64     magic, version, length and CRC-32 of the description, which is JSON and never changes
    offset 4032   eight more such words
    offset 4096   the items, little endian, row-major; strings in BYTES framing
    then          for strings, the offset of each frame: one uint64 per item (from a multiple of 8)
    then          the CRC-32 of every 64 KiB from offset 4096 up to here, uint32 each

A file holds one version of one tensor. The file's name is random and never reused, and the catalogue maps tensors to
files. The file system therefore never sees a tensor's name, which may be hostile.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from math import prod
from struct import Struct
from typing import Annotated, Any, Final

import orjson
from pydantic import Field, TypeAdapter, ValidationError

from app.errors import GatherError
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DTYPES, DType

PAGE: Final = 4096
BLOCK: Final = 1 << 16
"""Number of bytes covered by one checksum."""
_MAGIC: Final = b"gathernd"
_FORMAT_VERSION: Final = 1
_SEQUENCE_DIGITS: Final = 18
_PREFIX: Final = Struct("<8sIII")
_PREFIX_AT: Final = 64
_JSON_AT: Final = _PREFIX_AT + _PREFIX.size
_JSON_END: Final = 4032


class HeaderWord(IntEnum):
    """The words in the first page of the file, by index.

    VERSION is the seqlock: twice the number of scatters, odd while one is being applied; bit 63 marks the content as
    damaged. MODIFIED is the time of the last change in nanoseconds since 1970. UNWRITTEN is 1 after a failed fsync: the
    kernel then considers the pages clean, so they must be written again. SNAPSHOTS is 1 while a download may be reading
    an older version; see `download_snapshots`.

    The next words are for replicated versions: see `replicated_contents`. EPOCH is the highest epoch seen, or 0 if the
    version is not replicated. APPLIED_EPOCH is the epoch of the last applied record, or 0 if unknown. SESSION is the
    session of the store in which the content was last recovered, or 0 while a recovery is in progress. UNSETTLED is the
    highest sequence whose rows may have been written to the content before a power loss. LOGGED is the highest sequence
    up to which the log is known to be durable in this session, and DURABLE_EPOCH is the value of EPOCH that is known to
    be durable. CONFIRMED is the last session in which the content had caught up with its primary.

    The last words are for keyed tables. ROWS is the number of rows; the shape in the description is the capacity.
    HEAP_END is the end of the string keys, HEAP_CHECKED is the end of the part that has checksums, and HEAP_BEFORE is
    the end before the change in progress. RENEWED is the sequence of the last change that the file already included
    when it was created: no change up to that sequence is ever applied again, even if a log contains it.
    """

    VERSION = 0
    MODIFIED = 1
    UNWRITTEN = 2
    SNAPSHOTS = 3
    EPOCH = 4
    APPLIED_EPOCH = 5
    SESSION = 6
    UNSETTLED = 7
    LOGGED = 504
    DURABLE_EPOCH = 505
    CONFIRMED = 506
    ROWS = 507
    HEAP_END = 508
    HEAP_CHECKED = 509
    HEAP_BEFORE = 510
    RENEWED = 511


KEY_WORDS: Final = (HeaderWord.ROWS, HeaderWord.HEAP_END, HeaderWord.HEAP_CHECKED)
"""The words of a keyed table. They are 0 in other files."""
REPLICATION_WORDS: Final = (
    HeaderWord.EPOCH, HeaderWord.APPLIED_EPOCH, HeaderWord.SESSION, HeaderWord.UNSETTLED, HeaderWord.LOGGED,
    HeaderWord.DURABLE_EPOCH, HeaderWord.CONFIRMED,
)  # fmt: skip
"""The words of replicated content. They are 0 in other files."""
DAMAGED: Final = 1 << 63


def is_settled(words: Sequence[int]) -> bool:
    """Return whether content with these header words may be read (`MappedContent.words`, `Resident.words`)."""
    return (words[HeaderWord.VERSION] & ~DAMAGED) >> 1 >= words[HeaderWord.UNSETTLED]


class BadFile(Exception):
    """The file is incomplete or is not a valid tensor file. The message says why."""


_Size = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class Description:
    """The description in a file. `id` is random and new for each upload. `size` is the size of the items in bytes.

    `sha256` is the hash of the uploaded dtype, shape and items, in hex.
    """

    id: str
    name: str
    dtype: str
    shape: tuple[_Size, ...]
    size: _Size
    sha256: str
    prefault: bool = False
    lock: bool = False

    @property
    def item_count(self) -> int:
        """The number of items."""
        return prod(self.shape)

    @property
    def offsets_at(self) -> int:
        """The file offset of the table of string offsets or, for other types, of the end of the items."""
        end = PAGE + self.size
        return end + -end % 8 if self.dtype == "string" else end

    @property
    def checksums_at(self) -> int:
        """The offset of the checksums in the file."""
        return self.offsets_at + (8 * self.item_count if self.dtype == "string" else 0)

    @property
    def block_count(self) -> int:
        """The number of checksums."""
        return -(-(self.checksums_at - PAGE) // BLOCK)

    def block_span(self, block: int) -> tuple[int, int]:
        """Return the file offsets at which block number `block` begins and ends."""
        begin = PAGE + block * BLOCK
        return begin, min(begin + BLOCK, self.checksums_at)

    @property
    def file_size(self) -> int:
        """The size of the whole file in bytes."""
        return self.checksums_at + 4 * self.block_count

    def etag(self, sequence: int) -> str:
        """Return the ETag after `sequence` scatters, including its quotation marks."""
        return etag_of(self.id, sequence)


_DESCRIPTION: Final = TypeAdapter(Description)


def etag_of(content: str, sequence: int) -> str:
    """Return the ETag of the content with this ID after `sequence` scatters, including its quotation marks."""
    return f'"{content}-{sequence}"'


def sequence_in(etag: str) -> int:
    """Return the sequence in an ETag built by `etag_of`. Raises ValueError if there is none."""
    digits = etag.rpartition("-")[2].removesuffix('"')
    if not digits.isdecimal() or len(digits) > _SEQUENCE_DIGITS:
        raise ValueError(f"the ETag {etag!r} has no sequence")
    return int(digits)


def new_hash(dtype: DType, shape: tuple[int, ...]) -> Any:
    """Return a SHA-256 hash object for the dtype and the shape. Update it with the items."""
    return hashlib.sha256(f"{dtype.name}[{','.join(map(str, shape))}]\n".encode())


def encode_page(
    description: Description, version: int, modified: int, words: Mapping[HeaderWord, int] | None = None
) -> bytes:
    """Return the first page of the file. `words` holds all nonzero words other than VERSION and MODIFIED."""
    text = orjson.dumps(asdict(description))
    page = bytearray(PAGE)
    for word, value in {HeaderWord.VERSION: version, HeaderWord.MODIFIED: modified, **(words or {})}.items():
        Struct("<Q").pack_into(page, 8 * word, value)
    _PREFIX.pack_into(page, _PREFIX_AT, _MAGIC, _FORMAT_VERSION, len(text), zlib.crc32(text))
    if _JSON_AT + len(text) > _JSON_END:
        raise GatherError("limit_exceeded", "the shape is too long to be kept", pointer="/query/shape")
    page[_JSON_AT : _JSON_AT + len(text)] = text
    return bytes(page)


def decode_page(page: bytes, file_size: int) -> Description:
    """Return the description in a file's first page. Unknown members are ignored.

    Raises BadFile if the page is invalid, or the file does not have the size that the page specifies.
    """
    if len(page) < PAGE:
        raise BadFile("the file ends within its first page")
    magic, version, length, crc = _PREFIX.unpack_from(page, _PREFIX_AT)
    if magic != _MAGIC or version != _FORMAT_VERSION:
        raise BadFile("the file is not one of a tensor")
    text = page[_JSON_AT : _JSON_AT + length]
    if zlib.crc32(text) != crc or _JSON_AT + length > PAGE:
        raise BadFile("the description does not match its checksum")
    try:
        description = _DESCRIPTION.validate_json(text, strict=True)
    except ValidationError as problem:
        first = problem.errors()[0]
        place = ".".join(map(str, first["loc"])) or "its JSON"
        raise BadFile(f"the description is unsound, {place}: {first['msg']}") from None
    if description.dtype not in DTYPES:
        raise BadFile(f"the element type {description.dtype!r} is not known")
    if file_size != description.file_size:
        raise BadFile(f"the file has {file_size} bytes and should have {description.file_size}")
    return description


def page_word(page: bytes, word: HeaderWord) -> int:
    """Return a word of a file's first page."""
    return int.from_bytes(page[8 * word : 8 * word + 8], "little")


def page_version(page: bytes) -> int:
    """Return the VERSION word of a file's first page."""
    return page_word(page, HeaderWord.VERSION)


def page_modified(page: bytes) -> int:
    """Return the MODIFIED word of a file's first page."""
    return page_word(page, HeaderWord.MODIFIED)


def is_sound(fd: int, description: Description, block: int) -> bool:
    """Return whether a block of an open file matches its checksum."""
    begin, end = description.block_span(block)
    checksum = int.from_bytes(os.pread(fd, 4, description.checksums_at + 4 * block), "little")
    return zlib.crc32(os.pread(fd, end - begin, begin)) == checksum


_ZERO_BLOCK: Final = zlib.crc32(bytes(BLOCK)).to_bytes(4, "little")


class BlockChecksums:
    """The CRC-32 of every 64 KiB of a byte stream."""

    def __init__(self) -> None:
        self._checksums = bytearray()
        self._crc = 0
        self._in_block = 0

    def update(self, piece: Buffer) -> None:
        """Add the next bytes."""
        with memoryview(piece) as view:
            place = 0
            while place < len(view):
                part = view[place : place + BLOCK - self._in_block]
                self._crc = zlib.crc32(part, self._crc)
                self._in_block += len(part)
                place += len(part)
                if self._in_block == BLOCK:
                    self._end_block()

    def _end_block(self) -> None:
        self._checksums += self._crc.to_bytes(4, "little")
        self._crc = self._in_block = 0

    def skip(self, size: int) -> None:
        """Add `size` zero bytes."""
        while size:
            if not self._in_block and size >= BLOCK:
                self._checksums += _ZERO_BLOCK * (size // BLOCK)
                size %= BLOCK
            else:
                part = min(size, BLOCK - self._in_block)
                self.update(bytes(part))
                size -= part

    def finish(self) -> bytes:
        """Return all checksums, as little-endian uint32."""
        if self._in_block:
            self._end_block()
        return bytes(self._checksums)
