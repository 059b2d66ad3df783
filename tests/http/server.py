"""A real `gathernd serve` for the tests: on a free port, waited for, stopped politely, and its log judged.

Every answer that a client of these tests gets passes `check_answer`, so that what holds for all answers (the header
fields, the one error shape, the statuses that OpenAPI lists) is tested by every test.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from time import monotonic, sleep
from typing import Any, BinaryIO

import httpx

from app.errors import CATALOGUE, CODES, REPORTED_PLACES
from tests.conftest import SOAK
from tests.http import fork_server
from tests.http.fork_server import ForkedProcess

ROOT = Path(__file__).parents[2]
LONGEST_HINT = 700
TWO_WORKERS = ("--workers", "2")
GATHERND = fork_server.GATHERND
_TIMING = re.compile(r"parse;dur=[0-9.]+(, queue;dur=[0-9.]+(, kernel;dur=[0-9.]+(, encode;dur=[0-9.]+)?)?)?")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_LISTENS = re.compile(r"listening on https?://[^ ]*:([0-9]+)")
_OPERATORS = (
    "/gathernd", "/gather", "/gather_elements", "/gather_block_quantized", "/scatternd", "/scatter_elements", "/lookup",
    "/gathernd/backward", "/gather/backward",
)  # fmt: skip


@cache
def _documented() -> dict[str, set[int]]:
    """The statuses of each operator's answers in the OpenAPI file, which a test holds to what is served."""
    paths = json.loads((ROOT / "openapi" / "openapi.json").read_bytes())["paths"]
    return {path: set(map(int, paths[path]["post"]["responses"])) for path in _OPERATORS}


_NO_EXPIRY = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=None)


@dataclass
class Server:
    """A running server. `documented` maps a path to the statuses that its OpenAPI file lists for POST.

    `tls` is what its clients verify it with, where it speaks HTTPS.
    """

    process: subprocess.Popen[bytes] | ForkedProcess
    log: Path
    port: int = 0
    documented: dict[str, set[int]] = field(default_factory=dict)
    shared: httpx.Client | None = None
    tls: ssl.SSLContext | None = None

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.port}"

    @property
    def verify(self) -> ssl.SSLContext | bool:
        """httpx's option of this name. Without TLS nothing is to be verified, and what would be is slow to read."""
        return False if self.tls is None else self.tls

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def client(self, **options: Any) -> httpx.Client:
        """A client whose every answer is checked."""
        return httpx.Client(
            base_url=self.url,
            trust_env=False,
            verify=self.verify,
            timeout=60,
            event_hooks={"response": [lambda response: check_answer(response, self.documented)]},
            **options,
        )

    def workers(self) -> list[int]:
        """The processes that it has started."""
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def memory(self) -> int:
        """Bytes of memory that its process holds now."""
        return self._status("VmRSS")

    def peak(self) -> int:
        """The most bytes of memory that its process has held since it started, or since `forget_peak`."""
        return self._status("VmHWM")

    def forget_peak(self) -> int:
        """Set the peak back to what the process holds now, which is returned."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return self.memory()

    def _status(self, name: str) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.partition(f"{name}:")[2].split()[0]) << 10

    def shared_client(self) -> httpx.Client:
        """One client for many tests, since making one costs more than most requests.

        Its idle connections do not expire. httpcore would close one that does although another thread has just been
        given it: a test with several threads has failed so on a busy machine.
        """
        assert self.process.poll() is None, self.log_text()
        if self.shared is None:
            self.shared = self.client(limits=_NO_EXPIRY)
        return self.shared

    def close_shared_client(self) -> None:
        """Close the connections of that client; the next test to ask for it gets another."""
        if self.shared is not None:
            self.shared.close()
            self.shared = None

    def connect(self, timeout: float = 60) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout)

    def wait_until_listening(self) -> None:
        end = monotonic() + 60
        while self.process.poll() is None:
            found = _LISTENS.search(self.log_text())
            if found:
                self.port = int(found[1])
                return
            assert monotonic() < end, f"the server does not listen:\n{self.log_text()}"
            sleep(0.02)
        raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.log_text()}")

    def wait_until_ready(self) -> None:
        end = monotonic() + 120
        with httpx.Client(base_url=self.url, trust_env=False, verify=self.verify, timeout=60) as client:
            while (answer := client.get("/readyz")).status_code != 200:
                assert "could not start" not in answer.text, self.log_text()
                assert monotonic() < end, f"the server is not ready:\n{self.log_text()}"
                sleep(0.02)
        self.documented = _documented()

    def stop(self, number: int = signal.SIGTERM, within: float = 60) -> int:
        """Send a signal and wait for the end; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(within)


def start(
    command: Sequence[str],
    folder: Path,
    variables: Mapping[str, str],
    more: Mapping[str, str],
    log: BinaryIO,
) -> subprocess.Popen[bytes] | ForkedProcess:
    """Start `command` in `folder` with the variables of both mappings and its output in `log`.

    It is forked where that is possible (see `fork_server`), and started as its users do in a soak.
    """
    if not SOAK and fork_server.can_start(command, more):
        return fork_server.start(command, folder, {**variables, **more}, log)
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**variables, **more},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def run_program(
    command: Sequence[str],
    folder: Path = ROOT,
    variables: Mapping[str, str] | None = None,
    timeout: float | None = 60,
    compiled: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `command` in `folder` to its end, with `variables` for an environment and its output captured.

    It is forked where that is possible, and then has loaded what is in the cache folder `compiled`; not so in a soak.
    """
    own = os.environ if variables is None else variables
    if not SOAK and fork_server.can_start(command, dict(own.items() - os.environ.items())):
        return fork_server.run(command, folder, own, timeout, str(compiled or ""))
    return subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, timeout=timeout, check=False)


@contextmanager
def serving(
    cache_dir: Path,
    folder: Path,
    *flags: str,
    command: Sequence[str] = (GATHERND, "serve"),
    ready: bool = True,
    tracebacks: bool = False,
    tls: ssl.SSLContext | None = None,
    cwd: Path = ROOT,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """A server with the settings `flags` in `folder`; at the end it must have exited with 0 and logged no traceback."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.txt"
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GATHERND_")}
    variables["GATHERND_STORE_DIR"] = str(folder / "store")
    variables["GATHERND_CACHE_DIR"] = str(cache_dir)
    with log.open("wb") as file:
        process = start([*command, "--port", "0", *flags], cwd, variables, environment or {}, file)
    server = Server(process, log, tls=tls)
    try:
        server.wait_until_listening()
        if ready:
            server.wait_until_ready()
        yield server
        server.close_shared_client()
        code = server.stop()
        assert code == 0, f"exit code {code}:\n{server.log_text()}"
        assert tracebacks or "Traceback" not in server.log_text(), server.log_text()
    finally:
        server.close_shared_client()
        if process.poll() is None:
            process.kill()
            process.wait(60)


def check_answer(response: httpx.Response, documented: dict[str, set[int]] | None = None) -> None:
    """What holds for every answer, whatever was asked."""
    response.read()
    request, headers = response.request, response.headers
    assert "server" not in headers, headers
    request_id = headers["x-request-id"]
    assert _REQUEST_ID.fullmatch(request_id), request_id
    given = request.headers.get("x-request-id", "")
    assert not _REQUEST_ID.fullmatch(given) or request_id == given, (given, request_id)
    assert _TIMING.fullmatch(headers["server-timing"]), headers["server-timing"]
    if response.status_code >= 400:
        check_problem(
            response.status_code, dict(headers), response.json() if request.method != "HEAD" else None, request_id
        )
    if documented and request.method == "POST" and request.url.path in documented:
        assert response.status_code in documented[request.url.path], (response.status_code, documented)


def check_problem(status: int, headers: dict[str, str], body: Any, request_id: str) -> None:
    """An error has the one shape and what its status asks for; `body` is None for HEAD."""
    assert headers["content-type"] == "application/problem+json", headers
    assert (status != 503) or int(headers["retry-after"]) >= 1, headers
    assert (status != 405) or "OPTIONS" in headers["allow"], headers
    if body is None:
        return
    code = body["code"]
    assert code in CODES, body
    assert status == body["status"] == CATALOGUE[code].status, (status, body)
    assert body["type"] == f"/errors/{code}", body
    assert body["title"] == CATALOGUE[code].title, body
    assert isinstance(body["detail"], str)
    assert body["detail"], body
    assert "Traceback" not in body["detail"], body
    check_hint(body["hint"])
    assert body["request_id"] == request_id, body
    if "errors" in body:
        assert 1 <= len(body["errors"]) <= REPORTED_PLACES, body
        assert body["total"] >= len(body["errors"]), body
        assert all(place["pointer"].startswith("/") or place["pointer"] == "" for place in body["errors"]), body
    known = {
        "type", "title", "status", "code", "detail", "rule", "errors", "total", "limit", "maximum", "ranges", "hint",
        "request_id",
    }  # fmt: skip
    assert set(body) <= known, body


def check_hint(hint: str) -> None:
    """Each error has a sentence on how to fix the request, without a name of the template left over."""
    assert re.fullmatch(r"[A-Z].*[^ ]\.", hint, re.DOTALL), hint
    assert len(hint) <= LONGEST_HINT, hint
    assert not re.search(r"\{[a-z_]+\}", hint), hint
