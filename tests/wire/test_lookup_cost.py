"""Lookups made to cost much: what their readers hold is charged before, in all three formats, and is linear."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import pytest

from app.errors import Code, GatherError
from app.formats.json.read_request import read_request
from app.formats.oip.infer_document import LOOKUP_MODEL
from app.formats.oip.read_body import read_body
from app.formats.safetensors.read_request import read_request as read_safetensors
from app.memory.budget import UNCOUNTED, Memory
from app.tensors.lookup_call import LOOKUP_SIGNATURE
from app.tensors.shape_limits import Limits
from tests.conftest import samples
from tests.told_memory import ToldMemory

CONSTANT_BYTES = 3 << 20
BYTES = 60
"""Most bytes for each of a body: a place of an array, or a feature as Python objects, takes the most."""

pytestmark = pytest.mark.usefixtures("compiled")


def read(codec: str, body: bytes, memory: Memory) -> Code | None:
    try:
        if codec == "json":
            read_request(body, b"", LOOKUP_SIGNATURE, Limits(), memory)
        elif codec == "safetensors":
            read_safetensors(body, b"", LOOKUP_SIGNATURE, Limits(), memory)
        else:
            read_body(body, None, LOOKUP_MODEL, Limits(), memory)
    except GatherError as error:
        return error.code
    return None


def framed(metadata: str, tensors: str = "") -> bytes:
    text = ('{"__metadata__":{"lookup":' + json.dumps(metadata) + "}" + tensors + "}").encode()
    return struct.pack("<Q", len(text)) + text


def bodies(size: int) -> Iterator[tuple[str, str, bytes]]:
    """Name, format and body."""
    feature = '{"tensor":"a","indices":{"dtype":"int64","values":[0]}}'
    for name, unit in (
        ("features", feature), ("empty features", "{}"), ("numbers", "1"), ("lists", "[]"), ("texts", '"a"'),
        ("values", '{"a":{"values":[]}}'), ("deep values", '{"indices":{"values":[[[[]]]]}}'),
        ("no features", '{"tensor":"a","pooling":"sum"}'), ("shapes", '{"indices":{"shape":[1,1,1,1,1,1,1,1]}}'),
        ("wrong features", '{"tensor":"a","indices":{"dtype":"int8","values":[1.5]}}'),
    ):  # fmt: skip
        listed = f"[{','.join([unit] * (size // (len(unit) + 1)))}]"
        few = f"[{','.join([unit] * min(size // (len(unit) + 1), 1000))}]"
        for shown in (listed, few):
            document = f'{{"features":{shown}}}'
            yield name, "json", document.encode()
            yield name, "safetensors", framed(document)
            asked = json.dumps({"inputs": [], "parameters": {"lookup": document}})
            yield name, "v2", asked.encode()
            yield f"{name} as inputs", "v2", f'{{"inputs":{shown},"parameters":{{"lookup":"{{}}"}}}}'.encode()
    inputs = ",".join(
        f'{{"name":"{number}.indices","datatype":"INT64","shape":[1],"data":[0]}}' for number in range(size // 66)
    )
    lookup = json.dumps(json.dumps({"features": [{"tensor": "a"}] * 1000}))
    yield "inputs", "v2", f'{{"inputs":[{inputs}],"parameters":{{"lookup":{lookup}}}}}'.encode()
    tensors = "".join(
        f',"{number}.indices":{{"dtype":"I64","shape":[0],"data_offsets":[0,0]}}' for number in range(size // 60)
    )
    yield "tensors", "safetensors", framed(json.dumps({"features": [{"tensor": "a"}] * 1000}), tensors)
    numbers = ",".join(["12345"] * (size // 6))
    yield (
        "indices",
        "json",
        f'{{"features":[{{"tensor":"a","indices":{{"dtype":"int64","values":[{numbers}]}}}}]}}'.encode(),
    )
    keys = ",".join(f'"{number}":0' for number in range(size // 9))
    yield "keys", "json", f"{{{keys}}}".encode()
    yield "keys of a feature", "json", f'{{"features":[{{{keys}}}]}}'.encode()
    many = ",".join(['"values":[1]'] * (size // 13))
    yield "values many times", "json", f'{{"features":[{{"indices":{{{many}}}}}]}}'.encode()


def too_much(name: str, codec: str, body: bytes) -> str | None:
    charges: list[int] = []
    tracemalloc.start()
    read(codec, body, ToldMemory(charges.append))
    peak = tracemalloc.get_traced_memory()[1] - CONSTANT_BYTES
    tracemalloc.stop()
    most = max(accumulate(charges), default=0)
    if peak > BYTES * len(body):
        return f"{codec}, {name}, {len(body)}: {peak / len(body):.1f} bytes a byte"
    return f"{codec}, {name}, {len(body)}: {peak} bytes, {most} charged" if peak > most else None


@pytest.mark.parametrize("size", [20_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_what_a_lookup_s_body_takes_is_charged_and_linear(size: int) -> None:
    assert not [found for given in bodies(size) if (found := too_much(*given))]


def test_a_charge_that_is_refused_ends_the_reading(soak_scale: int) -> None:
    def refuse_after(calls: int) -> Memory:
        left = [calls]

        def charge(_: int) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise GatherError("overloaded", "full", retry_after=1)

        return ToldMemory(charge)

    for _, codec, body in list(bodies(5_000))[:: 1 if soak_scale > 1 else 2]:
        wanted = read(codec, body, UNCOUNTED)
        for calls in range(4):
            assert read(codec, body, refuse_after(calls)) in (wanted, "overloaded")


def test_random_changes_of_a_body_are_answers_or_errors_of_the_catalogue() -> None:
    """No change of one byte or cut makes a reader fail otherwise."""
    good: list[tuple[str, Any]] = [
        (codec, body) for name, codec, body in bodies(600) if name in ("features", "inputs", "tensors", "indices")
    ]
    for codec, body in good:
        for step in range(samples(120)):
            place = step * 7919 % len(body)
            changed = bytearray(body)
            changed[place] = b'"[]{}0,:\\\xff- '[step % 12]
            read(codec, bytes(changed), UNCOUNTED)
            read(codec, body[:place], UNCOUNTED)
