"""Costly bodies of scatters, gradients and lookups, in JSON, safetensors and the inference protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from tests.costly_bodies.gathers import UNITS, repeated
from tests.costly_bodies.read_body import Body, Codec
from tests.costly_bodies.request_texts import (
    EMPTY,
    LONG_NUMBERS,
    ONE,
    ONE_UPDATE,
    PLAIN,
    POOLED,
    TUPLE,
    V2_INDICES,
    V2_UPDATES,
    backward,
    elements,
    framed,
    lookup,
    tensor,
    v2_elements,
    v2_input,
    v2_lookup,
)


def values_bodies(size: int) -> Iterator[Body]:
    """Lists of every unit as the values of every array, in each format that is JSON."""
    for name, unit in UNITS.items():
        text, count = repeated(unit, size)
        shape = f"[{count}]"
        for dtype in ("float32", "bfloat16", "float64"):
            values = tensor(dtype, shape, text)
            yield Body(f"{dtype} grad_output, {name}", "backward", backward(TUPLE, values))
        for dtype in ("float32", "int64", "bool", "string"):
            values = tensor(dtype, shape, text)
            yield Body(f"{dtype} updates, {name}", "elements", elements(ONE, values))
            given = v2_input("updates", dtype, count, text)
            yield Body(f"{dtype} updates, {name}", "v2 elements", v2_elements(V2_INDICES, given))
        values = tensor("int64", shape, text)
        yield Body(f"indices, {name}", "backward", backward(values, ONE_UPDATE))
        yield Body(f"indices, {name}", "elements", elements(values, ONE_UPDATE))
        yield Body(f"indices, {name}", "lookup", lookup(f',"indices":{values}'))
        pooled = f',"pooling":"sum","indices":{ONE}'
        yield Body(f"offsets, {name}", "lookup", lookup(f'{pooled},"offsets":{values}'))
        weights = tensor("float32", shape, text)
        yield Body(f"weights, {name}", "lookup", lookup(f'{pooled},"offsets":{ONE},"weights":{weights}'))
        given = v2_input("0.indices", "int64", count, text)
        yield Body(f"indices, {name}", "v2 lookup", v2_lookup(given, PLAIN))
        given = v2_input("0.weights", "float32", count, text)
        others = ",".join(v2_input(f"0.{one}", "int64", 1, "[0]") for one in ("indices", "offsets"))
        yield Body(f"weights, {name}", "v2 lookup", v2_lookup(f"{others},{given}", POOLED))


def fields_bodies(size: int) -> Iterator[Body]:
    """All but the values: the fields of each request, unknown ones, and keys."""
    for name, unit in UNITS.items():
        text, _ = repeated(unit, size)
        yield Body(f"data_shape of {name}", "backward", backward(TUPLE, ONE_UPDATE, f',"data_shape":{text}'))
        for field in ("lda_coeff", "sparse", "x"):
            rest = f',"data_shape":[9],"{field}":{text}'
            yield Body(f"{field} of {name}", "backward", backward(TUPLE, ONE_UPDATE, rest))
        for field in ("reduction", "axis", "x"):
            yield Body(f"{field} of {name}", "elements", elements(ONE, ONE_UPDATE, f',"{field}":{text}'))
            parameters = f'{{"{field}":{text}}}'
            yield Body(f"{field} of {name}", "v2 elements", v2_elements(V2_INDICES, V2_UPDATES, parameters))
        for field in ("concat", "fill_value", "x"):
            arrays = f',"indices":{ONE}'
            rest = f',"out_of_bounds":"fill","{field}":{text}'
            yield Body(f"{field} of {name}", "lookup", lookup(arrays, rest))
            one = v2_input("0.indices", "int64", 1, "[0]")
            yield Body(f"{field} of {name}", "v2 lookup", v2_lookup(one, f"{PLAIN[:-1]}{rest}}}"))
        yield Body(f"pooling of {name}", "lookup", lookup(f',"indices":{ONE},"pooling":{text}'))
        yield Body(f"features of {name}", "lookup", f'{{"features":{text}}}'.encode())
        yield Body(f"features of {name}", "v2 lookup", v2_lookup("", f'{{"features":{text}}}'))
    for name, make in LONG_NUMBERS.items():
        rest = f',"data_shape":[9],"lda_coeff":{make(size)}'
        yield Body(f"lda_coeff, {name}", "backward", backward(TUPLE, ONE_UPDATE, rest))
        yield Body(f"data_shape, {name}", "backward", backward(TUPLE, ONE_UPDATE, f',"data_shape":[{make(size)}]'))
        rest = f',"out_of_bounds":"fill","fill_value":{make(size)}'
        yield Body(f"fill_value, {name}", "lookup", lookup(f',"indices":{ONE}', rest))
    deepest = "[" * 509 + "]" * 509
    rest = f',"out_of_bounds":"fill","fill_value":{deepest}'
    yield Body("fill_value as deep as it may be", "lookup", lookup(f',"indices":{ONE}', rest))
    document = f"{PLAIN[:-1]}{rest}}}"
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


def binary_bodies(size: int) -> Iterator[Body]:
    """Headers and items of safetensors and of the inference protocol."""
    codecs: tuple[Codec, ...] = ("safetensors elements", "safetensors backward", "safetensors lookup")
    for codec in codecs:
        for name, members in {
            "many tensors": ",".join(f'"{number}.indices":{EMPTY}' for number in range(size // 60)),
            "many empty entries": ",".join(f'"{number}":{{}}' for number in range(size // 9)),
            "long name": '"' + "\U0001f642" * (size // 4) + f'":{EMPTY}',
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
    metadata = json.dumps({"lookup": POOLED})
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
    asked = json.dumps({"inputs": inputs, "parameters": {"lookup": POOLED}}).encode()
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
            for kind, make in LONG_NUMBERS.items()
        },
        "sparse": b"data_shape=1&sparse=" + b"true" * (size // 4),
        "many fields": b"sparse=true&" * (size // 12),
    }.items():
        yield Body(f"query, {name}", "safetensors backward", content, query)
