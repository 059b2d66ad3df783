"""Costly bodies of gathers and uploads: for each codec, shapes that take long or much memory somewhere.

Each maker takes a size in bytes. `read_body.read` hands a body to its codec.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from typing import Final

from app.formats import body_formats
from tests.costly_bodies.read_body import Body

_TIE: Final = "9007199254740993"
_NEAR_TIE: Final = "1.00000000000000011102230246251565404"
_SMALL_TIE: Final = "2.4703282292062327208282643e-324"

UNITS: Final[dict[str, str]] = {
    "1": "1",
    "0.1": "0.1",
    "17 digits": "0.12345678901234567",
    "1.0": "1.0",
    "1e0": "1e0",
    "integer with fraction": "2917146840092656656.0",
    "integer with exponent": "9223372036854775807E+00",
    "many zeros and an exponent": "1" + "0" * 60 + "e-60",
    "1e400": "1e400",
    "-1e-400": "-1e-400",
    "exponent of 40 digits": "1e" + "9" * 40,
    "30 digits": "123456789012345678901234567890",
    "beside a tie": _TIE + "." + "0" * 24 + "1",
    "a tie": _TIE + "." + "0" * 24,
    "near a tie": _NEAR_TIE,
    "near the smallest tie": _SMALL_TIE,
    "tie of 1,000 digits": _TIE + "." + "0" * 983 + "1",
    "1,000 zeros": "0." + "0" * 1000 + "1",
    "true": "true",
    "null": "null",
    "bare NaN": "NaN",
    "bare -Infinity": "-Infinity",
    "NaN": '"NaN"',
    "-Infinity": '"-Infinity"',
    "escaped NaN": r'"\u004eaN"',
    "escaped -Infinity": r'"\u002dInfinity"',
    "line feed": r'"\n"',
    "empty string": '""',
    "2 letters": '"ab"',
    "100 letters": '"' + "ab" * 50 + '"',
    "escaped letters": r'"\u00e9\u4e00"',
    "escaped pair": r'"a\ud83d\ude00"',
    "lone surrogate": r'"\ud800"',
    "bad escape": r'"\x"',
    "emoji": '"\U0001f642"',
    "emoji in 1,000 letters": '"' + "a" * 1000 + '\U0001f642"',
    "object": "{}",
    "member": '{"a":1}',
    "nested members": '{"":{"":0}}',
    "empty list": "[]",
    "list of 1": "[1]",
    "list of 2": "[1,2]",
    "string in lists": '[[[["a"]]]]',
    "4 deep": "[[[[1]]]]",
    "400 deep": "[" * 400 + "]" * 400,
    "white space": "  \n\t 1 ",
    "much white space": " " * 200 + "1",
}
"""Elements of a list, by a name for them."""
DTYPES_TRIED: Final = ("float32", "float64", "bfloat16", "int64", "uint8", "bool", "complex64", "string")
DATATYPES: Final = {
    "float32": "FP32",
    "float64": "FP64",
    "bfloat16": "BF16",
    "int64": "INT64",
    "uint8": "UINT8",
    "bool": "BOOL",
    "string": "BYTES",
}
_INDICES: Final = '"indices":{"dtype":"int64","shape":[1,1],"values":[0]}'
_V2_INDICES: Final = '{"name":"indices","datatype":"INT64","shape":[1,1],"data":[0]}'


def bombs(size: int) -> Iterator[Body]:
    """Bodies that compress by a factor of hundreds."""
    for name, content in {
        "NULs": bytes(size),
        "spaces": b" " * size,
        "brackets": b"[" * size,
        "zeros": native("[" + "0," * (size // 2) + "0]", "int8", f"[{size // 2 + 1}]"),
        "letters": native('["' + "a" * size + '"]', "string", "[1]"),
        "empty strings": native("[" + '"",' * (size // 3) + '""]', "string", f"[{size // 3 + 1}]"),
    }.items():
        yield Body(f"bomb of {name}", "native", content)
        yield Body(f"bomb of {name}", "v2", content)


def repeated(unit: str, size: int) -> tuple[str, int]:
    """A list of so many `unit` that it has about `size` bytes, and how many there are."""
    count = max(1, size // (len(unit.encode()) + 1))
    return "[" + ",".join([unit] * count) + "]", count


def native(values: str, dtype: str, shape: str | None, key: str = "values") -> bytes:
    """A request with these values as its data."""
    given = "" if shape is None else f'"shape":{shape},'
    return f'{{"data":{{"dtype":"{dtype}",{given}"{key}":{values}}},{_INDICES}}}'.encode()


def scatter(values: str, dtype: str, shape: str) -> bytes:
    """A scatter with these values as its updates."""
    return f'{{{_INDICES},"updates":{{"dtype":"{dtype}","shape":{shape},"values":{values}}}}}'.encode()


def infer(values: str, dtype: str, shape: str, rest: str = "") -> bytes:
    """A request of the inference protocol with these values as its data; `rest` has its own comma."""
    data = f'{{"name":"data","datatype":"{DATATYPES[dtype]}","shape":{shape},"data":{values}}}'
    return f'{{"inputs":[{data},{_V2_INDICES}]{rest}}}'.encode()


def values_bodies(size: int) -> Iterator[Body]:
    """Lists of every unit as the values of every type, in each format that is JSON."""
    for dtype in DTYPES_TRIED:
        for name, unit in UNITS.items():
            whole = f"{dtype}, {name}"
            item = f"[{unit},{unit}]" if dtype == "complex64" else unit
            text, count = repeated(item, size)
            yield Body(whole, "native", native(text, dtype, f"[{count}]"))
            yield Body(f"{whole}, no shape", "native", native(text, dtype, None))
            if dtype in DATATYPES:
                yield Body(whole, "v2", infer(text, dtype, f"[{count}]"))
            if dtype in ("float32", "int64", "string"):
                yield Body(f"{whole}, rows", "native", native(*_rows(item, size, dtype)))
                yield Body(whole, "scatter", scatter(text, dtype, f"[{count}]"))
    for dtype, good, bad in (
        ("float32", "0.5", "null"),
        ("float32", _TIE + "." + "0" * 24 + "1", '"\\n"'),
        ("int64", "1e2", "1e-2"),
        ("string", '"ab"', "1"),
        ("string", '"ab"', '"\\ud800"'),
        ("bool", "true", "1"),
        ("float32", "0.5", "[1]"),
        ("float32", "0.5", "1]"),
    ):
        text, count = repeated(good, size)
        text = f"{text[:-1]},{bad}]"
        whole = f"{dtype}, {good[:8]} and in the end {bad}"
        yield Body(whole, "native", native(text, dtype, f"[{count + 1}]"))
        yield Body(whole, "v2", infer(text, dtype, f"[{count + 1}]"))
        yield Body(f"{whole}, and a count that is not there", "native", native(text, dtype, f"[{count}]"))


def _rows(unit: str, size: int, dtype: str) -> tuple[str, str, str]:
    row = f"[{unit}]"
    text, count = repeated(row, size)
    return text, dtype, f"[{count},1]"


def single_bodies(size: int) -> Iterator[Body]:
    """One thing that is as large as the body."""
    for name, text in {
        "digits": "1" * size,
        "zeros": "0." + "0" * size + "1",
        "zeros and an exponent": "1" + "0" * size + f"e-{size}",
        "digits of an exponent": "1e" + "0" * size + "1",
        "tie of many digits": _TIE + "." + "0" * size + "1",
        "letters": '"' + "a" * size + '"',
        "letters and an emoji": '"' + "a" * size + '\U0001f642"',
        "escapes": '"' + r"\n" * (size // 2) + '"',
        "escaped letters": '"' + r"\u0061" * (size // 6) + '"',
        "spaces": " " * size + "1",
        "spaces and an emoji": " " * size + '"\U0001f642"',
        "letters without end": '"' + "a" * size,
        "brackets": "[" * size,
        "braces": '{"":' * (size // 4),
        "brackets and a quote": "[" * 500 + '"' * (size - 500),
    }.items():
        for dtype in ("float64", "int64", "string", "bool"):
            yield Body(f"{dtype}, {name}", "native", native(text, dtype, "[1]"))
            yield Body(f"{dtype}, [{name}]", "native", native(f"[{text}]", dtype, "[1]"))
            yield Body(f"{dtype}, [{name}]", "v2", infer(f"[{text}]", dtype, "[1]"))
        yield Body(f"dtype {name}", "native", native("[1]", "int8", text))
        yield Body(f"unknown field {name}", "native", b'{"x":' + text.encode() + b"}")
        yield Body(f"unknown field {name}", "v2", infer("[1]", "float32", "[1]", f',"x":{text}'))
        yield Body(
            f"batch_dims {name}", "native", native("[1]", "uint8", "[1]")[:-1] + f',"batch_dims":{text}}}'.encode()
        )
        yield Body(f"batch_dims {name}", "v2", infer("[1]", "uint8", "[1]", f',"parameters":{{"batch_dims":{text}}}'))
        yield Body(f"{name} alone", "native", text.encode())
        yield Body(f"{name} alone", "v2", text.encode())
    yield Body("NUL", "native", bytes(size))
    yield Body("0xFF", "native", b"\xff" * size)


def base64_bodies(size: int) -> Iterator[Body]:
    """What base64 may hold."""
    count = size // 4
    for name, text, dtype, shape in (
        ("zeros", "AAAA" * count, "uint8", 3 * count),
        ("wrong count", "AAAA" * count, "uint8", 1),
        ("bools of 2", "AgIC" * count, "bool", 3 * count),
        ("escaped slashes", r"\/\/\/\/" * (count // 2), "uint8", 3 * (count // 2)),
        ("escaped letters", r"\u0041" * (count // 4 * 4), "uint8", 3 * (count // 4)),
        ("escaped emoji", r"\ud83d\ude00" * (count // 3), "uint8", 3 * count),
        ("no base64", "AAA!" * count, "uint8", 3 * count),
        ("padding everywhere", "AA==" * count, "uint8", count),
        ("empty strings", "AAAAAAAAAAAAAAAA" * (count // 4), "string", 3 * (count // 4)),
        ("2 letters", "AgAAAGFi" * (count // 2), "string", count // 2),
        ("no UTF-8", "AgAAAP//" * (count // 2), "string", count // 2),
        ("strings too long", "////////" * (count // 2), "string", count // 2),
    ):
        yield Body(f"base64, {name}", "native", native(f'"{text}"', dtype, f"[{shape}]", "base64"))


def fields_bodies(size: int) -> Iterator[Body]:
    """All but the values: keys, names, shapes, and what is not to be there at all."""
    for name, unit in UNITS.items():
        text, _ = repeated(unit, size)
        yield Body(f"shape of {name}", "native", native("[1]", "int8", text))
        yield Body(f"unknown field of {name}", "native", native("[1]", "int8", "[1]")[:-1] + f',"x":{text}}}'.encode())
        yield Body(f"unknown member of {name}", "v2", infer("[1]", "float32", "[1]", f',"x":{text}'))
        yield Body(f"shape of {name}", "v2", infer("[1]", "float32", text))
        yield Body(f"inputs of {name}", "v2", f'{{"inputs":{text}}}'.encode())
    for name, unit in (("1e3999", "1e3999"), ("3,999 digits", "1" * 3999), ("4,400 digits", "1" * 4400)):
        text, _ = repeated(unit, size)
        yield Body(f"shape of {name}", "native", native("[1]", "int8", text))
        yield Body(f"shape of {name}", "v2", infer("[1]", "float32", text))
    keys = ",".join(f'"{number}":0' for number in range(size // 9))
    yield Body("many keys", "native", f"{{{keys}}}".encode())
    yield Body("many keys", "v2", f"{{{keys}}}".encode())
    yield Body("many keys in values", "native", native(f"[{{{keys}}}]", "int8", "[1]"))
    yield Body("many keys in values", "v2", infer(f"[{{{keys}}}]", "float32", "[1]"))
    yield Body("many keys", "scatter", f"{{{keys}}}".encode())
    yield Body("many keys of a tensor", "native", f'{{"data":{{{keys}}},{_INDICES}}}'.encode())
    yield Body("many keys of a tensor", "v2", f'{{"inputs":[{{{keys}}}]}}'.encode())
    yield Body("many keys of parameters", "v2", f'{{"inputs":[],"parameters":{{{keys}}}}}'.encode())
    for name in ("inputs", "outputs"):
        wrong = ",".join(['{"x":0}'] * (size // 8))
        yield Body(f"many wrong {name}", "v2", f'{{"inputs":[],"{name}":[{wrong}]}}'.encode())
    same = ",".join(['"":0'] * (size // 5))
    yield Body("one key many times", "native", f"{{{same}}}".encode())
    yield Body("one key many times in values", "native", native(f"[{{{same}}}]", "int8", "[1]"))
    yield Body("values many times", "native", b'{"data":{' + b",".join([b'"values":[1]'] * (size // 13)) + b"}}")
    yield Body("data many times", "v2", b'{"inputs":[' + b",".join([b'{"data":[1]}'] * (size // 13)) + b"]}")
    yield Body("NaN and many strings", "v2", infer("[NaN," + '"",' * (size // 3) + "1]", "float32", "[1]"))
    yield Body(
        "NaN beside many strings", "v2", infer("[1]", "float32", "[1]", ',"x":[NaN,' + '"",' * (size // 3) + "1]")
    )
    yield Body(
        "outputs", "v2", infer("[1]", "float32", "[1]", ',"outputs":[' + '{"name":"output"},' * (size // 18) + "0]")
    )
    yield Body("name of an emoji", "native", ('{"' + "\U0001f642" * (size // 4) + '":0}').encode())
    yield Body("name of ~", "native", ('{"' + "~" * size + '":0}').encode())


def _any_strings(size: int) -> tuple[bytes, int]:
    """Framed strings of letters of one to four bytes, of lengths that nobody can guess, and how many they are."""
    rng = random.Random(size)
    texts = []
    while size > 0:
        texts.append("".join(rng.choices("aé\u4e00\U0001f642", (4, 2, 2, 1), k=rng.randrange(12))).encode())
        size -= 4 + len(texts[-1])
    return b"".join(struct.pack("<I", len(text)) + text for text in texts), len(texts)


def binary_bodies(size: int) -> Iterator[Body]:
    """Headers and items of the binary formats."""
    for name, raw, count in (
        ("empty strings", bytes(4) * (size // 4), size // 4),
        ("1 letter", b"\1\0\0\0a" * (size // 5), size // 5),
        ("2 letters", b"\2\0\0\0ab" * (size // 6), size // 6),
        ("1 letter of 3 bytes", b"\3\0\0\0\xe4\xb8\x80" * (size // 7), size // 7),
        ("1 letter of 2 bytes", b"\2\0\0\0\xc3\xa9" * (size // 6), size // 6),
        ("any letters", *_any_strings(size)),
        ("one of letters of 3 bytes", struct.pack("<I", size // 3 * 3) + b"\xe4\xb8\x80" * (size // 3), 1),
        ("one of any letters", struct.pack("<I", size // 3 * 3) + b"a\xc3\xa9" * (size // 3), 1),
        ("no UTF-8", b"\2\0\0\0\xff\xfe" * (size // 6), size // 6),
        ("no UTF-8 at the end", b"\1\0\0\0a" * (size // 5) + b"\1\0\0\0\xff", size // 5 + 1),
        ("one too long", struct.pack("<I", size) + b"a" * size, 1),
        ("count", bytes(4) * (size // 4), 1),
        ("cut", bytes(4) * (size // 4) + b"\1", size // 4),
    ):
        inputs = [
            {"name": "data", "datatype": "BYTES", "shape": [count], "parameters": {"binary_data_size": len(raw)}},
            {"name": "indices", "datatype": "INT64", "shape": [1, 1], "data": [0]},
        ]
        text = json.dumps({"inputs": inputs}).encode()
        yield Body(f"BYTES, {name}", "v2", text + raw, json_size=len(text))
    bools = json.dumps(
        {
            "inputs": [
                {"name": "data", "datatype": "BOOL", "shape": [size], "parameters": {"binary_data_size": size}},
                {"name": "indices", "datatype": "INT64", "shape": [1, 1], "data": [0]},
            ]
        }
    ).encode()
    yield Body("BOOL of 2", "v2", bools + b"\2" * size, json_size=len(bools))
    offsets = '{"dtype":"I8","shape":[],"data_offsets":[0,0]}'
    digits = "1" * 4000
    for name, members in {
        "many tensors": ",".join(f'"{number}":{offsets}' for number in range(size // 54)),
        "many tensors of no dtype": ",".join(
            f'"{number}":{{"dtype":"","shape":[0],"data_offsets":[0,0]}}' for number in range(size // 55)
        ),
        "many empty entries": ",".join(f'"{number}":{{}}' for number in range(size // 9)),
        "one name many times": ",".join([f'"":{offsets}'] * (size // 50)),
        "long name": '"' + "\U0001f642" * (size // 4) + f'":{offsets}',
        "long dtype": '"data":{"dtype":"' + "\U0001f642" * (size // 4) + '","shape":[0],"data_offsets":[0,0]}',
        "long shape": '"data":{"dtype":"I8","shape":[' + "0," * (size // 2) + '0],"data_offsets":[0,0]}',
        "shape of long numbers": '"data":{"dtype":"I8","shape":['
        + f"{digits}," * (size // 4001)
        + '0],"data_offsets":[0,0]}',
        "shape of 4,400 digits": '"data":{"dtype":"I8","shape":[' + "1" * 4400 + '],"data_offsets":[0,0]}',
        "metadata": f'"__metadata__":{{{",".join(f"{chr(34)}{n}{chr(34)}:0" for n in range(size // 9))}}}',
        "metadata of lists": '"__metadata__":[' + "[]," * (size // 3) + "0]",
        "metadata of members": '"__metadata__":[' + '{"":0},' * (size // 7) + "0]",
        "metadata of depth": '"__metadata__":' + "[" * (size // 2) + "]" * (size // 2),
        "metadata of a string": '"__metadata__":"' + "a" * size + '"',
        "metadata of escapes": '"__metadata__":"' + r"\ud800" * (size // 6) + '"',
    }.items():
        header = f"{{{members}}}".encode()
        content = struct.pack("<Q", len(header)) + header
        yield Body(f"header, {name}", "safetensors", content)
        yield Body(f"header, {name}", "safetensors scatter", content)
        yield Body(f"header, {name}", "upload", content, kind=body_formats.SAFETENSORS_FILE.media_type)
    header = json.dumps({"data": {"dtype": "BOOL", "shape": [size], "data_offsets": [0, size]}}).encode()
    yield Body("bools of 2", "safetensors", struct.pack("<Q", len(header)) + header + b"\2" * size)


def npy_bodies(size: int) -> Iterator[Body]:
    """Headers of npy files of so many bytes; only a small size is taken."""
    start = "{'descr': '<f4', 'fortran_order': False, 'shape': "
    for name, text in {
        "dimensions": start + "(" + "0," * (size // 2) + ")}",
        "brackets": start + "(" * size + "}",
        "deep": start + "(" * (size // 2) + ",)" * (size // 2) + "}",
        "digits": start + "(" + "1" * size + ",)}",
        "sum": start + "1" + "+1" * (size // 2) + "}",
        "minus": start + "-" * size + "1}",
        "not": start + "not " * (size // 4) + "1}",
        "fields": "{'descr': [" + "('a','<i4')," * (size // 11) + "], 'fortran_order': False, 'shape': ()}",
        "keys": "{" + "1:1," * (size // 4) + "}",
        "lists": "[" + "[]," * (size // 3) + "]",
        "sets": "{" + "{1}," * (size // 4) + "}",
        "strings": "{'descr': " + "'' " * (size // 3) + "}",
        "escapes": "{'descr': '" + r"\N{DIGIT ONE}" * (size // 13) + "'}",
        "spaces": " " * size + "{}",
    }.items():
        raw = text.encode()
        content = b"\x93NUMPY\2\0" + len(raw).to_bytes(4, "little") + raw
        yield Body(f"npy header, {name}", "upload", content, kind=body_formats.NPY.media_type)


def query_bodies(size: int) -> Iterator[Body]:
    """Queries of so many bytes, which a header may have."""
    header = b'{"indices":{"dtype":"I64","shape":[1,1],"data_offsets":[0,8]}}'
    lookup = struct.pack("<Q", len(header)) + header + bytes(8)
    for name, query in {
        "many fields": b"a=1&" * (size // 4),
        "many separators": b"&" * size,
        "many known fields": b"batch_dims=0&" * (size // 13),
        "escapes": b"%41" * (size // 3),
        "escaped name": b"%f0%9f%99%82" * (size // 12) + b"=1",
        "digits": b"batch_dims=" + b"1" * size,
        "zeros": b"batch_dims=" + b"0" * size + b"1",
        "minuses": b"batch_dims=" + b"-" * size,
        "plus": b"+" * size,
        "name": b"tensor=" + b"a" * size,
    }.items():
        yield Body(f"query, {name}", "safetensors", lookup, query)
        raw = query.replace(b"batch_dims", b"shape") + b"&dtype=int8"
        yield Body(f"query, {name}", "upload", b"", raw, kind=body_formats.RAW.media_type)
    dimensions = b"dtype=int8&shape=" + b"1," * (size // 2) + b"1"
    yield Body("query, dimensions", "upload", b"", dimensions, kind=body_formats.RAW.media_type)
