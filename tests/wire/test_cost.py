"""What a body costs: time and memory for each of its bytes, whatever they are, and that the memory is charged.

The measure of time is `json.loads` on the same bytes, or a copy of them ten times over where they are binary, or
`json.loads` on an ordinary list of numbers of as many bytes where it would stop early or there is no JSON. Of messages
with many inputs it is what protobuf's library takes to hand their values over, where that is more. It is taken in turns
with the codec: both are CPU time of a thread, and what else the machine does slows both.
"""

from __future__ import annotations

import gc
import json
import struct
import threading
import tracemalloc
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from statistics import median
from time import sleep, thread_time
from typing import Any, NamedTuple

import numpy as np
import orjson
import pytest
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from app.errors import GatherError
from app.tensors.lookup_call import ARRAYS
from app.tensors.shape_limits import Limits
from app.wire import v2_request_tensors
from app.wire.grpc_messages.classes import ModelInferRequest
from app.wire.json.codec_functions import check
from app.wire.plain_protobuf_fields import read_varint
from app.wire.protobuf_format import BYTES as OF_BYTES
from benchmarks.costly_bodies import MAKERS as GATHER_MAKERS
from benchmarks.costly_bodies import bombs
from benchmarks.costly_operator_bodies import MAKERS as OPERATOR_MAKERS
from benchmarks.read_body import CODINGS, MODEL, Body, TextCodec, read, read_coded
from tests.conftest import SOAK, TEST_ALL, slow_but_for
from tests.traced_memory import peak_of

TIMES = 5
TIMES_OF = {"inputs of operators": 6}
"""The same of a group that is at that bound: thousands of arrays, each with a name (up to 4.5 times on an idle machine,
and with others beside it 5.2 were seen)."""
PROTOBUF_TIMES = 3
"""The same of protobuf's library, for a thousand inputs in one message: each is some Python objects there and here (1.2
to 1.9 times on an idle machine)."""
MOST_INPUTS = len(ARRAYS) * Limits().features
CONSTANT_S = 2e-3
"""What any request may take, whatever its length."""
BYTES = 40
CONSTANT_BYTES = 3 << 20
"""What any request may hold for a moment: the part of it that becomes Python objects is limited."""
MAKERS = GATHER_MAKERS | OPERATOR_MAKERS
SMALL, SAMPLE, LARGE = 30_000, 200_000, 1_000_000
HEADER = 60_000
"""A query is a part of the header, which is limited."""
WINDOW = {coding: 31 if coding.startswith("gzip") else -15 if coding.startswith("raw") else 15 for coding in CODINGS}
"""zlib's parameter for each coding: gzip, deflate alone, or deflate with zlib's own header."""


pytestmark = [pytest.mark.usefixtures("compiled"), pytest.mark.long]


@pytest.fixture(scope="module", autouse=True)
def undisturbed(compiled: Path) -> Iterator[None]:
    """No garbage collection in the middle of what was there before."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def sizes(group: str) -> tuple[int, ...]:
    """How large the bodies of a group are made in the sample."""
    own = {"query": (HEADER,), "query of operators": (HEADER,), "npy": (2_000, 20_000), "fields": (SMALL, SAMPLE)}
    return own.get(group, (SAMPLE,))


def sample(group: str) -> list[Body]:
    """Some of the bodies of a group: all where they are few."""
    bodies = [body for size in sizes(group) for body in MAKERS[group](size)]
    step = max(1, len(bodies) // (60 if TEST_ALL else 30))
    return bodies[:: step + 1 - step % 2]  # an odd step meets every format and every element


def of_at_most(total: int, group: str, size: int, start: int = 0) -> list[Body]:
    """Bodies of a group, of `total` bytes together at most; of the others none is kept."""
    count = sum(1 for _ in MAKERS[group](2_000))
    step = -(-count * size // total)
    return list(islice(MAKERS[group](size), start % step, None, step + 1 - step % 2))


def seconds(run: Callable[[], object]) -> float:
    started = thread_time()
    with suppress(ValueError, RecursionError):
        run()
    return thread_time() - started


def uncollected_seconds(run: Callable[[], object]) -> float:
    """The same without garbage collection, which is most of what `json.loads` takes for many small lists."""
    gc.disable()
    try:
        return seconds(run)
    finally:
        gc.enable()


def copied(raw: bytes) -> None:
    for _ in range(10):
        bytearray(raw)


def parsed(text: bytes) -> None:
    """Read JSON, and the JSON that a text within it is: all of a lookup but its arrays."""
    document = json.loads(text)
    for member in ("parameters", "__metadata__"):
        inner = document.get(member) if isinstance(document, dict) else None
        if isinstance(inner, dict) and isinstance(inner.get("lookup"), str):
            json.loads(inner["lookup"])


def list_of_numbers(size: int) -> bytes:
    """JSON text of so many bytes, 15 ns of `json.loads` each (2 cores, AMD EPYC)."""
    return b"[" + b"0.123456789," * (size // 12) + b"0]"


def values_of(message: Any) -> dict[str, Any]:
    """A message of protobuf's library as Python's own objects, each of its values in them."""
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.message_type is None:
            found[field.name] = value[:] if field.is_repeated else value
        elif field.message_type.GetOptions().map_entry:
            found[field.name] = {key: values_of(one) for key, one in value.items()}
        elif field.is_repeated:
            found[field.name] = [values_of(one) for one in value]
        else:
            found[field.name] = values_of(value)
    return found


def handed_over(content: bytes) -> None:
    values_of(ModelInferRequest.FromString(content))


def without_what_is_no_message(content: bytes) -> bytes:
    """Those fields of a request that protobuf's library reads."""
    kept, at = [], 0
    while at < len(content):
        tag, start = read_varint(memoryview(content), at)
        if start < 0 or tag & 7 != OF_BYTES:
            break
        size, begin = read_varint(memoryview(content), start)
        if begin < 0:
            break
        field = content[at : begin + size]
        with suppress(DecodeError):
            ModelInferRequest.FromString(field)
            kept.append(field)
        at = begin + size
    return b"".join(kept)


class Measure(NamedTuple):
    """What the time is compared with, and how many times as long it may be."""

    run: Callable[[], object]
    times: int


def measure_of(body: Body, times: int) -> Measure:
    """The measure of a body, of which `times` times as long is the most."""
    if not body.codec.startswith("grpc"):
        return Measure(yardstick(body), times)
    numbers = Measure(partial(json.loads, list_of_numbers(len(body.content))), times)
    content = body.content
    try:
        inputs = ModelInferRequest.FromString(content).inputs
    except DecodeError:
        content = without_what_is_no_message(content)
        inputs = ModelInferRequest.FromString(content).inputs
    if len(inputs) > MOST_INPUTS:  # it is refused
        return numbers
    handed = Measure(partial(handed_over, content), PROTOBUF_TIMES)
    return max(numbers, handed, key=lambda measure: measure.times * seconds(measure.run))


def yardstick(body: Body) -> Callable[[], object]:
    """The measure of what is no message of protobuf."""
    numbers = partial(json.loads, list_of_numbers(len(body.content) + len(body.query)))
    if body.text:
        try:
            parsed(body.content)
        except (ValueError, RecursionError):
            return max(partial(parsed, body.content), numbers, key=seconds)
        return partial(parsed, body.content)
    if body.kind.endswith("npy") or body.query:
        return numbers
    if body.codec.startswith("safetensors") or body.kind.endswith("safetensors"):
        (size,) = struct.unpack("<Q", body.content[:8])
        if size > len(body.content) // 2:
            return partial(parsed, body.content[8 : 8 + size])
    if body.json_size is not None:
        return partial(_parsed_and_copied, body.content[: body.json_size], body.content[body.json_size :])
    return partial(copied, body.content)


def _parsed_and_copied(text: bytes, items: bytes) -> None:
    parsed(text)
    copied(items)


Reader = Callable[[Callable[[int], None] | None], object]


def plain(body: Body) -> Reader:
    return lambda charge: read(body, charge)


def times(group: str) -> int:
    """How much longer the bodies of a group may take than the measure."""
    return TIMES_OF.get(group, TIMES)


def too_slow(
    body: Body, reader: Reader | None = None, inflate: Callable[[], object] | None = None, times: int = TIMES
) -> str | None:
    """How much too long it takes, if it does: the median of several turns, and of more where that is too much, the last
    of them some seconds later: what runs beside this on the machine may take its caches for a while.

    A compressed body is compared with what zlib alone takes for it (`inflate`) where that is more: of what hardly
    compresses that is up to forty tenfold copies.
    """
    run = reader or plain(body)
    measure, times = measure_of(body, times)

    def clearly_fast() -> bool:
        """A turn within the bound, and the measure short of what it takes in the others."""
        took = seconds(lambda: run(None)) - CONSTANT_S
        return took <= times * uncollected_seconds(measure)

    if clearly_fast() and clearly_fast():  # two of three: the median is within it, too
        return None
    ratios = [0.0]
    for turns, pause in ((3, 0), (9, 0), (15, 0), (15, 2), (15, 5)):
        sleep(pause)
        ratios = []
        for _ in range(turns):
            took = seconds(lambda: run(None))
            floor = seconds(inflate) if inflate is not None else 0.0
            ratios.append((took - CONSTANT_S) / max(seconds(measure), floor, 1e-9))
            if took < CONSTANT_S:
                return None
        if median(ratios) <= times:
            return None
    spread = f"of {len(ratios)} turns from {min(ratios):.1f} to {max(ratios):.1f}, the last one {took * 1e3:.1f} ms"
    return f"{body.codec}, {body.name}, {len(body.content)} bytes: {median(ratios):.1f} times, {spread}"


def too_much(body: Body, reader: Reader | None = None) -> str | None:
    """How much too much memory it takes, or takes untold, if it does."""
    run = reader or plain(body)
    charges: list[int] = []
    peak = peak_of(lambda: run(charges.append)) - CONSTANT_BYTES
    size = len(body.content) + len(body.query)
    # What other threads take meanwhile is counted too: an earlier test may have left one.
    threads = ", ".join(one.name for one in threading.enumerate() if one is not threading.current_thread())
    if peak > BYTES * size:
        return f"{body.codec}, {body.name}: {peak / size:.1f} bytes a byte; other threads: {threads}"
    most = max(accumulate(charges), default=0)
    if peak > most:
        return f"{body.codec}, {body.name}: {peak} bytes, of which {most} were charged; other threads: {threads}"
    return None


@pytest.mark.parametrize("group", MAKERS)
def test_no_body_takes_longer_than_five_times_what_a_json_library_takes(group: str) -> None:
    assert not [found for body in sample(group) if (found := too_slow(body, times=times(group)))]


@pytest.mark.parametrize("group", MAKERS)
def test_no_body_is_refused_with_an_error_of_another_kind(group: str) -> None:
    for body in MAKERS[group](HEADER if group.startswith("query") else 20_000):
        read(body)  # it gives the code of a GatherError, and lets others pass: too many calls within each other, too


@pytest.mark.parametrize("group", MAKERS)
def test_no_body_takes_memory_untold_or_more_than_forty_times_its_size(group: str) -> None:
    assert not [found for body in sample(group) if (found := too_much(body))]


_LONG = [pytest.param(name, marks=pytest.mark.slow) for name in ("binary", "values", "base64", "fields")]


@pytest.mark.parametrize("group", ["single", *_LONG])
def test_memory_of_bodies_beside_which_the_constant_is_small_is_told(group: str) -> None:
    bodies = list(MAKERS[group](LARGE))
    assert not [found for body in bodies[7 :: max(1, len(bodies) // 8) | 1] if (found := too_much(body))]


@pytest.mark.parametrize("name", ["unknown field spaces and an emoji", "unknown field letters"])
@pytest.mark.parametrize("codec", ["native", "v2"])
@pytest.mark.parametrize("size", slow_but_for((LARGE,), (LARGE, 5 * LARGE)))
def test_large_fields_that_are_no_values_are_told_before_they_are_copied(name: str, codec: str, size: int) -> None:
    body = next(one for one in MAKERS["single"](size) if (one.name, one.codec) == (name, codec))
    assert too_much(body) is None


def zlib_alone(coded: bytes, window: int) -> None:
    zlib.decompressobj(window).decompress(coded)


def coded_wrongs(bodies: Iterable[Body], coding: str) -> list[str]:
    """What compressed bodies take too much of, for each byte of what they inflate to."""
    encoding, compress = CODINGS[coding]
    wrong = []
    for body in bodies:
        coded = compress(body.content)
        cap = len(body.content)

        def reader(
            charge: Callable[[int], None] | None, body: Body = body, coded: bytes = coded, cap: int = cap
        ) -> object:
            return read_coded(body, encoding, coded, cap, charge)

        slow = too_slow(body, reader, partial(zlib_alone, coded, WINDOW[coding]))
        wrong += [f"{coding}: {found}" for found in (slow, too_much(body, reader)) if found]
    return wrong


@pytest.mark.parametrize("coding", slow_but_for(("gzip", "raw deflate", "deflate, bytes behind it"), CODINGS))
def test_a_compressed_body_keeps_to_both_for_each_byte_that_it_inflates_to(coding: str) -> None:
    bodies = [body for group in ("values", "single", "base64", "fields", "binary") for body in MAKERS[group](SAMPLE)]
    start = 5 * list(CODINGS).index(coding)
    assert not coded_wrongs([*bodies[start :: len(bodies) // (18 if TEST_ALL else 9) | 1], *bombs(LARGE)], coding)


@pytest.mark.slow
@pytest.mark.parametrize("group", ["values", "single", "base64", "fields", "binary"])
@pytest.mark.parametrize("coding", CODINGS)
def test_compressed_bodies_of_every_group_keep_to_both(group: str, coding: str) -> None:
    start = list(CODINGS).index(coding)
    assert not coded_wrongs(of_at_most((60 if SOAK else 30) * LARGE, group, LARGE // 2, start), coding)


@pytest.mark.slow
@pytest.mark.parametrize("coding", CODINGS)
def test_every_bomb_keeps_to_both(coding: str) -> None:
    assert not coded_wrongs(bombs((20 if SOAK else 10) * LARGE), coding)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "raw deflate"])
def test_a_bomb_beyond_the_cap_is_refused_before_more_than_the_cap_is_held(coding: str) -> None:
    encoding, compress = CODINGS[coding]
    coded = compress(bytes(64 * LARGE))
    charges: list[int] = []
    codes = []
    bomb = Body("bomb", "native", b"")
    peak = peak_of(lambda: codes.append(read_coded(bomb, encoding, coded, 4 * LARGE, charges.append)))
    assert codes == ["payload_too_large"]
    assert max(accumulate(charges)) <= 4 * LARGE
    assert peak <= 4 * LARGE + CONSTANT_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("group", MAKERS)
@pytest.mark.parametrize("size", [SMALL, LARGE, 5 * LARGE])
def test_bodies_of_every_size_keep_to_both(group: str, size: int) -> None:
    if group in ("query", "query of operators", "npy"):
        size = min(size, HEADER)
    wrong = []
    total = 100 if group in OPERATOR_MAKERS or not SOAK else 400
    for body in of_at_most(total * LARGE, group, size):
        wrong += [found for found in (too_slow(body, times=times(group)), too_much(body)) if found]
    assert not wrong


@pytest.mark.parametrize("codec", ["native", "v2", "scatter"])
def test_what_the_budget_refuses_is_not_looked_at_again(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = next(one for one in MAKERS["values"](SMALL) if one.codec == codec and one.name == "float32, 0.1")

    def full(size: int) -> None:
        raise GatherError("overloaded", f"no room for {size}")

    def walked(*_: object, **__: object) -> None:
        raise AssertionError("walked although refused")

    monkeypatch.setattr(check, "run", walked)
    assert read(body, full) == "overloaded"


_VALUES = '"indices":{"dtype":"int64","shape":[1,1],"values":[[0]]}'


@pytest.mark.parametrize(
    ("codec", "text", "passes"),
    [
        ("native", f'{{"data":{{"dtype":"int8","shape":[1],"values":[0]}},"x":NaN,{_VALUES}}}', 1),
        ("native", f'{{"data":{{"dtype":"int8","shape":[1],"values":[0]}},{_VALUES}}} x}}', 1),
        (
            "native",
            f'{{"data":{{"dtype":"int8","shape":[1],"values":[0]}},{_VALUES},"batch_dims":0,"batch_dims":0}}',
            2,
        ),
        ("backward", f'{{"data_shape":[9],{_VALUES},"grad_output":{{"dtype":"float32","values":[1]}}}} x}}', 1),
        ("lookup", f'{{"features":[{{"tensor":"t",{_VALUES}}}],"x":NaN}}', 1),
        ("scatter", f'{{{_VALUES},"updates":{{"dtype":"float32","values":[1]}},"x":NaN}}', 1),
    ],
)
def test_the_grammar_of_a_malformed_body_is_looked_at_once(
    codec: TextCodec, text: str, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two passes where that finds a key that is given twice: keys are counted first."""
    run = check.run
    seen: list[int] = []

    def counted(view: NDArray[np.uint8], *arguments: Any) -> Any:
        seen.append(len(view))
        return run(view, *arguments)

    monkeypatch.setattr(check, "run", counted)
    assert read(Body("malformed", codec, text.encode())) == "malformed_request"
    assert len(seen) == passes


def test_a_check_of_the_grammar_is_told_before_it_takes_memory() -> None:
    keys = ",".join(f'"{number}":0' for number in range(50_000))
    cut = f'{{"data": {{"dtype": "int8", "shape": [1], "values": [{{{keys}}}]}}'
    for text in (cut, f'{cut}, "indices": {{"dtype": "int64", "values": [[0]]}}}}'):
        body = Body("keys", "native", text.encode())
        tracemalloc.start()
        charges: list[int] = []
        read(body, charges.append)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak <= sum(charges) + 200_000


def test_a_protocol_head_of_more_than_its_bound_is_not_remembered() -> None:
    def infer(lead: int) -> Body:
        items = bytes(4 * 50_000)
        inputs = [
            {"name": "data", "datatype": "FP32", "shape": [50_000], "parameters": {"binary_data_size": len(items)}},
            {"name": "indices", "datatype": "INT64", "shape": [1, 1], "data": [0]},
        ]
        text = json.dumps({"inputs": inputs, "x": "y" * lead}).encode()
        return Body("head", "v2", text + items, json_size=len(text))

    for lead, remembered in ((0, 1), (2_000, 0), (20_000, 0)):
        v2_request_tensors._remembered.cache_clear()
        body = infer(lead)
        v2_request_tensors.is_heavy(body.content, body.json_size, MODEL)
        assert read(body) is None
        assert v2_request_tensors._remembered.cache_info().currsize == remembered, lead


def test_a_header_of_many_tensors_is_read_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    loads = orjson.loads

    def loaded(text: bytes) -> object:
        seen.append(len(text))
        return loads(text)

    monkeypatch.setattr("app.wire.safetensors_header.orjson.loads", loaded)
    body = next(one for one in MAKERS["binary"](SAMPLE) if one.name == "header, many tensors")
    read(body)
    assert max(seen) < 200
