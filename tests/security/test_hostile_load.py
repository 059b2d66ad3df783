"""Hostile requests over HTTP and gRPC harm neither the service nor the requests beside and after them.

GATHERND_SEED=N sends the requests of that seed again.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any

import grpc
import numpy as np
import pytest

from app.errors import CATALOGUE
from app.formats.body_formats import LONG_HEADER, LONG_JSON, LONG_LOOKUP
from app.formats.grpc.infer_request import LONG_REST
from app.formats.json.read_request import read_request
from app.json_text.write_values import values_text
from app.operators.registry import OPERATORS
from app.tensors.shape_limits import Limits
from app.tensors.string_tensor import PackedStrings
from tests.conftest import SOAK, slow_but_for
from tests.costly_bodies.makers import MAKERS, bombs, gather, message_field, repeated
from tests.costly_bodies.read_body import CODINGS, RESIDENT, Body, read
from tests.grpc_api import messages
from tests.grpc_api.conftest import port_of
from tests.http.conftest import Start
from tests.http.held import metric, until
from tests.http.raw import TINY, ask, request
from tests.http.server import Server, check_hint
from tests.http.tensors import put_raw
from tests.processor_time import LONGEST, unit, units
from tests.security.hostile import SMUGGLED, Whole, attack, flipped, whole

SEED = int(os.environ.get("GATHERND_SEED") or (secrets.randbits(32) if SOAK else 1))
MIB = 1 << 20
BUDGET = 64 * MIB
MARGIN = BUDGET * 3 // 8 + 64 * MIB
"""What the service may hold beside its budget: see docs/reference/guarantees.md."""
TABLE = np.arange(32, dtype=np.float32).reshape(8, 4)
ALLOWED_5XX = {501, 503, 507}
REFUSED_RPCS = {
    "INVALID_ARGUMENT", "NOT_FOUND", "OUT_OF_RANGE", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "UNIMPLEMENTED",
    "UNAVAILABLE",
}  # fmt: skip


@pytest.fixture(scope="module", params=slow_but_for(("1",), ("1", "2")))
def server(start: Start, request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of a small budget, with a resident tensor that attacks read and change; at the end it is as before."""
    limits = ("--memory-budget", str(BUDGET), "--max-upload-bytes", "8MiB", "--max-tensors", "28")
    with start("--grpc-port", "0", "--workers", request.param, *limits, "--body-timeout", "5") as running:
        assert put_raw(running.shared_client(), RESIDENT, TABLE).status_code == 201
        assert put_raw(running.shared_client(), "good", TABLE).status_code == 201
        before = [running.process.pid, *running.workers()]
        yield running
        assert [running.process.pid, *running.workers()] == before, "a process died"
        assert running.shared_client().get("/tensors/smuggled").status_code == 404
        assert not list((running.log.parent / "store" / "incoming").iterdir())
        assert {path.name for path in running.log.parent.iterdir()} == {"log.txt", "store"}
        assert " ERROR " not in running.log_text()


def judged(status: int, head: bytes, body: bytes, folder: Path) -> str:
    """The code of an answer, "" if it is none of an error. Raises AssertionError for what no answer may be."""
    assert status < 500 or status in ALLOWED_5XX, (status, body)
    assert b"\r\nserver: " not in head.lower(), head
    for secret in (b"Traceback", str(folder).encode()):
        assert secret not in body, body
    if status < 400 or not body:
        return ""
    problem = json.loads(body)
    assert CATALOGUE[problem["code"]].status == status == problem["status"], body
    check_hint(problem["hint"])
    return str(problem["code"])


def asked(connection: HTTPConnection, body: Body, coding: str, folder: Path) -> str:
    """Send a body; the code of its refusal, or "". A refusal may come before the whole body has been sent."""
    method, path, fields = body.request()
    content = body.content
    if coding:
        name, compress = CODINGS[coding]
        content, fields["content-encoding"] = compress(content), name.decode()
    try:
        with suppress(ConnectionError):
            connection.request(method, path, content, fields)
        answer = connection.getresponse()
        return judged(answer.status, str(answer.headers).encode(), answer.read(), folder)
    except (HTTPException, ConnectionError):
        return "cut off"
    finally:
        connection.close()


def called(channel: grpc.Channel, body: Body) -> str:
    """Send a message; the status of its call."""
    infer: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    call = infer.future(message_field(1, body.to.encode()) + body.content, timeout=60)
    code: str = call.code().name
    assert code == "OK" or code in REFUSED_RPCS, (body.name, call.details())
    return code


def right_messages() -> Iterator[Body]:
    """Messages that are right, of numbers and of strings, with raw items and with items in `contents`."""
    indices = ("INT64", np.array([[1], [0]], np.int64))
    for datatype, array in (("FP32", TABLE), ("BYTES", np.array(["a", "é", ""], object))):
        for typed in (False, True):
            message = messages.request({"data": (datatype, array), "indices": indices}, typed=typed)
            yield Body(f"{datatype}, typed {typed}", "grpc", "gathernd", message.SerializeToString())


def corpus(size: int) -> list[tuple[Body, str]]:
    """Bodies of every group with how each is compressed; most are not."""
    sizes = {"npy": 20_000, "query": 40_000}
    bodies = [body for group, make in MAKERS.items() for body in make(sizes.get(group, size))]
    found = [(body, "") for body in bodies[:: 1 if SOAK else 5]]
    found += [(body, coding) for number, coding in enumerate(CODINGS) for body in bodies[number :: 40 if SOAK else 400]]
    small = [*right_messages(), *MAKERS["messages"](300)]
    found += [(body._replace(name=f"{body.name} {number}"), "") for body in small for number in range(12)]
    return found + [(body, "gzip") for body in bombs(32 * MIB)]


def test_hostile_bodies_stay_within_the_budget_and_others_are_answered(server: Server) -> None:
    found: Counter[str] = Counter()
    work = corpus(200_000)
    Random(SEED).shuffle(work)
    before = server.forget_peak()
    took: list[float] = []
    with grpc.insecure_channel(f"127.0.0.1:{port_of(server)}") as channel, ThreadPoolExecutor(4) as senders:

        def send(item: tuple[Body, str]) -> str:
            body, coding = item
            if body.format == "grpc":
                called(channel, body._replace(content=flipped(body.content, Random(f"{SEED} {body.name}"))))
                return "" if coding else called(channel, body)
            return asked(HTTPConnection("127.0.0.1", server.port, timeout=60), body, coding, server.log.parent)

        sent = [senders.submit(send, item) for item in work]
        while not all(one.done() for one in sent):
            begun = time.perf_counter()
            assert ask(server, request(TINY)).json()["output"]["values"] == [8]
            took.append(time.perf_counter() - begun)
            time.sleep(0.005)
        found.update(one.result() for one in sent)
    assert server.peak() - before <= BUDGET + MARGIN, f"{(server.peak() - before) / MIB:.0f} MiB"
    until(lambda: metric(server, "gathernd_memory_used_bytes") == 0)
    late = sorted(took)[len(took) * 99 // 100]
    assert late < 3, f"p99 of tiny requests beside them is {late:.1f} s: something waits for the hostile bodies"
    assert found["cut off"] <= len(work) // 50, found
    wanted = {"malformed_request", "invalid_field", "value_not_representable", "element_count_mismatch",
              "payload_too_large", "limit_exceeded", "INVALID_ARGUMENT", "OK"}  # fmt: skip
    assert wanted <= set(found), found


ANSWER = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r]*((?:\r\n[^\r]+)*)\r\n\r\n")


def conversation(server: Server, data: bytes, plan: Sequence[Whole], finish: bool) -> list[tuple[str, bool]]:
    """Send `data` and read the answers to `plan`, with `finish` all until the end: the code of each, and if it closes.

    What is sent is sent by a thread of its own: a sender that does not read would stand still.
    """
    answers: list[tuple[str, bool]] = []
    with server.connect(60) as line:
        sender = Thread(target=lambda: _send(line, data, finish))
        sender.start()
        buffer = b""
        while finish or len(answers) < len(plan):
            found = ANSWER.match(buffer)
            if found is not None and found[1] == b"100":
                buffer = buffer[found.end() :]
                continue
            to_head = len(answers) < len(plan) and plan[len(answers)].head
            size = 0 if found is None else _size(found, to_head)
            if found is None or len(buffer) < found.end() + size:
                piece = _received(line)
                if not piece:
                    break
                buffer += piece
                assert buffer.startswith(b"HTTP/1.1 "[: len(buffer)]), buffer
                continue
            head, body = found[2], buffer[found.end() : found.end() + size]
            buffer = buffer[found.end() + size :]
            own = re.search(rb"\r\nx-request-id: ([^\r]*)", head)
            assert own is not None, head
            assert own[1] != SMUGGLED.encode(), (head, body)
            closes = b"\r\nconnection: close" in head
            if len(answers) < len(plan) and not closes:
                assert own[1].decode() == plan[len(answers)].id, (head, plan[len(answers)])
            answers.append((judged(int(found[1]), head, body, server.log.parent), closes))
            if closes:
                break
        sender.join(60)
    return answers


def _send(line: socket.socket, data: bytes, finish: bool) -> None:
    with suppress(OSError):
        line.sendall(data)
        if finish:
            line.shutdown(socket.SHUT_WR)


def _received(line: socket.socket) -> bytes:
    try:
        return line.recv(1 << 18)
    except ConnectionError:
        return b""


def _size(found: re.Match[bytes], to_head: bool) -> int:
    length = re.search(rb"\r\ncontent-length: (\d+)", found[2])
    return 0 if to_head or length is None or found[1] in (b"204", b"304") else int(length[1])


def test_hostile_requests_harm_nobody(server: Server, soak_scale: int) -> None:
    """Pipelines of hostile requests, half of them with an attack on the framing in the end."""
    total, sent, batch = 1_200 * soak_scale, 0, 0
    seen: Counter[str] = Counter()
    with ThreadPoolExecutor(4) as clients:

        def one_batch(number: int) -> list[tuple[str, bool]]:
            source = Random(f"{SEED} {number}")
            plan = [whole(source, f"{number}-{at}") for at in range(source.choice((1, 4, 8, 16)))]
            finish = source.random() < 0.5
            data = b"".join(one.data for one in plan) + (attack(source) if finish else b"")
            answers = conversation(server, data, plan, finish)
            assert len(answers) >= len(plan) or (answers and answers[-1][1]), (plan[len(answers)], answers[-1:])
            assert ask(server, request(TINY)).json()["output"]["values"] == [8]
            return answers

        while sent < total:
            batches = range(batch, batch + 40)
            for answers in clients.map(one_batch, batches):
                sent += len(answers)
                seen.update(code for code, _ in answers)
            batch += 40
    assert {"malformed_request", "not_found", "method_not_allowed", "invalid_field", "forbidden"} <= set(seen), seen
    look_up = {"data": {"tensor": "good"}, "indices": {"dtype": "int64", "values": [[7]]}}
    answer = server.shared_client().post("/gathernd", json=look_up)
    assert answer.json()["output"]["values"] == TABLE[7].tolist()


def on_the_event_loop() -> Iterator[Body]:
    """Bodies that are read on the event loop, as large as they may be for that."""
    longest = {"json": LONG_JSON - 1000, "v2": LONG_JSON - 1000, "safetensors": LONG_HEADER - 100, "grpc": LONG_REST}
    for group, make in MAKERS.items():
        for form, size in longest.items():
            bodies = make(LONG_LOOKUP - 300 if group == "lookups" else size)
            yield from (body for body in bodies if body.format == form and len(body.content) <= LONG_JSON)


@pytest.mark.usefixtures("compiled")
def test_no_body_that_is_read_on_the_event_loop_holds_it_long() -> None:
    """Longer ones are read in a thread."""
    wrong = {}
    for body in list(on_the_event_loop())[:: 1 if SOAK else 9]:
        took = units(lambda body=body: read(body))  # type: ignore[misc]
        if took > LONGEST:
            wrong[f"{body.format} {body.to}, {body.name}, {len(body.content)} bytes"] = took
    assert wrong == {}


def lets_others_go_on(work: Callable[[], object]) -> bool:
    """Whether another thread goes on while this one does `work`: it never waits for the most of it, nor long."""
    begin, done = Event(), Event()
    whole_time = 0.0

    def run() -> None:
        nonlocal whole_time
        begin.wait()
        begun = time.thread_time()
        work()
        whole_time = time.thread_time() - begun
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
    return held < whole_time / 2 or held / unit() < LONGEST


@pytest.mark.usefixtures("compiled")
def test_very_many_strings_let_other_threads_go_on() -> None:
    text, count = repeated('"ab"', 10_000_000)
    body = gather(text, "string", f"[{count}]")

    def strings_of_body() -> PackedStrings:
        call, _ = read_request(body, b"", OPERATORS["gathernd"].signature, Limits())
        assert isinstance(call.data, PackedStrings)
        return call.data

    strings = strings_of_body()
    steps: dict[str, Callable[[], object]] = {
        "read": strings_of_body,
        "the longest": lambda: strings.first_longer(1 << 20),
        "measured": lambda: strings.gathered((count,), strings.array[::-1].copy()).nbytes,
        "packed": strings.packed,
        "written": lambda: values_text(strings),
    }
    assert [name for name, step in steps.items() if not lets_others_go_on(step)] == []
