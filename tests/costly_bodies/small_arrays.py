"""Costly lookups: as many small arrays as a request may have, alike, each different, and wrong ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from tests.costly_bodies.read_body import Body, Codec
from tests.costly_bodies.request_texts import (
    MOST_FEATURES,
    ONE,
    ONE_TABLE,
    PLAIN,
    POOLED_TABLE,
    V2_INDICES,
    V2_UPDATES,
    framed,
    tensor,
    v2_input,
)

_FEATURES: Final[Mapping[str, str]] = {
    "one index": f',"indices":{ONE}',
    "one index without a shape": ',"indices":{"dtype":"int64","values":[0]}',
    "one index in two lists": ',"indices":{"dtype":"int64","shape":[1,1],"values":[[0]]}',
    "one index in two lists without a shape": ',"indices":{"dtype":"int32","values":[[0]]}',
    "one index without a list": ',"indices":{"dtype":"int64","shape":[],"values":0}',
    "no index": ',"indices":{"dtype":"int64","values":[]}',
    "no index in two lists": ',"indices":{"dtype":"int64","shape":[1,0],"values":[[]]}',
    "a bag": f',"indices":{ONE},"offsets":{ONE},"pooling":"mean"',
    "a weighted bag": f',"indices":{ONE},"offsets":{ONE},"pooling":"sum","weights":{tensor("float32", "[1]", "[1]")}',
    "a weight that is no number": f',"indices":{ONE},"offsets":{ONE},"pooling":"sum","weights":'
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
    "an unknown member": f',"indices":{ONE},"x":0',
    "a negative dimension": ',"indices":{"dtype":"int64","shape":[-1],"values":[0]}',
    "no indices": "",
    "offsets without pooling": f',"indices":{ONE},"offsets":{ONE}',
    "two forms": ',"indices":{"dtype":"int64","shape":[1],"values":[0],"base64":"AAAAAAAAAAA="}',
    "a name twice": f',"indices":{ONE},"tensor":"a"',
    "no items": ',"indices":{"dtype":"int64","shape":[1]}',
    "no base64": ',"indices":{"dtype":"int64","shape":[1],"base64":"A"}',
    "a byte too few": ',"indices":{"dtype":"int64","shape":[1],"base64":"AAAAAAAAAA=="}',
}


def features_bodies(size: int) -> Iterator[Body]:
    """Lookups of as many small features as may be: all alike, each different from the next, and wrong ones."""

    def written(features: Sequence[str], rest: str = "") -> bytes:
        return f'{{"features":[{",".join(features)}]{rest}}}'.encode()

    def repeat(members: str) -> list[str]:
        return [f'{{"tensor":"a"{members}}}'] * max(2, min(MOST_FEATURES, size // (len(members) + 14)))

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
    if count == MOST_FEATURES:
        yield Body("features, one too many", "lookup", written([*right, right[0]]))


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
    count = max(2, min(MOST_FEATURES, size // 100))
    plain = f'{{"features":[{",".join([ONE_TABLE] * count)}]}}'
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
    count = max(2, min(MOST_FEATURES, size // 100))
    plain = f'{{"features":[{",".join([ONE_TABLE] * count)}]}}'

    def repeat(one: _Array) -> dict[str, _Array]:
        return {f"{number}.indices": one for number in range(count)}

    for name, one in {**_INPUTS, **_WRONG_INPUTS}.items():
        yield from _in_all_formats(f"inputs of {name}", repeat(one), plain)
    for name, one in _WRONG_INPUTS.items():
        last = repeat(_INDEX) | {f"{count - 1}.indices": one}
        yield from _in_all_formats(f"inputs, the last one of {name}", last, plain)
    pooled = f'{{"features":[{",".join([POOLED_TABLE] * (count // 2))}]}}'
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
    yield from _in_all_formats("inputs of few features", repeat(_INDEX), PLAIN)
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
        both = f"{data},{V2_INDICES},{V2_UPDATES}" if shown == "v2 elements" else f"{data},{V2_INDICES}"
        asked = ",".join(['{"name":"output"}'] * few)
        yield Body("one output again and again", shown, f'{{"inputs":[{both}],"outputs":[{asked}]}}'.encode())
        settings = ",".join(f'"x{number}":{number}' for number in range(few))
        yield Body("parameters", shown, f'{{"inputs":[{both}],"parameters":{{{settings}}}}}'.encode())
        own = data[:-1] + f',"parameters":{{{settings}}}}}'
        yield Body("parameters of an input", shown, f'{{"inputs":[{both.replace(data, own)}]}}'.encode())
