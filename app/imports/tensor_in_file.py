"""Find a tensor in a source. The first bytes determine whether the file is npy or safetensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, TypeVar

from app.errors import GatherError, invalid_field
from app.formats import npy
from app.formats.body_formats import NPY, SAFETENSORS_FILE
from app.formats.npy import Start
from app.formats.safetensors.header import HEADER_BYTES, Entry, check_header_size, hint_for_type, read_header
from app.formats.safetensors.upload import keys_spec
from app.imports.source import Source, SourceFailed
from app.memory.budget import Memory
from app.near_name import near_name, shorten
from app.tensors.dtypes import BY_SAFETENSORS

T = TypeVar("T")
_LISTED: Final = 3
_TABLES: Final = (b"PAR1", b"ARROW1", b"\xff\xff\xff\xff")
"""First bytes of Parquet files, Arrow IPC files and Arrow IPC streams."""
_UNSOUND_HINT: Final = (
    "Write the file again, with numpy.save or with save_file of safetensors, and then send the request again."
)


@dataclass(frozen=True, slots=True)
class Found:
    """A tensor in a source: its type and shape, and the span of its items.

    If the source contains nothing but this tensor, `head` holds the bytes before the items, so that a checksum of the
    whole file can be verified. If row keys were requested, `start.keys` describes them, and `key_spans` lists their
    spans, which precede the items.
    """

    start: Start
    begin: int
    end: int
    head: bytes | None
    key_spans: tuple[tuple[int, int], ...] = ()


async def find_tensor(
    source: Source, head: bytes, tensor: str | None, memory: Memory, keys: str | None = None
) -> Found:
    """Find the tensor with this name, or the only tensor if `tensor` is None.

    `head` holds the first bytes of the source. `keys` is the name of the tensor that holds the row keys. Raises
    SourceFailed if the file is invalid, invalid_field (at /tensor or /keys), limit_exceeded, and the errors of
    `memory.charge`.
    """
    if NPY.is_meant(head):
        if tensor is not None:
            raise invalid_field("/tensor", "an npy file has one tensor, without a name", "Leave out 'tensor'.")
        if keys is not None:
            raise invalid_field("/keys", "an npy file has one tensor, and no keys", "Leave out 'keys'.")
        return await _find_in_npy(source, head)
    if SAFETENSORS_FILE.is_meant(head):
        return await _find_in_safetensors(source, head, tensor, memory, keys)
    if head.startswith(_TABLES):
        raise SourceFailed(
            "it is a Parquet or Arrow file, which the service does not read",
            "Upload it with `gathernd tensors put NAME URL --keys COLUMN`, which reads it where the command runs.",
        )
    raise SourceFailed("it is neither an npy file nor a safetensors file")


async def _find_in_npy(source: Source, head: bytes) -> Found:
    start = _read_header(lambda: npy.read_start(head))
    if start is None:
        head = await _extend_head(source, head, npy.MAX_HEADER + 12)
        start = _read_header(lambda: npy.read_start(head))
    if start is None:
        raise SourceFailed("it ends within its header")
    if source.size is None:
        source.size = max(start.offset + prod(start.shape) * start.dtype.item_size, len(head))
    return Found(start, start.offset, source.size, head[: start.offset])


async def _find_in_safetensors(
    source: Source, head: bytes, tensor: str | None, memory: Memory, keys: str | None
) -> Found:
    size = int.from_bytes(head[:8], "little")
    check_header_size(size, "/url")
    memory.charge(HEADER_BYTES * size)
    head = await _extend_head(source, head, 8 + size)
    if len(head) < 8 + size:
        raise SourceFailed("it ends within its header")
    entries = _read_header(lambda: read_header(head[8 : 8 + size]))
    described = 8 + size + max((entry.end for entry in entries), default=0)
    if source.size is None:
        source.size = max(described, len(head))
    if source.size != described:
        raise SourceFailed("its header does not describe all of it, and no more")
    of_keys = () if keys is None else _find_keys(entries, keys)
    entry = _find_entry([one for one in entries if one not in of_keys], tensor)
    dtype = BY_SAFETENSORS.get(entry.dtype)
    if dtype is None:
        raise SourceFailed(f"{entry.dtype!a} is not an element type of this service", hint_for_type(entry.dtype))
    if entry.fault:
        raise SourceFailed(f"of its tensor {shorten(entry.name)!a} {entry.fault}")
    begin = 8 + size + entry.begin
    spec = None if not of_keys else _read_header(lambda: keys_spec(of_keys))
    spans = tuple((8 + size + one.begin, 8 + size + one.end) for one in of_keys)
    if any(after < end for (_, end), after in zip(spans, (*(first for first, _ in spans[1:]), begin), strict=False)):
        raise SourceFailed(
            "the bytes of its keys do not come before those of the tensor",
            "Write the file with the keys first: the offsets, the bytes and then the tensor if they are strings.",
        )
    start = Start(dtype, entry.shape, 0, keys=spec)
    return Found(start, begin, 8 + size + entry.end, head[:begin] if len(entries) == 1 else None, spans)


def _find_keys(entries: Sequence[Entry], keys: str) -> tuple[Entry, ...]:
    """Return the tensors that hold the keys: the tensor `keys` or, for strings, the two parts `NAME.offsets` and
    `NAME.bytes`.
    """
    named = {entry.name: entry for entry in entries}
    for names in ((keys,), (f"{keys}.offsets", f"{keys}.bytes")):
        if all(name in named for name in names):
            return tuple(named[name] for name in names)
    raise invalid_field(
        "/keys",
        f"the file has no tensor {shorten(keys)!r}, and not {shorten(keys)}.offsets and {shorten(keys)}.bytes",
        "Name the tensor that holds the keys.",
    )


def _find_entry(entries: Sequence[Entry], tensor: str | None) -> Entry:
    if tensor is None and len(entries) == 1:
        return entries[0]
    names = [entry.name for entry in entries]
    if not names:
        raise SourceFailed("it has no tensor")
    listed = ", ".join(repr(shorten(name)) for name in names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")
    if tensor is None:
        raise invalid_field(
            "/tensor",
            f"the file has {len(names)} tensors, {listed}; an import reads one",
            f"Name one of them in 'tensor', such as {shorten(names[0])!r}.",
        )
    for entry in entries:
        if entry.name == tensor:
            return entry
    near = near_name(tensor, names) or names[0]
    raise invalid_field(
        "/tensor",
        f"the file has no tensor {shorten(tensor)!r}; it has {listed}",
        f"Write {shorten(near)!r} in place of {shorten(tensor)!r} in 'tensor'.",
    )


async def _extend_head(source: Source, head: bytes, size: int) -> bytes:
    """Return the first `size` bytes, or all bytes if there are fewer."""
    size = size if source.size is None else min(size, source.size)
    return head[:size] if len(head) >= size else head + bytes(await source.read(len(head), size))


def _read_header(read: Callable[[], T]) -> T:
    """Call `read` on a header. Converts its errors to SourceFailed, because they describe a request body."""
    try:
        return read()
    except GatherError as problem:
        if problem.code == "limit_exceeded":
            raise
        hint = _UNSOUND_HINT if problem.code == "malformed_request" else problem.hint
        raise SourceFailed(problem.detail.replace("the body", "the file"), hint) from None
