"""Bodies made to cost much of scatters, gradients and lookups, in JSON, safetensors and the inference protocol.

See `costly_bodies`, which has those of gathers, and the same elements of lists.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from app.formats.grpc.message_fields import varint
from benchmarks.costly_bodies import DATATYPES, UNITS, repeated
from benchmarks.read_body import Body, Codec

_ONE: Final = '{"dtype":"int64","shape":[1],"values":[0]}'
_TUPLE: Final = '{"dtype":"int64","shape":[1,1],"values":[0]}'
_EMPTY: Final = '{"dtype":"I64","shape":[0],"data_offsets":[0,0]}'
_LONG_NUMBERS: Final[Mapping[str, Callable[[int], str]]] = {
    "digits": lambda size: "1" * size,
    "fraction": lambda size: "0." + "0" * size + "1",
    "zeros and an exponent": lambda size: "1" + "0" * size + f"e-{size}",
    "exponent": lambda size: "1e" + "0" * size + "1",
}


def tensor(dtype: str, shape: str, values: str) -> str:
    """A tensor of the native JSON."""
    return f'{{"dtype":"{dtype}","shape":{shape},"values":{values}}}'


def elements(indices: str, updates: str, rest: str = "") -> bytes:
    """A ScatterElements; `rest` has its own comma."""
    data = tensor("float32", "[1]", "[1]")
    return f'{{"data":{data},"indices":{indices},"updates":{updates}{rest}}}'.encode()


def backward(indices: str, grad_output: str, rest: str = ',"data_shape":[9]') -> bytes:
    """The gradient of a GatherND."""
    return f'{{"indices":{indices},"grad_output":{grad_output}{rest}}}'.encode()


def lookup(arrays: str, rest: str = "") -> bytes:
    """A lookup of one feature with these members, which have their own commas."""
    return f'{{"features":[{{"tensor":"a"{arrays}}}]{rest}}}'.encode()


def v2_input(name: str, dtype: str, count: int, values: str) -> str:
    """An input of the inference protocol."""
    return f'{{"name":"{name}","datatype":"{DATATYPES[dtype]}","shape":[{count}],"data":{values}}}'


def v2_elements(indices: str, updates: str, parameters: str = "{}") -> bytes:
    """A ScatterElements of the inference protocol."""
    inputs = f"{v2_input('data', 'float32', 1, '[1]')},{indices},{updates}"
    return f'{{"inputs":[{inputs}],"parameters":{parameters}}}'.encode()


def v2_lookup(inputs: str, document: str) -> bytes:
    """A lookup of the inference protocol; `document` is its parameter."""
    return f'{{"inputs":[{inputs}],"parameters":{{"lookup":{json.dumps(document)}}}}}'.encode()


_ONE_UPDATE: Final = tensor("float32", "[1]", "[1]")
_V2_INDICES: Final = v2_input("indices", "int64", 1, "[0]")
_V2_UPDATES: Final = v2_input("updates", "float32", 1, "[1]")
_ONE_TABLE: Final = '{"tensor":"a"}'
_POOLED_TABLE: Final = '{"tensor":"a","pooling":"sum"}'
_POOLED: Final = f'{{"features":[{_POOLED_TABLE}]}}'
_PLAIN: Final = f'{{"features":[{_ONE_TABLE}]}}'


def values_bodies(size: int) -> Iterator[Body]:
    """Lists of every unit as the values of every array, in each format that is JSON."""
    for name, unit in UNITS.items():
        text, count = repeated(unit, size)
        shape = f"[{count}]"
        for dtype in ("float32", "bfloat16", "float64"):
            values = tensor(dtype, shape, text)
            yield Body(f"{dtype} grad_output, {name}", "backward", backward(_TUPLE, values))
        for dtype in ("float32", "int64", "bool", "string"):
            values = tensor(dtype, shape, text)
            yield Body(f"{dtype} updates, {name}", "elements", elements(_ONE, values))
            given = v2_input("updates", dtype, count, text)
            yield Body(f"{dtype} updates, {name}", "v2 elements", v2_elements(_V2_INDICES, given))
        values = tensor("int64", shape, text)
        yield Body(f"indices, {name}", "backward", backward(values, _ONE_UPDATE))
        yield Body(f"indices, {name}", "elements", elements(values, _ONE_UPDATE))
        yield Body(f"indices, {name}", "lookup", lookup(f',"indices":{values}'))
        pooled = f',"pooling":"sum","indices":{_ONE}'
        yield Body(f"offsets, {name}", "lookup", lookup(f'{pooled},"offsets":{values}'))
        weights = tensor("float32", shape, text)
        yield Body(f"weights, {name}", "lookup", lookup(f'{pooled},"offsets":{_ONE},"weights":{weights}'))
        given = v2_input("0.indices", "int64", count, text)
        yield Body(f"indices, {name}", "v2 lookup", v2_lookup(given, _PLAIN))
        given = v2_input("0.weights", "float32", count, text)
        others = ",".join(v2_input(f"0.{one}", "int64", 1, "[0]") for one in ("indices", "offsets"))
        yield Body(f"weights, {name}", "v2 lookup", v2_lookup(f"{others},{given}", _POOLED))


def fields_bodies(size: int) -> Iterator[Body]:
    """All but the values: the fields of each request, unknown ones, and keys."""
    for name, unit in UNITS.items():
        text, _ = repeated(unit, size)
        yield Body(f"data_shape of {name}", "backward", backward(_TUPLE, _ONE_UPDATE, f',"data_shape":{text}'))
        for field in ("lda_coeff", "sparse", "x"):
            rest = f',"data_shape":[9],"{field}":{text}'
            yield Body(f"{field} of {name}", "backward", backward(_TUPLE, _ONE_UPDATE, rest))
        for field in ("reduction", "axis", "x"):
            yield Body(f"{field} of {name}", "elements", elements(_ONE, _ONE_UPDATE, f',"{field}":{text}'))
            parameters = f'{{"{field}":{text}}}'
            yield Body(f"{field} of {name}", "v2 elements", v2_elements(_V2_INDICES, _V2_UPDATES, parameters))
        for field in ("concat", "fill_value", "x"):
            arrays = f',"indices":{_ONE}'
            rest = f',"out_of_bounds":"fill","{field}":{text}'
            yield Body(f"{field} of {name}", "lookup", lookup(arrays, rest))
            one = v2_input("0.indices", "int64", 1, "[0]")
            yield Body(f"{field} of {name}", "v2 lookup", v2_lookup(one, f"{_PLAIN[:-1]}{rest}}}"))
        yield Body(f"pooling of {name}", "lookup", lookup(f',"indices":{_ONE},"pooling":{text}'))
        yield Body(f"features of {name}", "lookup", f'{{"features":{text}}}'.encode())
        yield Body(f"features of {name}", "v2 lookup", v2_lookup("", f'{{"features":{text}}}'))
    for name, make in _LONG_NUMBERS.items():
        rest = f',"data_shape":[9],"lda_coeff":{make(size)}'
        yield Body(f"lda_coeff, {name}", "backward", backward(_TUPLE, _ONE_UPDATE, rest))
        yield Body(f"data_shape, {name}", "backward", backward(_TUPLE, _ONE_UPDATE, f',"data_shape":[{make(size)}]'))
        rest = f',"out_of_bounds":"fill","fill_value":{make(size)}'
        yield Body(f"fill_value, {name}", "lookup", lookup(f',"indices":{_ONE}', rest))
    deepest = "[" * 509 + "]" * 509
    rest = f',"out_of_bounds":"fill","fill_value":{deepest}'
    yield Body("fill_value as deep as it may be", "lookup", lookup(f',"indices":{_ONE}', rest))
    document = f"{_PLAIN[:-1]}{rest}}}"
    yield Body("fill_value as deep", "v2 lookup", v2_lookup(v2_input("0.indices", "int64", 1, "[0]"), document))
    keys = ",".join(f'"{number}":0' for number in range(size // 9))
    codecs: tuple[Codec, ...] = ("backward", "elements", "lookup", "v2 elements", "v2 lookup")
    for codec in codecs:
        yield Body("many keys", codec, f"{{{keys}}}".encode())
        yield Body("spaces", codec, b" " * size)
        yield Body("brackets", codec, b"[" * size)
    yield Body("many keys of a feature", "lookup", lookup(f",{keys}"))
    yield Body("many keys of the parameter", "v2 lookup", v2_lookup("", f"{{{keys}}}"))
    yield Body("a parameter of escapes", "v2 lookup", v2_lookup("", '"' + "\u0001" * (size // 7) + '"'))


_MOST_FEATURES: Final = 1024
"""Of a lookup, unless GATHERND_MAX_FEATURES says otherwise."""
_FEATURES: Final[Mapping[str, str]] = {
    "one index": f',"indices":{_ONE}',
    "one index without a shape": ',"indices":{"dtype":"int64","values":[0]}',
    "one index in two lists": ',"indices":{"dtype":"int64","shape":[1,1],"values":[[0]]}',
    "one index in two lists without a shape": ',"indices":{"dtype":"int32","values":[[0]]}',
    "one index without a list": ',"indices":{"dtype":"int64","shape":[],"values":0}',
    "no index": ',"indices":{"dtype":"int64","values":[]}',
    "no index in two lists": ',"indices":{"dtype":"int64","shape":[1,0],"values":[[]]}',
    "a bag": f',"indices":{_ONE},"offsets":{_ONE},"pooling":"mean"',
    "a weighted bag": f',"indices":{_ONE},"offsets":{_ONE},"pooling":"sum","weights":{tensor("float32", "[1]", "[1]")}',
    "a weight that is no number": f',"indices":{_ONE},"offsets":{_ONE},"pooling":"sum","weights":'
    '{"dtype":"float32","values":["NaN"]}',
    "a shape with a fraction": ',"indices":{"dtype":"int64","shape":[1.0],"values":[0]}',
    "a string": ',"indices":{"dtype":"string","shape":[1],"values":[""]}',
    "a complex index": ',"indices":{"dtype":"complex64","values":[[0,0]]}',
    "base64": ',"indices":{"dtype":"int64","shape":[1],"base64":"AAAAAAAAAAA="}',
    "escaped base64": r',"indices":{"dtype":"int64","shape":[1],"base64":"AAAAAAAAAA\u0041="}',
}
"""All but the name of a small feature that is right in itself."""
_WRONG_FEATURES: Final[Mapping[str, str]] = {
    "an index with a fraction": ',"indices":{"dtype":"int64","shape":[1],"values":[0.5]}',
    "an index too few": ',"indices":{"dtype":"int64","shape":[2],"values":[0]}',
    "lists that are not even": ',"indices":{"dtype":"int64","values":[[0],[]]}',
    "null": ',"indices":{"dtype":"int64","values":null}',
    "an unknown type": ',"indices":{"dtype":"int65","shape":[1],"values":[0]}',
    "an unknown member": f',"indices":{_ONE},"x":0',
    "a negative dimension": ',"indices":{"dtype":"int64","shape":[-1],"values":[0]}',
    "no indices": "",
    "offsets without pooling": f',"indices":{_ONE},"offsets":{_ONE}',
    "two forms": ',"indices":{"dtype":"int64","shape":[1],"values":[0],"base64":"AAAAAAAAAAA="}',
    "a name twice": f',"indices":{_ONE},"tensor":"a"',
    "no items": ',"indices":{"dtype":"int64","shape":[1]}',
    "no base64": ',"indices":{"dtype":"int64","shape":[1],"base64":"A"}',
    "a byte too few": ',"indices":{"dtype":"int64","shape":[1],"base64":"AAAAAAAAAA=="}',
}


def features_bodies(size: int) -> Iterator[Body]:
    """Lookups of as many small features as may be: all alike, each different from the next, and wrong ones."""

    def written(features: Sequence[str], rest: str = "") -> bytes:
        return f'{{"features":[{",".join(features)}]{rest}}}'.encode()

    def repeat(members: str) -> list[str]:
        return [f'{{"tensor":"a"{members}}}'] * max(2, min(_MOST_FEATURES, size // (len(members) + 14)))

    for name, members in _FEATURES.items():
        yield Body(f"features of {name}", "lookup", written(repeat(members)))
    right = repeat(_FEATURES["one index"])
    for name, members in _WRONG_FEATURES.items():
        wrong = repeat(members)
        yield Body(f"features of {name}", "lookup", written(wrong))
        yield Body(f"features, the last one of {name}", "lookup", written([*right[1:], wrong[0]]))
    count = len(right)
    sizes = [number % 7 for number in range(count)]
    types = ("int32", "int64", "uint8", "float64", "bfloat16", "int16")
    yield Body(
        "features, each different from the next",
        "lookup",
        written(
            [
                f'{{"tensor":"t{number}","indices":{tensor(types[number % 6], f"[{many}]", str([number % 9] * many))}}}'
                for number, many in enumerate(sizes)
            ]
        ),
    )
    deep = [
        f',"indices":{{"dtype":"int64","values":{"[" * (number % 20)}0{"]" * (number % 20)}}}'
        for number in range(count)
    ]
    yield Body("features, each nested deeper", "lookup", written([f'{{"tensor":"a"{members}}}' for members in deep]))
    whole = written(right)
    yield Body("features, cut off in the middle", "lookup", whole[: len(whole) // 2])
    yield Body("features, cut off at the end", "lookup", whole[:-1])
    yield Body("features and a byte", "lookup", whole + b"x")
    yield Body("features twice", "lookup", written(right, ',"features":[]'))
    yield Body("features and a bare name", "lookup", written(right, ',"fill_value":NaN'))
    yield Body("features and a wrong member", "lookup", written(right, ',"concat":0'))
    yield Body("features, a quote that does not close", "lookup", whole[:-9] + b'"' + whole[-9:])
    yield Body("features with much space", "lookup", whole.replace(b",", b" ,\n").replace(b":", b": "))
    if count == _MOST_FEATURES:
        yield Body("features, one too many", "lookup", written([*right, right[0]]))


def framed(header: str, raw: bytes = b"") -> bytes:
    """A safetensors body."""
    text = header.encode()
    return struct.pack("<Q", len(text)) + text + raw


def binary_bodies(size: int) -> Iterator[Body]:
    """Headers and items of safetensors and of the inference protocol."""
    codecs: tuple[Codec, ...] = ("safetensors elements", "safetensors backward", "safetensors lookup")
    for codec in codecs:
        for name, members in {
            "many tensors": ",".join(f'"{number}.indices":{_EMPTY}' for number in range(size // 60)),
            "many empty entries": ",".join(f'"{number}":{{}}' for number in range(size // 9)),
            "long name": '"' + "\U0001f642" * (size // 4) + f'":{_EMPTY}',
            "metadata of a string": '"__metadata__":{"lookup":"' + "a" * size + '"}',
            "metadata of escapes": '"__metadata__":{"lookup":"' + r"\ud800" * (size // 6) + '"}',
        }.items():
            yield Body(f"header, {name}", codec, framed(f"{{{members}}}"))
    for name, document in {
        "features": '{"features":[' + ",".join(['{"tensor":"a"}'] * (size // 20)) + "]}",
        "numbers": '{"features":[' + "1," * (size // 2) + "1]}",
        "brackets": "[" * size,
        "quotes": '"' * (size // 2),
    }.items():
        header = f'{{"__metadata__":{{"lookup":{json.dumps(document)}}}}}'
        yield Body(f"lookup of {name}", "safetensors lookup", framed(header))
    # One int8 before the items brings them out of their place: they are copied.
    count = size // 8
    names: Mapping[Codec, tuple[str, str]] = {
        "safetensors elements": ("indices", "updates"),
        "safetensors backward": ("indices", "grad_output"),
        "safetensors lookup": ("0.indices", "0.offsets"),
    }
    metadata = json.dumps({"lookup": _POOLED})
    for shown, (first, second) in names.items():
        entries = {
            first: {"dtype": "I64", "shape": [count], "data_offsets": [1, 1 + 8 * count]},
            second: {"dtype": "I8", "shape": [1], "data_offsets": [0, 1]},
        }
        text = json.dumps({"__metadata__": json.loads(metadata), **entries})
        yield Body(f"{first} that are not aligned", shown, framed(text, bytes(1 + 8 * count)))
    inputs = [
        {"name": "0.offsets", "datatype": "INT64", "shape": [1], "parameters": {"binary_data_size": 8}},
        {"name": "0.indices", "datatype": "INT64", "shape": [count], "parameters": {"binary_data_size": 8 * count}},
    ]
    asked = json.dumps({"inputs": inputs, "parameters": {"lookup": _POOLED}}).encode()
    yield Body("items", "v2 lookup", asked + bytes(8 * (count + 1)), json_size=len(asked))
    yield Body("items cut off", "v2 lookup", asked + bytes(8 * count), json_size=len(asked))


class _Array(NamedTuple):
    """An array of a lookup in the inference protocol and in safetensors, but for its name."""

    datatype: str
    shape: str
    data: str
    size: int = 8
    more: str = ""
    """Further members of an input, with a comma before each."""


_INDEX: Final = _Array("INT64", "[1]", "[0]")
_WEIGHT: Final = _Array("FP32", "[1]", "[1]", 4)
_INPUTS: Final[Mapping[str, _Array]] = {
    "one index": _INDEX,
    "one index in two lists": _Array("INT64", "[1,1]", "[[0]]"),
    "no index": _Array("INT32", "[0]", "[]", 0),
    "no index in two lists": _Array("INT32", "[1,0]", "[[]]", 0),
    "a bare NaN": _Array("FP32", "[1]", "[NaN]", 4),
    "a string": _Array("BYTES", "[1]", '[""]', 4),
    "a bool": _Array("BOOL", "[1]", "[false]", 1),
    "parameters": _Array("INT64", "[1]", "[0]", 8, '"x":0'),
    "parameters that are nested": _Array("INT64", "[1]", "[0]", 8, '"x":{"y":[{}]}'),
}
"""Small arrays that are right in themselves."""
_WRONG_INPUTS: Final[Mapping[str, _Array]] = {
    "an index with a fraction": _INDEX._replace(data="[0.5]"),
    "an index too few": _INDEX._replace(shape="[2]"),
    "lists that are not even": _Array("INT64", "[2,1]", "[[0],[]]"),
    "a bool of 2": _Array("BOOL", "[1]", "[2]", 1),
    "null": _INDEX._replace(data="null"),
    "an unknown type": _INDEX._replace(datatype="INT65"),
    "a negative dimension": _INDEX._replace(shape="[-1]"),
    "shared memory": _INDEX._replace(more='"shared_memory_region":"x"'),
}


def _described(arrays: Mapping[str, _Array], binary: bool) -> str:
    """Inputs of the inference protocol by their names, with their items behind the JSON or in it."""
    inputs = []
    for name, one in arrays.items():
        parameters = [one.more] if one.more else []
        if binary:
            parameters.append(f'"binary_data_size":{one.size}')
        own = f',"parameters":{{{",".join(parameters)}}}' if parameters else ""
        data = "" if binary else f',"data":{one.data}'
        inputs.append(f'{{"name":"{name}","datatype":"{one.datatype}","shape":{one.shape}{own}{data}}}')
    return ",".join(inputs)


def _infer_lookup(arrays: Mapping[str, _Array], document: str, rest: str, binary: bool) -> tuple[bytes, int | None]:
    """A lookup of the inference protocol, and the size of its JSON where items follow; `rest` has its own comma."""
    parameters = f'"parameters":{{"lookup":{json.dumps(document)}}}'
    text = f'{{"inputs":[{_described(arrays, binary)}],{parameters}{rest}}}'.encode()
    items = b"".join((b"\2" if one.data == "[2]" else b"\0") * one.size for one in arrays.values())
    return (text + items, len(text)) if binary else (text, None)


_SAFETENSORS: Final = {"INT64": "I64", "INT32": "I32", "FP32": "F32", "BOOL": "BOOL", "INT16": "I16", "UINT8": "U8"}


def _safetensors_lookup(arrays: Mapping[str, _Array], document: str) -> bytes:
    entries = [f'"__metadata__":{{"lookup":{json.dumps(document)}}}']
    items = b""
    for name, one in arrays.items():
        offsets = f"[{len(items)},{len(items) + one.size}]"
        dtype = _SAFETENSORS.get(one.datatype, "I65")
        entries.append(f'"{name}":{{"dtype":"{dtype}","shape":{one.shape},"data_offsets":{offsets}}}')
        items += (b"\2" if one.data == "[2]" else b"\0") * one.size
    return framed(f"{{{','.join(entries)}}}", items)


def _in_all_formats(name: str, arrays: Mapping[str, _Array], document: str, rest: str = "") -> Iterator[Body]:
    for how, binary in (("", False), (" behind the JSON", True)):
        content, json_size = _infer_lookup(arrays, document, rest, binary)
        yield Body(f"{name}{how}", "v2 lookup", content, json_size=json_size)
    if not rest:
        yield Body(name, "safetensors lookup", _safetensors_lookup(arrays, document))


def fraction_bodies(size: int) -> Iterator[Body]:
    """Lookups of many small arrays, the shape of each written with a fraction or an exponent: such numbers are kept as
    they are written.
    """
    count = max(2, min(_MOST_FEATURES, size // 100))
    plain = f'{{"features":[{",".join([_ONE_TABLE] * count)}]}}'
    for name, shape, data in (
        ("a fraction", "[1.0]", "[0]"),
        ("an exponent", "[1e0]", "[0]"),
        ("zero and a large exponent", "[0e999]", "[]"),
        ("a long fraction", f"[1.{16 * '0'}]", "[0]"),
        ("many digits and an exponent", "[10000000000000000000e-19]", "[0]"),
    ):
        arrays = {f"{number}.indices": _Array("INT64", shape, data) for number in range(count)}
        yield from _in_all_formats(f"inputs of a shape with {name}", arrays, plain)


def inputs_bodies(size: int) -> Iterator[Body]:
    """Lookups of as many small arrays as may be, where each has a name: alike, each different, and wrong ones; infer
    requests of many inputs, outputs and parameters.
    """
    count = max(2, min(_MOST_FEATURES, size // 100))
    plain = f'{{"features":[{",".join([_ONE_TABLE] * count)}]}}'

    def repeat(one: _Array) -> dict[str, _Array]:
        return {f"{number}.indices": one for number in range(count)}

    for name, one in {**_INPUTS, **_WRONG_INPUTS}.items():
        yield from _in_all_formats(f"inputs of {name}", repeat(one), plain)
    for name, one in _WRONG_INPUTS.items():
        last = repeat(_INDEX) | {f"{count - 1}.indices": one}
        yield from _in_all_formats(f"inputs, the last one of {name}", last, plain)
    pooled = f'{{"features":[{",".join([_POOLED_TABLE] * (count // 2))}]}}'
    bags = {
        f"{number}.{array}": one
        for number in range(count // 2)
        for array, one in (("indices", _INDEX), ("offsets", _INDEX), ("weights", _WEIGHT))
    }
    yield from _in_all_formats("inputs of weighted bags", bags, pooled)
    yield from _in_all_formats("inputs of weighted bags, backwards", dict(reversed(bags.items())), pooled)
    yield from _in_all_formats("inputs of bags without offsets", repeat(_INDEX), pooled)
    kinds = (("INT32", 4), ("INT64", 8), ("UINT8", 1), ("FP32", 4), ("INT16", 2))
    mixed = {
        f"{number}.indices": _Array(datatype, f"[{number % 7}]", str([number % 9] * (number % 7)), each * (number % 7))
        for number in range(count)
        for datatype, each in (kinds[number % 5],)
    }
    yield from _in_all_formats("inputs, each different from the next", mixed, plain)
    deep = {
        f"{number}.indices": _Array("INT64", str([1] * depth), "[" * depth + "0" + "]" * depth)
        for number in range(count)
        for depth in (1 + number % 19,)
    }
    yield from _in_all_formats("inputs, each nested deeper", deep, plain)
    for name, names in {
        "unknown names": [f"x{number}" for number in range(count)],
        "long names": [f"{number}.{'x' * 100}" for number in range(count)],
        "names of features that there are not": [f"{number}.indices" for number in range(count, 2 * count)],
    }.items():
        yield from _in_all_formats(f"inputs of {name}", dict.fromkeys(names, _INDEX), plain)
        some = repeat(_INDEX) | {names[-1]: _INDEX}
        yield from _in_all_formats(f"inputs, the last one of {name}", some, plain)
    yield from _in_all_formats("inputs of few features", repeat(_INDEX), _PLAIN)
    yield from _in_all_formats("features without inputs", {}, plain)
    unjoined = f'{plain[:-1]},"concat":false}}'
    for name, outputs in {
        "each output": [f"{number}.output" for number in range(count)],
        "each output, backwards": [f"{number}.output" for number in range(count, 0, -1)],
        "one output again and again": ["0.output"] * count,
        "outputs that there are not": ["x"] * count,
    }.items():
        described = [f'{{"name":"{output}"}}' for output in outputs]
        rest = f',"outputs":[{",".join(described)}]'
        yield from _in_all_formats(f"inputs and {name}", repeat(_INDEX), unjoined, rest)
        binary = [f'{one[:-1]},"parameters":{{"binary_data":true}}}}' for one in described]
        rest = f',"outputs":[{",".join(binary)}]'
        yield from _in_all_formats(f"inputs and {name}, binary", repeat(_INDEX), unjoined, rest)
    (whole, _) = _infer_lookup(repeat(_INDEX), plain, "", binary=False)
    yield Body("inputs, cut off in the middle", "v2 lookup", whole[: len(whole) // 2])
    yield Body("inputs and a byte", "v2 lookup", whole + b"x")
    yield Body("inputs twice", "v2 lookup", whole[:-1] + b',"inputs":[]}')
    data = v2_input("data", "float32", 1, "[1]")
    few = min(size // 80, 400)
    codecs: tuple[Codec, ...] = ("v2", "v2 elements")
    for shown in codecs:
        without = '{"name":"x","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}'
        for name, inputs in {"unknown inputs": [without] * few, "one input again and again": [data] * few}.items():
            yield Body(name, shown, f'{{"inputs":[{",".join(inputs)}]}}'.encode())
        both = f"{data},{_V2_INDICES},{_V2_UPDATES}" if shown == "v2 elements" else f"{data},{_V2_INDICES}"
        asked = ",".join(['{"name":"output"}'] * few)
        yield Body("one output again and again", shown, f'{{"inputs":[{both}],"outputs":[{asked}]}}'.encode())
        settings = ",".join(f'"x{number}":{number}' for number in range(few))
        yield Body("parameters", shown, f'{{"inputs":[{both}],"parameters":{{{settings}}}}}'.encode())
        own = data[:-1] + f',"parameters":{{{settings}}}}}'
        yield Body("parameters of an input", shown, f'{{"inputs":[{both.replace(data, own)}]}}'.encode())


def _field(number: int, value: bytes) -> bytes:
    """A field of bytes of a message over gRPC."""
    return bytes([number << 3 | 2]) + varint(len(value)) + value


_SMALLEST_FIELDS: Final[Mapping[str, bytes]] = {
    "inputs": _field(5, b""),
    "inputs of a name": _field(5, _field(1, b"0.indices")),
    "inputs with a parameter": _field(5, _field(4, _field(1, b"x"))),
    "outputs": _field(6, b""),
    "unknown fields": b"\x40\0",
    "raw arrays": _field(7, b""),
    "names": _field(1, b""),
    "one parameter": _field(4, b""),
}


def _lookup_parameter(document: str) -> bytes:
    return _field(4, _field(1, b"lookup") + _field(2, _field(3, document.encode())))


def _message_input(number: int, array: str, datatype: bytes, contents: bytes = b"") -> bytes:
    """An input of one item."""
    name = _field(1, f"{number}.{array}".encode())
    return _field(5, name + _field(2, datatype) + _field(3, b"\1") + contents)


def contents_bodies(size: int) -> Iterator[Body]:
    """Lookups over gRPC of many small arrays, each in contents of its own."""
    count = max(2, min(_MOST_FEATURES, size // 60))
    parameter = _lookup_parameter(f'{{"features":[{",".join([_ONE_TABLE] * count)}]}}')
    for name, datatype, contents in (
        ("an index", b"INT64", _field(3, b"\1")),
        ("a large index", b"INT64", _field(3, b"\xff\xff\x7f")),
        ("an index too many", b"INT64", _field(3, b"\1\1")),
        ("a number too large", b"INT8", _field(2, b"\xff\1")),
        ("a number that does not end", b"INT64", _field(3, b"\xff")),
        ("a number on its own", b"INT64", b"\x18\1"),
        ("a float", b"FP32", _field(6, bytes(4))),
        ("a string", b"BYTES", _field(8, b"")),
        ("a bool", b"BOOL", _field(1, b"\1")),
    ):
        each = b"".join(_message_input(number, "indices", datatype, _field(5, contents)) for number in range(count))
        yield Body(f"contents of {name}", "grpc lookup", each + parameter)
    index, float_field = _field(5, _field(3, b"\1")), _field(6, b"")
    for name, members in (
        ("an index and nothing, twice", index + _field(5, b"")),
        ("an index and no float", _field(5, _field(3, b"\1") + float_field)),
        ("an index in three parts", _field(5, _field(3, b"") * 2 + b"\x18\1")),
        ("indices on their own", _field(5, b"\x18\1" * 40)),
        ("strings of nothing", _field(5, _field(8, b"") * 40)),
    ):
        each = b"".join(_message_input(number, "indices", b"INT64", members) for number in range(count))
        yield Body(f"contents of {name}", "grpc lookup", each + parameter)
    for name, step, long in (
        ("an index, every ninth longer", 9, index + _field(15, bytes(120))),
        ("an index, every ninth long", 9, index + _field(15, bytes(4200))),
        ("an index, every 17th of 17 kB", 17, index + _field(15, bytes(17_000))),
        ("an index, every ninth of thousands", 9, _field(5, _field(3, b"\1" * 4200))),
    ):
        each = b"".join(
            _message_input(number, "indices", b"INT64", long if number % step == step - 1 else index)
            for number in range(count)
        )
        yield Body(f"contents of {name}", "grpc lookup", each + parameter)
    texts = [_field(5, _field(8, b"" if number else b"\xff")) for number in range(count)]
    each = b"".join(_message_input(number, "indices", b"BYTES", one) for number, one in enumerate(texts))
    yield Body("contents of a string, the first not UTF-8", "grpc lookup", each + parameter)
    many = b"".join(
        _message_input(number, "indices", b"INT64", _field(5, b"\x18\1" * 4000)) for number in range(size // 9000)
    )
    yield Body("contents of thousands of indices on their own", "grpc lookup", many + parameter)
    right = b"".join(_message_input(number, "indices", b"INT64", index) for number in range(count - 1))
    for name, datatype, contents in (
        ("a number that does not end", b"INT64", _field(3, b"\xff")),
        ("a number too large", b"INT8", _field(2, b"\xff\1")),
        ("a number that is too long", b"INT64", _field(3, b"\xff" * 10 + b"\1")),
        ("another field", b"INT64", _field(6, bytes(4))),
    ):
        last = _message_input(count - 1, "indices", datatype, _field(5, contents))
        yield Body(f"contents of an index, and last {name}", "grpc lookup", right + last + parameter)
    for name, contents in {"nothing": b"", "an index": _field(3, b"\1")}.items():
        piece = _field(5, _field(5, contents))
        yield Body(f"contents of {name} and no name", "grpc lookup", piece * (size // len(piece)))


def message_bodies(size: int) -> Iterator[Body]:
    """Messages over gRPC: lookups of many small raw arrays, and of as many fields as there may be."""
    count = max(2, min(_MOST_FEATURES, size // 60))
    parameter = _lookup_parameter(f'{{"features":[{",".join([_ONE_TABLE] * count)}]}}')
    raw = b"".join(_message_input(number, "indices", b"INT64") for number in range(count)) + _field(7, bytes(8)) * count
    yield Body("raw arrays of features", "grpc lookup", raw + parameter)
    yield Body("raw arrays of features that are too short", "grpc lookup", raw[:-4] + parameter)
    bags = b"".join(
        _message_input(number, array, datatype)
        for number in range(count // 3)
        for array, datatype in (("indices", b"INT64"), ("offsets", b"INT64"), ("weights", b"FP32"))
    )
    items = (_field(7, bytes(8)) * 2 + _field(7, bytes(4))) * (count // 3)
    pooled = f'{{"features":[{",".join([_POOLED_TABLE] * (count // 3))}]}}'
    yield Body("raw arrays of weighted bags", "grpc lookup", bags + items + _lookup_parameter(pooled))
    codecs: tuple[Codec, ...] = ("grpc", "grpc lookup")
    for shown in codecs:
        for name, piece in _SMALLEST_FIELDS.items():
            yield Body(f"many {name}", shown, piece * (size // len(piece)))
        room = size // 16
        parameters = b"".join(_field(4, _field(1, b"%08d" % number) + _field(2, b"\x08\1")) for number in range(room))
        yield Body("many parameters", shown, parameters)
        data = _field(1, b"data") + _field(2, b"BYTES") + _field(3, varint(size // 2))
        yield Body("strings of one input", shown, _field(5, data + _field(5, b"\x42\0" * (size // 2))))
        yield Body("names of one input", shown, _field(5, b"\x0a\0" * (size // 2)))
        yield Body("dimensions", shown, _field(5, _field(1, b"data") + _field(3, b"\1" * size)))


def query_bodies(size: int) -> Iterator[Body]:
    """Queries of so many bytes, which a header may have."""
    header = '{"indices":{"dtype":"I64","shape":[1,1],"data_offsets":[0,8]},'
    header += '"grad_output":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}}'
    content = framed(header, bytes(12))
    for name, query in {
        "dimensions": b"data_shape=" + b"1," * (size // 2) + b"1",
        "digits of a dimension": b"data_shape=" + b"1" * size,
        **{
            f"lda_coeff, {kind}": b"data_shape=1&lda_coeff=" + make(size).encode()
            for kind, make in _LONG_NUMBERS.items()
        },
        "sparse": b"data_shape=1&sparse=" + b"true" * (size // 4),
        "many fields": b"sparse=true&" * (size // 12),
    }.items():
        yield Body(f"query, {name}", "safetensors backward", content, query)


MAKERS: Final[dict[str, Callable[[int], Iterator[Body]]]] = {
    "values of operators": values_bodies,
    "fields of operators": fields_bodies,
    "features of operators": features_bodies,
    "inputs of operators": inputs_bodies,
    "fractions of operators": fraction_bodies,
    "binary of operators": binary_bodies,
    "messages of operators": message_bodies,
    "contents of operators": contents_bodies,
    "query of operators": query_bodies,
}
