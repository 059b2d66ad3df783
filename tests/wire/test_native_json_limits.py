"""Hostile and large bodies: depth, memory, and time."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from time import process_time

import pytest

from app.errors import GatherError
from app.json_text.read_values import reading_memory
from app.tensors.dtypes import DTYPES
from app.tensors.shape_limits import Limits
from tests.for_each import for_each
from tests.told_memory import ToldMemory
from tests.wire.json_requests import SIGNATURES, call, made, read_call, refused, request, tensor

pytestmark = pytest.mark.usefixtures("every_codec")

MALFORMED = "malformed_request"


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_depth_512_is_read_and_depth_513_is_malformed(opening: str) -> None:
    closing = {"[": "]", '{"a":': "}"}[opening]
    for depth, code, pointer in ((511, "invalid_field", "/x"), (512, MALFORMED, None)):
        body = request(rest=f', "x": {opening * depth}1{closing * depth}')
        refused(body, code, pointer)


def test_values_nest_as_deep_as_the_body_may() -> None:
    assert made("int8", "[" * 510 + "1" + "]" * 510).shape == (1,) * 510
    refused(request(tensor("int8", "[" * 511 + "1" + "]" * 511)), MALFORMED)
    refused(request(tensor("int8", '{"a":' * 511 + "1" + "}" * 511)), MALFORMED)


@for_each("text", ["[", "{", '{"a":', '"', "[[],", "-", "1e", "\\", '{"a":[', " "])
def test_a_bomb_of_one_piece_is_malformed_at_once(text: str) -> None:
    size, started = 1_000_000, process_time()
    refused((text * size)[:size].encode(), MALFORMED)
    refused(b'{"data": {"values": ' + (text * size)[:size].encode(), MALFORMED)
    assert process_time() - started < 30


@for_each(
    "body",
    [
        request(rest=', "device": "cpu", "device": "cpu"'),
        request(rest=', "device": "cpu", "d\\u0065vice": "cpu"'),
        request(tensor("int8", '[1], "values": [1]')),
        request(tensor("int8", '[1], "dtype": "int8"')),
        request(tensor("int8", '[1], "v\\u0061lues": [1]')),
        request(tensor("int8", '[{"a": 1, "a": 2}]')),
        request(tensor("int8", '[1, [{"é": 1, "\\u00e9": 2}]]')),
        request(rest=', "x": [[{"y": {"z": 1, "z": 2}}]]'),
        request(rest=', "data": {"tensor": "a"}'),
        request(
            tensor("int8", ",".join(['[1], "values": [1]'] * 1)), rest=', "indices": {"values": [1], "values": [2]}'
        ),
        request(tensor("int8", '[1], "values": [2], "values": [3], "values": [4]')),
        request(tensor("int8", '[1], "base64": "", "values": 3, "base64": ""'), tensor("int8", '[1], "values": {}')),
        b'{"data": 1, "data": 1}',
        b'[{"a": 1, "a": 1}]',
    ],
)
def test_a_key_given_twice_anywhere_is_malformed(body: bytes) -> None:
    refused(body, MALFORMED)


def test_like_keys_of_different_objects_are_not_given_twice() -> None:
    refused(request(rest=', "x": {"data": 1, "y": [{"data": 1}, {"data": 1}]}'), "invalid_field", "/x")
    refused(request(tensor("int8", '[{"a": 1, "b": {"a": 1}}]')), "value_not_representable", "/data/values/0")


@for_each("last", ["1e400", '"NaN"', "18446744073709551616", "1.0", "null", "1.00000000000000000000000001"])
@for_each("dtype", ["float32", "int64", "bool", "complex64"])
def test_a_large_array_takes_what_is_charged_and_never_becomes_python_objects_in_compiled_code(
    dtype: str, last: str
) -> None:
    count = 10_000
    item = {"bool": "true", "complex64": "[1,2]"}.get(dtype, "1")
    end = f"[1,{last}]" if dtype == "complex64" else last
    body = request(tensor(dtype, f"[{f'{item},' * count}{end}]", f"[{count + 1}]"))
    call(request())
    charges: list[int] = []
    memory = ToldMemory(charges.append)
    tracemalloc.start()
    with suppress(GatherError):
        read_call(body, SIGNATURES["gathernd"], Limits(), memory)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < sum(charges) + 100_000
    items = count * DTYPES[dtype].item_size
    objects = reading_memory(len(body))  # of the plain reader; 0 for the compiled one
    assert peak < 3 * items + 2 * len(body) + objects + 100_000
    assert peak < count * 30 + objects


def test_very_many_ambiguous_numbers_are_read() -> None:
    text = "9007199254740993.0000000000000000000000001"
    started = process_time()
    data = made("float64", "[" + f"{text}," * 50_000 + "1]")
    assert (data.array[:-1] == float(text)).all()
    assert process_time() - started < 30
