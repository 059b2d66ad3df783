"""What bodies that are made to cost much cost the others: the event loop is theirs too."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterator
from threading import Event, Thread

import pytest

from app.formats.body_formats import LONG_BINARY, LONG_HEADER, LONG_JSON, LONG_LOOKUP
from app.formats.json.read_request import read_request
from app.json_text.write_values import values_text
from app.operators.registry import OPERATORS
from app.tensors.shape_limits import Limits
from app.tensors.string_tensor import PackedStrings
from tests.conftest import SOAK
from tests.costly_bodies.gathers import native, repeated
from tests.costly_bodies.makers import MAKERS, OPERATOR_MAKERS
from tests.costly_bodies.read_body import Body, read
from tests.processor_time import LONGEST, unit, units

SIZE = 60_000


def safetensors(members: dict[str, tuple[str, list[int], bytes]], shift: int = 0) -> Body:
    """A request of these tensors; `shift` spaces behind the header move the items from their places."""
    entries, place = {}, 0
    for name, (dtype, shape, raw) in members.items():
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [place, place + len(raw)]}
        place += len(raw)
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8 + shift)
    content = struct.pack("<Q", len(header)) + header + b"".join(raw for _, _, raw in members.values())
    return Body(f"{members['data'][0]} at {shift}", "safetensors", content)


def large_binary() -> Iterator[Body]:
    """The largest binary bodies whose headers are small."""
    room = LONG_BINARY - 1000
    lookup = ("I64", [1, 1], bytes(8))
    for shift in (0, 1):
        yield safetensors({"data": ("BOOL", [room], bytes(room)), "indices": lookup}, shift)
        yield safetensors({"data": ("BOOL", [room], bytes(room - 1) + b"\2"), "indices": lookup}, shift)
        yield safetensors({"data": ("F64", [room // 8], bytes(room // 8 * 8)), "indices": lookup}, shift)
        yield safetensors({"data": ("BF16", [room // 2], bytes(room // 2 * 2)), "indices": lookup}, shift)
        yield safetensors({"data": ("I8", [1], b"\1"), "indices": ("I64", [room // 8, 1], bytes(room // 8 * 8))}, shift)


def on_the_event_loop() -> Iterator[Body]:
    """All kinds of bodies that are read on the event loop, as large as they may be for that."""
    for group in ("values", "single", "base64", "fields", "binary"):
        for body in MAKERS[group](LONG_JSON - 1000):
            if body.codec in ("native", "v2") and len(body.content) <= LONG_JSON:
                yield body
    for body in MAKERS["binary"](LONG_HEADER - 100):
        if body.codec == "safetensors":
            yield body
    yield from MAKERS["query"](SIZE)
    yield from large_binary()
    for size, codecs in (
        (LONG_JSON - 1000, ("elements", "backward", "v2 elements")),
        (LONG_LOOKUP - 300, ("lookup", "v2 lookup", "safetensors lookup")),
        (LONG_HEADER - 100, ("safetensors elements", "safetensors backward")),
    ):
        for make in OPERATOR_MAKERS.values():
            yield from (body for body in make(size) if body.codec in codecs)
    # Items as many as a binary body of the event loop may have, all of them to be copied.
    for body in OPERATOR_MAKERS["binary of operators"](LONG_BINARY - 1000):
        if "not aligned" in body.name or body.name == "items":
            yield body


@pytest.mark.usefixtures("compiled")
@pytest.mark.slow
def test_no_body_that_is_read_on_the_event_loop_holds_it_long() -> None:
    """Longer ones are read in a thread."""
    found = list(on_the_event_loop())
    assert max(len(body.content) for body in found if body.codec == "native") > LONG_JSON - 2000
    assert max(len(body.content) for body in found) > LONG_BINARY - 2000
    wrong = {}
    for body in found if SOAK else found[::9]:
        took = units(lambda body=body: read(body))  # type: ignore[misc]
        if took > LONGEST:
            wrong[f"{body.codec}, {body.name}, {len(body.content)} bytes"] = took
    assert wrong == {}


def lets_others_go_on(work: Callable[[], object]) -> bool:
    """Whether another thread goes on while this one does `work`: it never waits for the most of it, nor long."""
    begin, done = Event(), Event()
    whole = 0.0

    def run() -> None:
        nonlocal whole
        begin.wait()
        begun = time.thread_time()
        work()
        whole = time.thread_time() - begun
        done.set()

    thread = Thread(target=run)
    thread.start()
    assert thread.ident is not None
    clock = time.pthread_getcpuclockid(thread.ident)
    held, before = 0.0, time.clock_gettime(clock)
    begin.set()
    while not done.is_set():
        time.sleep(1e-4)
        if thread.is_alive() and not done.is_set():
            now = time.clock_gettime(clock)
            held, before = max(held, now - before), now
    thread.join()
    return held < whole / 2 or held / unit() < LONGEST


@pytest.mark.usefixtures("compiled")
def test_very_many_strings_let_other_threads_go_on() -> None:
    text, count = repeated('"ab"', 10_000_000)
    body = native(text, "string", f"[{count}]")
    strings = read_strings(body)
    steps: dict[str, Callable[[], object]] = {
        "read": lambda: read_strings(body),
        "the longest": lambda: strings.first_longer(1 << 20),
        "measured": lambda: strings.gathered((count,), strings.array[::-1].copy()).nbytes,
        "packed": strings.packed,
        "written": lambda: values_text(strings),
    }
    assert [name for name, step in steps.items() if not lets_others_go_on(step)] == []


def read_strings(body: bytes) -> PackedStrings:
    """The strings that a request has."""
    call, _ = read_request(body, b"", OPERATORS["gathernd"].signature, Limits())
    assert isinstance(call.data, PackedStrings)
    return call.data
