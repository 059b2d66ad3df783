"""The codec in Python and the compiled one read the same, and refuse the same, of random and of hostile JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from app import compile_request_functions
from app.compilation.until_compiled import UntilCompiled
from app.json_text.constants import MAX_DEPTH
from app.requests.envelope_cache import envelopes
from app.tensors.buffer_type import Buffer
from tests.conftest import samples, slow_but_for
from tests.for_each import for_each
from tests.wire.json_random import Requests
from tests.wire.json_requests import outcome, read_call

pytestmark = pytest.mark.usefixtures("compiled")


@contextmanager
def in_python() -> Iterator[None]:
    """Each function of the codec is the one in Python."""
    used = [function.used for function in compile_request_functions.FUNCTIONS]
    before = [one.run for one in used]
    for one in used:
        one.run = one.plain
    try:
        yield
    finally:
        for one, run in zip(used, before, strict=True):
            one.run = run


def both(call: Callable[[], Any]) -> tuple[Any, Any]:
    """What a call makes with the compiled codec, and with the one in Python."""
    envelopes.clear()
    compiled = call()
    envelopes.clear()
    with in_python():
        return compiled, call()


def read_by_both(body: Buffer, operator: str = "gathernd") -> tuple[Any, ...]:
    """What both codecs make of a body, which is the same: each bit and pointer of the call, or all of the refusal."""
    compiled, plain = both(lambda: outcome(read_call, body, operator))
    assert compiled == plain, bytes(body)
    found: tuple[Any, ...] = compiled
    return found


def is_strict(body: bytes) -> bool:
    """Whether Python takes `body` for JSON that names each key once."""

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a key twice")
        return dict(pairs)

    def constant(name: str) -> None:
        raise ValueError(name)

    try:
        json.loads(body.decode(), object_pairs_hook=members, parse_constant=constant)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("seed", slow_but_for((0,), range(4)))
def test_both_make_the_same_of_every_request(seed: int) -> None:
    requests, seen = Requests(seed), Counter[str]()
    for _ in range(samples(40_000)):
        seen[read_by_both(*requests.body())[0]] += 1
    wanted = {"read", "malformed_request", "invalid_field", "unsupported_dtype", "value_not_representable"}
    assert wanted | {"element_count_mismatch", "limit_exceeded"} <= seen.keys()
    assert seen["read"] > samples(40_000) // 12


@pytest.mark.parametrize("seed", slow_but_for((100,), range(100, 102)))
def test_malformed_is_what_python_finds_malformed(seed: int) -> None:
    requests, seen = Requests(seed), Counter[bool]()
    for _ in range(samples(16_000)):
        body = requests.broken(requests.body()[0])
        malformed = read_by_both(body)[0] == "malformed_request"
        assert malformed != is_strict(body), body
        seen[malformed] += 1
    assert min(seen.values()) > samples(16_000) // 15


def test_a_body_cut_short_at_any_byte_is_malformed() -> None:
    requests = Requests(5)
    whole = b""
    while len(whole) < 150 or b"tensor" in whole or outcome(read_call, whole, "gathernd")[0] != "read":
        whole = requests.body()[0]
    whole = whole.strip()
    for size in range(len(whole)):
        for cut in (whole[:size], bytearray(whole[:size]), memoryview(whole)[:size]):
            assert outcome(read_call, cut, "gathernd")[0] == "malformed_request", (size, whole)


HOSTILE = [
    "[" * MAX_DEPTH + "]" * MAX_DEPTH,
    "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
    '{"a":' * MAX_DEPTH + "1" + "}" * MAX_DEPTH,
    '{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1),
    "[" * 600,
    "[[[[[[[[1,2],3],4],5],6],7],8,],9]",
    "[[[[[1]]]],[[[[[[{}]]]]]]",
    '{"a":{"b":{"c":{"d":{"e":{"a":1,"\\u0061":2}}}}}}',
    '{"a":1,"a":1}',
    '{"a":{"a":1},"b":{"a":1}}',
    '{"a":1,}',
    '{"a" 1}',
    '{"a":1 "b":2}',
    "[1 2]",
    "[01]",
    "[1.]",
    "[1.5.3]",
    "[1e]",
    "[1e5e]",
    "[-]",
    "[-Infinity,NaN,Infinity,-NaN]",
    '["\\ud800"]',
    '["\\u12G4"]',
    '["\\',
    '["a\x01"]',
    '["a',
    "tru",
    '[":","a:b",{"x":":"}]',
]


@for_each("text", HOSTILE)
def test_both_find_the_same_fault_at_the_same_place(text: str) -> None:
    head = b'{"data":{"dtype":"float32","values":'
    for values in (text.encode(), b"[" + text.encode() + b',"\xed\xa0\x80"]', b" " + text.encode() + b"\xc3"):
        read_by_both(values)
        read_by_both(head + values)
        read_by_both(head + values + b'},"indices":{"dtype":"int64","shape":[1,1],"values":[0]}}')


def test_a_long_body_waits_for_the_compiled_reader_while_that_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = '{"dtype": "int8", "shape": [1, 1], "values": [0]}'
    body = f'{{"data": {tensor}, "indices": {tensor.replace("int8", "int64")}}}'.encode()
    monkeypatch.setattr(UntilCompiled, "are_due", True)
    longest = body + b" " * ((1 << 20) - len(body))
    assert read_by_both(longest)[0] == "read"
    compiled, plain = both(lambda: outcome(read_call, longest + b"}", "gathernd"))
    assert compiled[0] == "malformed_request"
    assert plain[0] == "not_ready"
