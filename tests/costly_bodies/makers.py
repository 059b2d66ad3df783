"""The corpus of hostile bodies, in groups. A group's function makes its bodies, each of about the given size in bytes.

Each body takes much time or memory in some step, or is wrong only in its last bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from app.formats import body_formats
from app.formats.grpc.message_fields import varint
from tests.costly_bodies.read_body import RESIDENT, Body

Maker = Callable[[int], Iterator[Body]]
UNITS: Final[dict[str, str]] = {
    "0.1": "0.1",
    "many zeros and an exponent": "1" + "0" * 60 + "e-60",
    "1e400": "1e400",
    "beside a tie": "9007199254740993." + "0" * 24 + "1",
    "1,000 zeros": "0." + "0" * 1000 + "1",
    "true": "true",
    "null": "null",
    "bare NaN": "NaN",
    "escaped NaN": r'"\u004eaN"',
    "2 letters": '"ab"',
    "escaped pair": r'"a\ud83d\ude00"',
    "lone surrogate": r'"\ud800"',
    "emoji in 1,000 letters": '"' + "a" * 1000 + '\U0001f642"',
    "nested members": '{"":{"":0}}',
    "list of 1": "[1]",
    "400 deep": "[" * 400 + "]" * 400,
    "much white space": " " * 200 + "1",
}
"""Elements of a list, by a name for them."""
DATATYPES: Final = {"float32": "FP32", "int64": "INT64", "bool": "BOOL", "string": "BYTES", "float64": "FP64"}
DTYPES_TRIED: Final = ("float32", "int64", "bool", "string", "complex64")
SCATTER: Final = f"tensors/{RESIDENT}/scatter"
MOST_FEATURES: Final = 1024
"""Of a lookup, unless GATHERND_MAX_FEATURES says otherwise."""
_INDICES: Final = '"indices":{"dtype":"int64","shape":[1,1],"values":[0]}'
_V2_INDICES: Final = '{"name":"indices","datatype":"INT64","shape":[1,1],"data":[0]}'
_ONE: Final = '{"dtype":"int64","shape":[1],"values":[0]}'
_ONE_UPDATE: Final = '{"dtype":"float32","shape":[1],"values":[1]}'
_EMPTY: Final = '{"dtype":"I8","shape":[],"data_offsets":[0,0]}'
_TABLE: Final = f'{{"tensor":"{RESIDENT}"}}'


def repeated(unit: str, size: int) -> tuple[str, int]:
    """A list of so many `unit` that it has about `size` bytes, and how many there are."""
    count = max(1, size // (len(unit.encode()) + 1))
    return "[" + ",".join([unit] * count) + "]", count


def gather(values: str, dtype: str, shape: str | None, key: str = "values") -> bytes:
    """A gather with these values as its data."""
    given = "" if shape is None else f'"shape":{shape},'
    return f'{{"data":{{"dtype":"{dtype}",{given}"{key}":{values}}},{_INDICES}}}'.encode()


def infer(values: str, dtype: str, shape: str, rest: str = "") -> bytes:
    """A gather of the inference protocol with these values as its data; `rest` has its own comma."""
    data = f'{{"name":"data","datatype":"{DATATYPES[dtype]}","shape":{shape},"data":{values}}}'
    return f'{{"inputs":[{data},{_V2_INDICES}]{rest}}}'.encode()


def framed(header: str, raw: bytes = b"") -> bytes:
    """A safetensors body."""
    text = header.encode()
    return struct.pack("<Q", len(text)) + text + raw


def values_bodies(size: int) -> Iterator[Body]:
    """Lists of every unit as the values of every type, in each format that is JSON."""
    for dtype in DTYPES_TRIED:
        for name, unit in UNITS.items():
            whole = f"{dtype}, {name}"
            text, count = repeated(f"[{unit},{unit}]" if dtype == "complex64" else unit, size)
            yield Body(whole, "json", "gathernd", gather(text, dtype, f"[{count}]"))
            yield Body(f"{whole}, no shape", "json", "gathernd", gather(text, dtype, None))
            if dtype in DATATYPES:
                yield Body(whole, "v2", "gathernd", infer(text, dtype, f"[{count}]"))
            if dtype in ("float32", "string"):
                updates = f'{{"dtype":"{dtype}","shape":[{count}],"values":{text}}}'
                yield Body(whole, "json", SCATTER, f'{{{_INDICES},"updates":{updates}}}'.encode())
    for dtype, good, bad in (
        ("float32", "0.5", "null"),
        ("int64", "1e2", "1e-2"),
        ("string", '"ab"', '"\\ud800"'),
        ("bool", "true", "1"),
        ("float32", "0.5", "1]"),
    ):
        text, count = repeated(good, size)
        text = f"{text[:-1]},{bad}]"
        whole = f"{dtype}, {good} and in the end {bad}"
        yield Body(whole, "json", "gathernd", gather(text, dtype, f"[{count + 1}]"))
        yield Body(whole, "v2", "gathernd", infer(text, dtype, f"[{count + 1}]"))
        yield Body(f"{whole}, and a wrong count", "json", "gathernd", gather(text, dtype, f"[{count}]"))


def single_bodies(size: int) -> Iterator[Body]:
    """One thing that is as large as the body."""
    for name, text in {
        "digits": "1" * size,
        "zeros and an exponent": "1" + "0" * size + f"e-{size}",
        "letters": '"' + "a" * size + '"',
        "escapes": '"' + r"\n" * (size // 2) + '"',
        "spaces and an emoji": " " * size + '"\U0001f642"',
        "letters without end": '"' + "a" * size,
        "brackets": "[" * size,
        "braces": '{"":' * (size // 4),
    }.items():
        for dtype in ("float64", "int64", "string"):
            yield Body(f"{dtype}, [{name}]", "json", "gathernd", gather(f"[{text}]", dtype, "[1]"))
            yield Body(f"{dtype}, [{name}]", "v2", "gathernd", infer(f"[{text}]", dtype, "[1]"))
        yield Body(f"dtype {name}", "json", "gathernd", gather("[1]", "int8", text))
        yield Body(f"unknown field {name}", "json", "gathernd", b'{"x":' + text.encode() + b"}")
        yield Body(f"unknown field {name}", "v2", "gathernd", infer("[1]", "float32", "[1]", f',"x":{text}'))
        batched = gather("[1]", "uint8", "[1]")[:-1] + f',"batch_dims":{text}}}'.encode()
        yield Body(f"batch_dims {name}", "json", "gathernd", batched)
        yield Body(f"{name} alone", "json", "gathernd", text.encode())
    yield Body("NUL", "json", "gathernd", bytes(size))
    yield Body("0xFF", "json", "gathernd", b"\xff" * size)


def base64_bodies(size: int) -> Iterator[Body]:
    """What base64 may hold."""
    count = size // 4
    for name, text, dtype, shape in (
        ("zeros", "AAAA" * count, "uint8", 3 * count),
        ("bools of 2", "AgIC" * count, "bool", 3 * count),
        ("escaped letters", r"\u0041" * (count // 4 * 4), "uint8", 3 * (count // 4)),
        ("no base64", "AAA!" * count, "uint8", 3 * count),
        ("empty strings", "AAAAAAAAAAAAAAAA" * (count // 4), "string", 3 * (count // 4)),
        ("no UTF-8", "AgAAAP//" * (count // 2), "string", count // 2),
        ("strings too long", "////////" * (count // 2), "string", count // 2),
    ):
        yield Body(f"base64, {name}", "json", "gathernd", gather(f'"{text}"', dtype, f"[{shape}]", "base64"))


def fields_bodies(size: int) -> Iterator[Body]:
    """All but the values: keys, names, shapes, and what is not to be there at all."""
    for name, unit in UNITS.items():
        text, _ = repeated(unit, size)
        yield Body(f"shape of {name}", "json", "gathernd", gather("[1]", "int8", text))
        unknown = gather("[1]", "int8", "[1]")[:-1] + f',"x":{text}}}'.encode()
        yield Body(f"unknown field of {name}", "json", "gathernd", unknown)
        yield Body(f"unknown member of {name}", "v2", "gathernd", infer("[1]", "float32", "[1]", f',"x":{text}'))
        yield Body(f"shape of {name}", "v2", "gathernd", infer("[1]", "float32", text))
        yield Body(f"inputs of {name}", "v2", "gathernd", f'{{"inputs":{text}}}'.encode())
    keys = ",".join(f'"{number}":0' for number in range(size // 9))
    for to in ("gathernd", SCATTER, "scatter_elements", "gathernd/backward", "lookup"):
        yield Body("many keys", "json", to, f"{{{keys}}}".encode())
    yield Body("many keys in values", "json", "gathernd", gather(f"[{{{keys}}}]", "int8", "[1]"))
    yield Body("many keys of a tensor", "v2", "gathernd", f'{{"inputs":[{{{keys}}}]}}'.encode())
    yield Body("many keys of parameters", "v2", "gathernd", f'{{"inputs":[],"parameters":{{{keys}}}}}'.encode())
    same = ",".join(['"":0'] * (size // 5))
    yield Body("one key many times", "json", "gathernd", f"{{{same}}}".encode())
    outputs = ',"outputs":[' + '{"name":"output"},' * (size // 18) + "0]"
    yield Body("outputs", "v2", "gathernd", infer("[1]", "float32", "[1]", outputs))
    yield Body("name of an emoji", "json", "gathernd", ('{"' + "\U0001f642" * (size // 4) + '":0}').encode())


def binary_bodies(size: int) -> Iterator[Body]:
    """Headers and items of the binary formats."""
    for name, raw, count in (
        ("empty strings", bytes(4) * (size // 4), size // 4),
        ("1 letter of 3 bytes", b"\3\0\0\0\xe4\xb8\x80" * (size // 7), size // 7),
        ("one of letters of 3 bytes", struct.pack("<I", size // 3 * 3) + b"\xe4\xb8\x80" * (size // 3), 1),
        ("no UTF-8 at the end", b"\1\0\0\0a" * (size // 5) + b"\1\0\0\0\xff", size // 5 + 1),
        ("one too long", struct.pack("<I", size) + b"a" * size, 1),
        ("cut", bytes(4) * (size // 4) + b"\1", size // 4),
    ):
        data = {"name": "data", "datatype": "BYTES", "shape": [count], "parameters": {"binary_data_size": len(raw)}}
        text = f'{{"inputs":[{json.dumps(data)},{_V2_INDICES}]}}'.encode()
        yield Body(f"BYTES, {name}", "v2", "gathernd", text + raw, json_size=len(text))
    for name, members in {
        "many tensors": ",".join(f'"{number}":{_EMPTY}' for number in range(size // 54)),
        "many empty entries": ",".join(f'"{number}":{{}}' for number in range(size // 9)),
        "one name many times": ",".join([f'"":{_EMPTY}'] * (size // 50)),
        "long name": '"' + "\U0001f642" * (size // 4) + f'":{_EMPTY}',
        "long shape": '"data":{"dtype":"I8","shape":[' + "0," * (size // 2) + '0],"data_offsets":[0,0]}',
        "shape of 4,400 digits": '"data":{"dtype":"I8","shape":[' + "1" * 4400 + '],"data_offsets":[0,0]}',
        "metadata of members": '"__metadata__":[' + '{"":0},' * (size // 7) + "0]",
        "metadata of depth": '"__metadata__":' + "[" * (size // 2) + "]" * (size // 2),
        "metadata of escapes": '"__metadata__":{"lookup":"' + r"\ud800" * (size // 6) + '"}',
    }.items():
        content = framed(f"{{{members}}}")
        for to in ("gathernd", SCATTER, "lookup"):
            yield Body(f"header, {name}", "safetensors", to, content)
        kind = body_formats.SAFETENSORS_FILE.media_type
        yield Body(f"header, {name}", "upload", "tensors/hostile", content, kind=kind)
    header = json.dumps({"data": {"dtype": "BOOL", "shape": [size], "data_offsets": [0, size]}})
    yield Body("bools of 2", "safetensors", "gathernd", framed(header, b"\2" * size))
    # One int8 before the items brings them out of their place: they are copied.
    count = size // 8
    entries = {
        "indices": {"dtype": "I64", "shape": [count], "data_offsets": [1, 1 + 8 * count]},
        "updates": {"dtype": "I8", "shape": [1], "data_offsets": [0, 1]},
    }
    content = framed(json.dumps(entries), bytes(1 + 8 * count))
    yield Body("items that are not aligned", "safetensors", "scatter_elements", content)


def npy_bodies(size: int) -> Iterator[Body]:
    """Headers of npy files of so many bytes; only a small size is taken."""
    start = "{'descr': '<f4', 'fortran_order': False, 'shape': "
    for name, text in {
        "dimensions": start + "(" + "0," * (size // 2) + ")}",
        "brackets": start + "(" * size + "}",
        "digits": start + "(" + "1" * size + ",)}",
        "sum": start + "1" + "+1" * (size // 2) + "}",
        "fields": "{'descr': [" + "('a','<i4')," * (size // 11) + "], 'fortran_order': False, 'shape': ()}",
        "lists": "[" + "[]," * (size // 3) + "]",
        "escapes": "{'descr': '" + r"\N{DIGIT ONE}" * (size // 13) + "'}",
        "spaces": " " * size + "{}",
    }.items():
        content = b"\x93NUMPY\2\0" + len(text).to_bytes(4, "little") + text.encode()
        yield Body(f"npy header, {name}", "upload", "tensors/hostile", content, kind=body_formats.NPY.media_type)


def query_bodies(size: int) -> Iterator[Body]:
    """Queries of so many bytes, which a header may have."""
    indices = framed('{"indices":{"dtype":"I64","shape":[1,1],"data_offsets":[0,8]}}', bytes(8))
    for name, query in {
        "many fields": b"a=1&" * (size // 4),
        "many known fields": b"batch_dims=0&" * (size // 13),
        "escapes": b"%41" * (size // 3),
        "digits": b"batch_dims=" + b"1" * size,
        "plus": b"+" * size,
    }.items():
        yield Body(f"query, {name}", "safetensors", "gathernd", indices, query)
    for name, query in {
        "dimensions": b"shape=" + b"1," * (size // 2) + b"1",
        "digits of a dimension": b"shape=" + b"1" * size,
    }.items():
        raw, kind = b"dtype=int8&" + query, body_formats.RAW.media_type
        yield Body(f"query, {name}", "upload", "tensors/hostile", b"", raw, kind=kind)
        yield Body(f"query, {name}", "safetensors", "gathernd/backward", indices, b"data_" + query)


def operators_bodies(size: int) -> Iterator[Body]:
    """Lists of every unit as the arrays and fields of scatters, gradients and lookups."""

    def elements(updates: str, rest: str = "") -> bytes:
        return f'{{"data":{_ONE_UPDATE},"indices":{_ONE},"updates":{updates}{rest}}}'.encode()

    def backward(grad_output: str, rest: str = ',"data_shape":[9]') -> bytes:
        return f'{{{_INDICES},"grad_output":{grad_output}{rest}}}'.encode()

    def lookup(members: str, rest: str = "") -> bytes:
        return f'{{"features":[{_TABLE[:-1]}{members}}}]{rest}}}'.encode()

    for name, unit in UNITS.items():
        text, count = repeated(unit, size)
        floats = f'{{"dtype":"float32","shape":[{count}],"values":{text}}}'
        integers = f'{{"dtype":"int64","shape":[{count}],"values":{text}}}'
        pooled = f',"pooling":"sum","indices":{_ONE}'
        yield Body(f"grad_output, {name}", "json", "gathernd/backward", backward(floats))
        yield Body(f"data_shape of {name}", "json", "gathernd/backward", backward(_ONE_UPDATE, f',"data_shape":{text}'))
        yield Body(f"updates, {name}", "json", "scatter_elements", elements(floats))
        yield Body(f"reduction of {name}", "json", "scatter_elements", elements(_ONE_UPDATE, f',"reduction":{text}'))
        yield Body(f"indices, {name}", "json", "lookup", lookup(f',"indices":{integers}'))
        weighted = lookup(f'{pooled},"offsets":{integers},"weights":{floats}')
        yield Body(f"offsets and weights, {name}", "json", "lookup", weighted)
        filled = f',"out_of_bounds":"fill","fill_value":{text}'
        yield Body(f"fill_value of {name}", "json", "lookup", lookup(f',"indices":{_ONE}', filled))
        yield Body(f"features of {name}", "json", "lookup", f'{{"features":{text}}}'.encode())
        document = json.dumps(f'{{"features":{text}}}')
        asked = f'{{"inputs":[],"parameters":{{"lookup":{document}}}}}'.encode()
        yield Body(f"features of {name}", "v2", "lookup", asked)
        header = framed(f'{{"__metadata__":{{"lookup":{document}}}}}')
        yield Body(f"features of {name}", "safetensors", "lookup", header)
    for name, number in {"digits": "1" * size, "zeros and an exponent": "1" + "0" * size + f"e-{size}"}.items():
        rest = f',"data_shape":[9],"lda_coeff":{number}'
        yield Body(f"lda_coeff, {name}", "json", "gathernd/backward", backward(_ONE_UPDATE, rest))


_SMALL: Final[Mapping[str, tuple[str, str, str, int]]] = {
    "one index": ("INT64", "[1]", "[0]", 8),
    "no index in two lists": ("INT32", "[1,0]", "[[]]", 0),
    "a bare NaN": ("FP32", "[1]", "[NaN]", 4),
    "a string": ("BYTES", "[1]", '[""]', 4),
    "an index with a fraction": ("INT64", "[1]", "[0.5]", 8),
    "an index too few": ("INT64", "[2]", "[0]", 8),
    "a shape with a fraction": ("INT64", "[1.0]", "[0]", 8),
    "a negative dimension": ("INT64", "[-1]", "[0]", 8),
    "an unknown type": ("INT65", "[1]", "[0]", 8),
}
"""Small arrays of a lookup: type in the protocol, shape, items as JSON, and bytes of the items."""
_JSON_TYPES: Final = {"INT64": "int64", "INT32": "int32", "FP32": "float32", "BYTES": "string"}
_SAFETENSORS: Final = {"INT64": "I64", "INT32": "I32", "FP32": "F32"}


def _lookup_bodies(name: str, arrays: Sequence[tuple[str, str, str, int]]) -> Iterator[Body]:
    """A lookup with one of these arrays for each feature, in every format that HTTP has."""
    described = [
        f'{_TABLE[:-1]},"indices":{{"dtype":"{_JSON_TYPES.get(dtype, "int65")}","shape":{shape},"values":{data}}}}}'
        for dtype, shape, data, _ in arrays
    ]
    yield Body(f"features of {name}", "json", "lookup", f'{{"features":[{",".join(described)}]}}'.encode())
    document = json.dumps(f'{{"features":[{",".join([_TABLE] * len(arrays))}]}}')
    heads = [
        f'{{"name":"{number}.indices","datatype":"{dtype}","shape":{shape}'
        for number, (dtype, shape, _, _) in enumerate(arrays)
    ]
    parameters = f'"parameters":{{"lookup":{document}}}'
    inputs = ",".join(f'{head},"data":{array[2]}}}' for head, array in zip(heads, arrays, strict=True))
    yield Body(f"inputs of {name}", "v2", "lookup", f'{{"inputs":[{inputs}],{parameters}}}'.encode())
    inputs = ",".join(
        f'{head},"parameters":{{"binary_data_size":{size}}}}}'
        for head, (_, _, _, size) in zip(heads, arrays, strict=True)
    )
    text, items = f'{{"inputs":[{inputs}],{parameters}}}'.encode(), bytes(sum(array[3] for array in arrays))
    yield Body(f"inputs of {name} behind the JSON", "v2", "lookup", text + items, json_size=len(text))
    entries, place = [f'"__metadata__":{{"lookup":{document}}}'], 0
    for number, (dtype, shape, _, size) in enumerate(arrays):
        offsets = f'"data_offsets":[{place},{place + size}]'
        known = _SAFETENSORS.get(dtype, "I65")
        entries.append(f'"{number}.indices":{{"dtype":"{known}","shape":{shape},{offsets}}}')
        place += size
    yield Body(f"inputs of {name}", "safetensors", "lookup", framed(f"{{{','.join(entries)}}}", items))


def lookups_bodies(size: int) -> Iterator[Body]:
    """Lookups of as many small arrays as there may be: alike, each different from the next, and the last one wrong."""
    count = max(2, min(MOST_FEATURES, size // 100))
    index = _SMALL["one index"]
    for name, array in _SMALL.items():
        yield from _lookup_bodies(name, [array] * count)
        yield from _lookup_bodies(f"one index, and last {name}", [*[index] * (count - 1), array])
    mixed = [("INT64", f"[{number % 7}]", str([0] * (number % 7)), 8 * (number % 7)) for number in range(count)]
    yield from _lookup_bodies("sizes that differ", mixed)
    (whole, *_) = _lookup_bodies("one index", [index] * count)
    yield Body("features, cut off", "json", "lookup", whole.content[:-1])
    yield Body("features with much space", "json", "lookup", whole.content.replace(b",", b" ,\n"))


def message_field(number: int, value: bytes) -> bytes:
    """A field of bytes of a message over gRPC."""
    return bytes([number << 3 | 2]) + varint(len(value)) + value


def messages_bodies(size: int) -> Iterator[Body]:
    """Messages over gRPC: of as many fields as there may be, and lookups of many small arrays."""
    f = message_field
    for to in ("gathernd", "lookup"):
        for name, piece in {
            "inputs": f(5, b""),
            "inputs with contents": f(5, f(5, f(3, b"\1"))),
            "outputs": f(6, b""),
            "parameters": f(4, f(1, b"") + f(2, b"\x10\x01")),
            "unknown fields": b"\x40\0",
            "raw arrays": f(7, b""),
            "names": f(1, b""),
        }.items():
            yield Body(f"many {name}", "grpc", to, piece * (size // len(piece)))
        data = f(1, b"data") + f(2, b"BYTES") + f(3, varint(size // 2))
        yield Body("strings of one input", "grpc", to, f(5, data + f(5, b"\x42\0" * (size // 2))))
        yield Body("dimensions", "grpc", to, f(5, f(1, b"data") + f(3, b"\1" * size)))
    count = max(2, min(MOST_FEATURES, size // 60))
    document = f'{{"features":[{",".join([_TABLE] * count)}]}}'.encode()
    parameter = f(4, f(1, b"lookup") + f(2, f(3, document)))

    def inputs(datatype: bytes, contents: bytes = b"") -> bytes:
        described = f(2, datatype) + f(3, b"\1") + contents
        return b"".join(f(5, f(1, b"%d.indices" % number) + described) for number in range(count))

    for name, datatype, contents in (
        ("an index", b"INT64", f(3, b"\1")),
        ("an index too many", b"INT64", f(3, b"\1\1")),
        ("a number that does not end", b"INT64", f(3, b"\xff")),
        ("indices on their own", b"INT64", b"\x18\1" * 40),
        ("a string that is not UTF-8", b"BYTES", f(8, b"\xff")),
    ):
        yield Body(f"contents of {name}", "grpc", "lookup", inputs(datatype, f(5, contents)) + parameter)
    raw = inputs(b"INT64") + f(7, bytes(8)) * count
    yield Body("raw arrays of features", "grpc", "lookup", raw + parameter)
    yield Body("raw arrays that are too short", "grpc", "lookup", raw[:-4] + parameter)


def bombs(size: int) -> Iterator[Body]:
    """Bodies that compress by a factor of hundreds."""
    for name, content in {
        "spaces": b" " * size,
        "brackets": b"[" * size,
        "zeros": gather("[" + "0," * (size // 2) + "0]", "int8", f"[{size // 2 + 1}]"),
        "empty strings": gather("[" + '"",' * (size // 3) + '""]', "string", f"[{size // 3 + 1}]"),
    }.items():
        yield Body(f"bomb of {name}", "json", "gathernd", content)
        yield Body(f"bomb of {name}", "v2", "gathernd", content)


MAKERS: Final[dict[str, Maker]] = {
    "values": values_bodies,
    "single": single_bodies,
    "base64": base64_bodies,
    "fields": fields_bodies,
    "binary": binary_bodies,
    "npy": npy_bodies,
    "query": query_bodies,
    "operators": operators_bodies,
    "lookups": lookups_bodies,
    "messages": messages_bodies,
}
