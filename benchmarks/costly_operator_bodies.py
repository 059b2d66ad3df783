"""Bodies made to cost much of scatters, gradients and lookups, in JSON, safetensors and the inference protocol.

See `costly_bodies`, which has those of gathers, and the same elements of lists.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

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
_POOLED: Final = '{"features":[{"tensor":"a","pooling":"sum"}]}'
_PLAIN: Final = '{"features":[{"tensor":"a"}]}'


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
    "binary of operators": binary_bodies,
    "query of operators": query_bodies,
}
