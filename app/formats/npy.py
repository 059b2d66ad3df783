"""NumPy's file format, restricted to plain numbers: no Python objects, pickles, text or records.

A file consists of a magic number, two version bytes, the length of a header (uint16 in version 1, uint32 in versions 2
and 3), the header (the text of a Python dictionary), and the items.

Headers have the same meaning as in `numpy.lib.format`, including headers written by Python 2. NumPy's reader is not
used because it passes the whole header to `ast.literal_eval`: a hostile header of 10,000 characters, NumPy's limit,
costs 28 ms and 4.7 MB (measured on an Intel Xeon). Here, such a header is refused in microseconds, and a regular
expression reads headers in the form that NumPy writes.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from app.errors import GatherError
from app.tensors.dtypes import DTYPES, DType
from app.tensors.keys_spec import KeysSpec

MAGIC: Final = b"\x93NUMPY"
MAX_HEADER: Final = 1 << 16
"""Maximum size in bytes of a header: NumPy writes about 128, and refuses to read more than 10,000."""
_MAX_LITERAL_CHARACTERS: Final = 1 << 10
"""Maximum number of characters in a header that is not in NumPy's own form. Python takes about 1 us per character."""
_NUMPY_HEADER: Final = re.compile(
    r"{'descr': '([^'\\]*+)', 'fortran_order': (True|False), 'shape': \(([0-9, ]*+)\),? ?}"
)
_SIZES: Final = re.compile(r"(?:[0-9]{1,40}, ?)+(?:[0-9]{1,40})?")
_MAX_DIMENSIONS: Final = 64
"""Maximum number of dimensions in NumPy 2. A shape with more is refused because of its rank; its sizes are not read."""
_TEXT_OR_LONG: Final = re.compile(r"""('[^'\\\n]*+'|"[^"\\\n]*+")|(?<=[0-9]) *+L\b""")
"""Matches a string, which is kept, or the L that Python 2 writes after a long integer, which is dropped."""
_DESCR: Final = re.compile(r"[<>=|]?[b-zA-Z?][a-z0-9_]{0,15}")
"""Matches a type that NumPy is allowed to parse: a single type, but neither a record nor the deprecated 'a'."""
_BY_CODE: Final = {row.npy: row for row in DTYPES.values() if row.npy is not None}
_NAMES: Final = tuple(row.name for row in _BY_CODE.values())
_NARROW: Final = re.compile(r"(?:float[468]|u?int[124])(?:_\w{1,16})?")
"""Names of ml_dtypes' types of at most 8 bits."""
UNSOUND_HINT: Final = (
    "Write the file with numpy.save, and send all of its bytes, as 'curl -T FILE' and '--data-binary @FILE' do: '-d' "
    "leaves out line ends."
)
_ALIGNMENT: Final = 64


@dataclass(frozen=True, slots=True)
class Start:
    """The description of an upload. Its items begin at byte `offset`.

    `swap` is True if items are big-endian; `fortran` is True if they are in column-major order. `keys` describes the
    keys before the items, if rows have keys; `only_keys` is True if the upload contains nothing else.
    """

    dtype: DType
    shape: tuple[int, ...]
    offset: int
    swap: bool = False
    fortran: bool = False
    shape_pointer: str = "/body"
    keys: KeysSpec | None = None
    only_keys: bool = False


def read_start(head: bytes | bytearray) -> Start | None:
    """Parse the start of an npy file. Returns None if more bytes are needed.

    Raises malformed_request, limit_exceeded if the header is longer than `MAX_HEADER`, and unsupported_dtype.
    """
    if not head.startswith(MAGIC[: len(head)]):
        raise _malformed("it does not start with the magic number")
    if len(head) < 8:
        return None
    version = head[6]
    if version not in (1, 2, 3) or head[7]:
        raise _malformed(f"its version is {version}.{head[7]}; 1.0, 2.0 and 3.0 are supported")
    begin = 10 if version == 1 else 12
    if len(head) < begin:
        return None
    length = int.from_bytes(head[8:begin], "little")
    if length > MAX_HEADER:
        raise GatherError(
            "limit_exceeded",
            f"the npy header has {length} bytes; the limit is {MAX_HEADER}",
            facts={"limit": "npy_header_bytes", "maximum": MAX_HEADER},
        )
    offset = begin + length
    if len(head) < offset:
        return None
    members = _members(bytes(head[begin:offset]), version)
    dtype, swap = _dtype(members["descr"])
    shape = members["shape"]
    if type(shape) is not tuple or not all(type(size) is int and size >= 0 for size in shape[:_MAX_DIMENSIONS]):
        raise _malformed("its shape is not a tuple of integers of 0 or more")
    if type(members["fortran_order"]) is not bool:
        raise _malformed("its fortran_order is not True or False")
    return Start(dtype, shape, offset, swap, members["fortran_order"])


def _members(raw: bytes, version: int) -> dict[str, Any]:
    try:
        text = raw.decode("utf-8" if version == 3 else "latin-1").strip()
        match = _NUMPY_HEADER.fullmatch(text)
        rank = 0 if match is None else match[3].rstrip(", ").count(",") + 1
        if match is not None and (rank > _MAX_DIMENSIONS or _SIZES.fullmatch(match[3])):
            shape = (1,) * rank if rank > _MAX_DIMENSIONS else tuple(map(int, match[3].rstrip(", ").split(",")))
            return {"descr": match[1], "fortran_order": match[2] == "True", "shape": shape}
        if len(text) > _MAX_LITERAL_CHARACTERS:
            raise _malformed(f"its header has {len(text)} characters, which is more than a dtype and a shape need")
        if version < 3:
            text = _TEXT_OR_LONG.sub(r"\1", text)
        members = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise _malformed("its header is not the text of a dictionary") from None
    if not isinstance(members, dict) or members.keys() != {"descr", "fortran_order", "shape"}:
        raise _malformed("its header must have descr, fortran_order and shape, and nothing else")
    return members


def _dtype(descr: Any) -> tuple[DType, bool]:
    """Return the element type, and whether its bytes must be swapped."""
    if isinstance(descr, str) and _DESCR.fullmatch(descr):
        try:
            code = np.dtype(descr).str
        except TypeError:
            code = ""
        dtype = _BY_CODE.get(code[1:])
        if dtype is not None:
            return dtype, code[0] == ">"
    raise GatherError(
        "unsupported_dtype",
        f"the npy dtype {str(descr)[:80]!a} is not supported: objects, text, bytes, records and dates are not, strings "
        "and bfloat16 come as application/octet-stream",
        pointer="/body",
        hint=_hint(str(descr)),
    )


def _hint(descr: str) -> str:
    code = descr.strip("<>=|")
    if code[:1] in ("U", "S"):
        return "Send strings as application/octet-stream, the length of each before it, with dtype=string in the query."
    if code in ("V2", "bfloat16"):
        return "Send the bytes of bfloat16 as application/octet-stream, or save array.astype('float32')."
    if code in ("V1", "f1") or _NARROW.fullmatch(code):
        return "Save array.view('uint8') to keep the bytes of 8-bit floats and 4-bit integers as uint8."
    if code[:1] in ("M", "m"):
        return "Save array.view('int64') to keep the numbers of dates and times."
    return f"Save array.astype('float32'), or with another type of {', '.join(_NAMES)}."


def _malformed(what: str) -> GatherError:
    return GatherError("malformed_request", f"the body is not a valid npy file: {what}", hint=UNSOUND_HINT)


def check_writable(dtype: DType) -> None:
    """Raise unsupported_dtype if npy does not support the type, as with strings and the floats of ml_dtypes."""
    if dtype.npy is None:
        raise GatherError(
            "unsupported_dtype",
            f"npy cannot carry {dtype.name}; request application/octet-stream",
            pointer="/accept",
            hint="Send 'Accept: application/octet-stream', which carries every type.",
        )


def write_header(dtype: DType, shape: tuple[int, ...]) -> bytes:
    """Return the bytes before the items of a little-endian, row-major array, padded to 64 bytes."""
    text = f"{{'descr': '{dtype.numpy.str}', 'fortran_order': False, 'shape': {shape}, }}"
    version, begin = (1, 10) if len(text) < 60_000 else (2, 12)
    length = begin + len(text) + 1
    text += " " * (-length % _ALIGNMENT) + "\n"
    return MAGIC + bytes((version, 0)) + len(text).to_bytes(begin - 8, "little") + text.encode()
