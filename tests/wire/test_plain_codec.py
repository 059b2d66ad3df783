"""The codec in Python against the compiled one: what each makes of the same bytes, where callers look at it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from app import compile_request_functions
from app.compilation.until_compiled import UntilCompiled
from app.json_text import grammar
from app.json_text.constants import (
    ARRAY_KEYS,
    BOOL,
    FIRST_FLOAT,
    MAX_DEPTH,
    OPEN,
    SKIP,
    STRING,
    TEXT_ROOM,
    WIDEST,
    strings_room,
)
from app.json_text.find_arrays import scan_arrays, scan_tensors
from app.json_text.read_elements import read_elements
from app.json_text.write_elements import write_singles, write_strings
from app.requests.envelope_cache import envelopes
from app.tensors.frame_format import ROOM
from app.tensors.string_frames import copy_frames, first_longer, frames_size, read_frames
from tests.conftest import samples
from tests.for_each import for_each
from tests.strings import framed
from tests.wire.json_random import NUMBERS, ODD, Requests
from tests.wire.json_requests import read_call
from tests.wire.test_native_json_random import outcome

pytestmark = pytest.mark.usefixtures("compiled")

LETTERS = 'ab"\\\n\0\x1f\x7féß\u0800一\ufffd\U0001f642'
MORE_NUMBERS = ["-Infinity", "Infinity", "1.0", "100e-2", "123456789012345678e-3", "-0", "1e-400", f"0.{'1' * 800}"]


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


def arrays_of(found: Any) -> Any:
    """What a scanner has found, but for how numbers are written, of which the plain one says the most general."""
    closed, members, _, *arrays = found
    return (members, *arrays) if closed else None


@pytest.mark.parametrize("seed", range(2))
def test_both_make_the_same_of_every_request(seed: int) -> None:
    requests, seen = Requests(1000 + seed), Counter[str]()

    def found(body: bytes, operator: str) -> Any:
        view = np.frombuffer(body, np.uint8)
        places = np.full((len(ARRAY_KEYS), 12), -7, np.int64)
        faults = [grammar.fault(body, bare=bare) for bare in (False, True)]
        others = [arrays_of(scan_arrays.run(view, depth, row)) for depth, row in zip(ARRAY_KEYS, places, strict=True)]
        scanned = arrays_of(scan_tensors.run(view)), others, places.tolist()
        return outcome(read_call, body, operator), scanned if scanned[0] else (), faults

    for number in range(samples(2000)):
        body, operator = requests.body()
        if number % 3 == 0:
            body = requests.broken(body)
        compiled, plain = both(lambda body=body, operator=operator: found(body, operator))  # type: ignore[misc]
        assert compiled == plain, body
        seen[compiled[0][0]] += 1
    assert seen["read"] > samples(2000) // 8
    assert seen["malformed_request"] > samples(2000) // 8


DEEP = [
    "[" * MAX_DEPTH + "]" * MAX_DEPTH,
    "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
    '{"a":' * MAX_DEPTH + "1" + "}" * MAX_DEPTH,
    '{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1),
    "[" * 600,
    "[[[[[[[[1,2],3],4],5],6],7],8,],9]",
    "[[[[[1]]]],[[[[[[{}]]]]]]",
    "[ [ [ [ [ [ [ ]]]]]]]",
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
    '"a"',
    "tru",
    "",
    " ",
    '[":","a:b",{"x":":"}]',
]


@for_each("text", DEEP)
def test_both_find_the_same_fault_at_the_same_place(text: str) -> None:
    for body in (text.encode(), b"[" + text.encode() + b',"\xed\xa0\x80"]', b" " + text.encode() + b"\xc3"):
        for bare in (False, True):
            compiled, plain = both(
                lambda body=body, bare=bare: grammar.fault(body, bare=bare)  # type: ignore[misc]
            )
            assert compiled == plain, body
        view = np.frombuffer(body or b" ", np.uint8)
        compiled, plain = both(lambda view=view: arrays_of(scan_tensors.run(view)))  # type: ignore[misc]
        assert compiled == plain, body


def nested(source: Random, shape: list[int], leaf: Callable[[], str]) -> str:
    if not shape:
        return leaf()
    count = shape[0] + (source.choice((-1, 1)) if source.random() < 0.02 else 0)
    space = [source.choice(["", "", "", " ", "\n\t"]) for _ in range(4)]
    items = f"{space[0]},{space[1]}".join(nested(source, shape[1:], leaf) for _ in range(count))
    return f"[{space[2]}{items}{space[3]}]"


def some_element(source: Random, kind: int, odd: float) -> str:
    if source.random() < odd:
        return source.choice(ODD + NUMBERS + MORE_NUMBERS)
    if kind == BOOL:
        return source.choice(["true", "false"])
    if kind in (STRING, SKIP):
        return source.choice(['"a"', '""', '"é"', r'"\u0041\n"', '"[1,2"', '"ab cd"', '",]"'])
    if kind < FIRST_FLOAT:
        return str(source.randrange(128))
    number = source.uniform(-1, 1) * 10.0 ** source.randint(-50, 38)
    return source.choice(
        [repr(source.gauss(0, 1)), str(source.randrange(99)), '"NaN"', f"{number:.{source.randint(0, 25)}e}"]
    )


@pytest.mark.parametrize("kind", range(STRING + 1))
def test_both_read_the_same_elements_and_stop_at_the_same_one(kind: int) -> None:
    source = Random(kind)
    for _ in range(samples(400)):
        odd = source.choice((0, 0.01, 0.05, 0.5))
        shape = [source.choice((0, 1, 1, 2, 3, 40)) for _ in range(source.choice((0, 1, 1, 2, 2, 3)))]
        text = nested(source, shape, lambda odd=odd: some_element(source, kind, odd))  # type: ignore[misc]
        if source.random() < 0.1:
            cut = source.randrange(len(text) + 1)
            text = (
                text[:cut] + source.choice(["[", "]", ",", "1", '"', "{", "}", ""]) + text[cut + source.randrange(2) :]
            )
        check_elements(source, text.encode("utf-8", "surrogatepass"), kind, shape)


def check_elements(source: Random, text: bytes, kind: int, shape: list[int]) -> None:
    first = source.choice((0, 5))
    end = first + len(text)
    view = np.frombuffer(b" " * first + text + b"}" * 70, np.uint8)
    bare = source.random() < 0.3
    if source.random() < 0.5 or not shape:
        leaf, inner, sizes, parts = OPEN, -1, [-1] * (2 * MAX_DEPTH + 2), len(text) // 2 + 1
    else:
        given = shape[: shape.index(0) + 1] if 0 in shape else shape
        leaf, inner, sizes, parts = len(given), given[-1], given[:-1] * 2, math.prod(given)
    room = strings_room(parts, len(text)) if kind == STRING else 8 * parts

    def read(kind: int) -> tuple[Any, ...]:
        dims, out = np.array(sizes, np.int64), np.zeros(room, np.uint8)
        found = read_elements.run(view, first, end, kind, leaf, inner, parts, dims, out, bare)
        fine, place, element, used, depth, items = found
        if not fine:
            return False, (element, place)
        kept = out.tobytes()
        if kind == STRING:
            kept = kept[: 8 * element] + kept[8 * parts : 8 * parts + used]
        return True, element, used, depth, items, dims[: max(depth - 1, 0)].tolist(), kept

    if kind == SKIP and not is_json(text):
        return
    compiled, plain = both(lambda: read(kind))
    if not compiled[0] and not (is_json(text) and both(lambda: read(SKIP))[0][0]):
        compiled, plain = compiled[:1], plain[:1]  # which element is wrong, nobody asks
    assert compiled == plain, (text, bare)


def is_json(text: bytes) -> bool:
    try:
        json.loads(text.decode())
    except (ValueError, RecursionError):
        return False
    return True


@pytest.mark.parametrize("count", [0, 2, 50, 20_000])
@pytest.mark.parametrize("pairs", [False, True])
def test_both_write_float32_that_read_back_as_the_same_bits_with_as_few_digits(pairs: bool, count: int) -> None:
    source = np.random.default_rng(count)
    random = source.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    numbers = np.concatenate((random, source.normal(size=count).astype(np.float32)))
    numbers[: min(count, 4)] = np.array([np.nan, np.inf, -np.inf, 7.038531e-26], np.float32)[: min(count, 4)]
    items = numbers.view(np.uint8)
    items.flags.writeable = False

    def written() -> Any:
        text = np.empty(len(numbers) * WIDEST + TEXT_ROOM, np.uint8)
        return json.loads(text[: write_singles.run(items, pairs, text)].tobytes())

    compiled, plain = both(written)
    flat = [
        [one for pair in found for one in pair] if pairs else found  # as they are written
        for found in (compiled, plain)
    ]
    assert [type(one) for one in flat[0]] == [type(one) for one in flat[1]]
    for found in flat:
        back = np.array([float(one.replace("Infinity", "inf")) if type(one) is str else one for one in found])
        assert np.array_equal(back.astype(np.float32), numbers, equal_nan=True)
    digits = [[len(f"{one!r}".split("e")[0].strip("-0.").replace(".", "")) for one in found] for found in flat]
    assert max(digits[1], default=0) <= 11  # of "-Infinity"
    assert sum(digits[0]) <= sum(digits[1])


def test_both_write_the_same_text_of_every_float16() -> None:
    """Among them are numbers in the middle of two decimals, as 2.54296875 is: the one nearer to 0 is written."""
    items = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32).view(np.uint8)

    def written() -> bytes:
        text = np.empty(len(items) // 4 * WIDEST + TEXT_ROOM, np.uint8)
        return text[: write_singles.run(items, False, text)].tobytes()

    compiled, plain = both(written)
    assert compiled == plain
    assert b",2.5429687," in plain


def test_both_read_and_write_the_same_strings() -> None:
    source = Random(9)
    for _ in range(samples(1200)):
        texts = [
            "".join(source.choices(LETTERS, k=source.choice((0, 1, 2, 7, 8, 9, 30))))
            for _ in range(source.randrange(6))
        ]
        raw = bytearray(framed(texts))
        if raw and source.random() < 0.5:
            raw[source.randrange(len(raw))] = source.choice((0, 1, 0x7F, 0x80, 0xC3, 0xED, 0xF4, 0xFF))
            del raw[source.randrange(len(raw) + 1) :]
        octets = np.frombuffer(bytes(raw), np.uint8)
        octets.flags.writeable = False
        anywhere = [
            source.choice((-(2**63), -4, -1, *range(len(raw) + 2), 2**63 - 1)) for _ in range(source.randrange(4))
        ]
        starts = np.array([0] if source.random() < 0.5 else anywhere, np.int64)
        starts.flags.writeable = False
        wanted, room, most = source.choice((0, 1, 3, len(texts), 2**62)), source.randrange(4), source.randrange(-2, 9)

        def found(
            octets: Any = octets, starts: Any = starts, wanted: int = wanted, room: int = room, most: int = most
        ) -> Any:
            places = np.full(room, -7, np.int64)
            outcomes: list[Any] = [read_frames.run(octets, wanted, places), places.tolist()]
            outcomes += [frames_size.run(octets, starts), first_longer.run(octets, starts, most)]
            for write in (copy_frames, write_strings):
                for size in (0, ROOM, 9, 10, 40, 100):
                    out = np.zeros(size, np.uint8)
                    used = write.run(octets, starts, out)
                    outcomes.append((used, out[: max(used, 0)].tobytes()))
            return outcomes

        compiled, plain = both(found)
        assert compiled == plain, (raw, starts)


def test_a_long_body_waits_for_the_compiled_reader_while_that_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = '{"dtype": "int8", "shape": [1, 1], "values": [0]}'
    body = f'{{"data": {tensor}, "indices": {tensor.replace("int8", "int64")}}}'.encode()
    monkeypatch.setattr(UntilCompiled, "are_due", True)
    longest = body + b" " * ((1 << 20) - len(body))
    compiled, plain = both(lambda: outcome(read_call, longest, "gathernd"))
    assert compiled == plain
    assert plain[0] == "read"
    compiled, plain = both(lambda: outcome(read_call, longest + b"}", "gathernd"))
    assert compiled[0] == "malformed_request"
    assert plain[0] == "not_ready"


def test_what_a_service_with_numpys_kernel_imports_has_no_numba(tmp_path: Path) -> None:
    """Its import alone takes a quarter of a second."""
    import subprocess
    import sys

    program = (
        "import sys; from app.main import create_app; from app.settings import Settings; from app import warmup;"
        f"app = create_app(Settings(kernel='numpy', store_dir={str(tmp_path)!r}));"
        "from pathlib import Path; assert warmup.warm(Path('cache'), print, 'numpy') is None;"
        "sys.exit(', '.join({'numba', 'llvmlite'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
