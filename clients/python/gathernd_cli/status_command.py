"""`gathernd status`: show whether a running service is ready, its version, device, tensors, memory and requests."""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPHandler, ProxyHandler, Request, build_opener, urlopen

import typer

from .connect_or_exit import DEFAULT_URL, Ca, Key, Url
from .tables import Field, human_bytes, human_count, print_fields

TIMEOUT_S: Final = 10.0
_SAMPLE: Final = re.compile(r"(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_FAILED: Final = re.compile(r'(^|,)status="5')
_NOT_READY: Final = re.compile(r'(^|,)path="[^"]*/readyz?",status="503"')
"""The labels of readiness probes whose response was "not ready". Such probes do not count as failures."""

app = typer.Typer(add_completion=False)


class NoAnswer(Exception):
    """The service did not respond, or responded with an error or something unexpected. The message says why."""


@app.command("status")
def status(url: Url = DEFAULT_URL, key: Key = None, ca: Ca = None) -> None:
    """Print whether the service is ready, its version, device, tensors, memory and requests.

    The exit code is 1 if the service is not ready or does not answer.
    """
    url = url.rstrip("/")
    try:
        tls = None if ca is None or not url.startswith("https:") else _tls_context(ca)
        why_not = _why_not_ready(url, tls)
        metadata, metrics = json.loads(_get(url, "/v2", key, tls)), _get(url, "/metrics", key, tls).decode()
    except (NoAnswer, ValueError) as error:
        typer.echo(f"gathernd: {url}: {error}", err=True)
        raise typer.Exit(1) from None
    ready = Field("ready", "yes" if why_not is None else f"no: {why_not}")
    version = Field("version", str(metadata.get("version", "")))
    print_fields((Field("url", url), ready, version, *_metrics_fields(metrics)))
    if why_not is not None:
        raise typer.Exit(1)


def _metrics_fields(text: str) -> Iterator[Field]:
    """Yield fields computed from the service's metrics, summed over its processes."""
    totals: dict[str, float] = {}
    failed, started = 0.0, []
    for sample in filter(None, map(_SAMPLE.fullmatch, text.splitlines())):
        name, value = sample["name"], float(sample["value"])
        totals[name] = totals.get(name, 0.0) + value
        labels = sample["labels"] or ""
        if name == "gathernd_requests_total" and _FAILED.search(labels) and not _NOT_READY.search(labels):
            failed += value
        if name == "process_start_time_seconds":
            started.append(value)

    def total(name: str) -> str:
        return f"{totals.get(name, 0.0):.0f}"

    yield Field("started", datetime.fromtimestamp(min(started), UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if started else "")
    yield Field("device", "cpu and gpu" if totals.get("gathernd_gpu_memory_bytes") else "cpu")
    yield Field("processes", total("gathernd_processes"))
    yield Field("tensors", total("gathernd_resident_tensors"), human_count)
    yield Field("tensor_bytes", total("gathernd_resident_bytes"), human_bytes)
    yield Field("tensor_bytes_free", total("gathernd_resident_bytes_free"), human_bytes)
    yield Field("memory_used", total("gathernd_memory_used_bytes"), human_bytes)
    yield Field("memory_budget", total("gathernd_memory_budget_bytes"), human_bytes)
    yield Field("requests", total("gathernd_requests_total"), human_count)
    yield Field("requests_failed", f"{failed:.0f}", human_count)
    yield Field("requests_in_flight", total("gathernd_requests_in_flight"), human_count)


def _why_not_ready(url: str, tls: ssl.SSLContext | None) -> str | None:
    """Return why the service is not ready, or None if it is ready. Raises NoAnswer."""
    try:
        _get(url, "/readyz", None, tls)
    except NoAnswer as error:
        if isinstance(error.__cause__, HTTPError) and error.__cause__.code == 503:
            return str(error)
        raise
    return None


def _tls_context(ca: Path) -> ssl.SSLContext:
    """Return a TLS context that trusts the authorities in a file or folder. Raises NoAnswer."""
    try:
        return ssl.create_default_context(cafile=None if ca.is_dir() else ca, capath=ca if ca.is_dir() else None)
    except OSError as error:
        raise NoAnswer(f"{ca} contains no CA certificate (PEM): {error.strerror}") from None


def _get(url: str, path: str, key: str | None, tls: ssl.SSLContext | None) -> bytes:
    """Return the body of `GET url + path`. HTTPS trusts the system's authorities if `tls` is None. Raises NoAnswer."""
    parts = urlsplit(url)
    opened: Callable[..., Any] = urlopen if tls is None else partial(urlopen, context=tls)
    if parts.scheme == "unix":
        url, opened = "http://localhost", build_opener(ProxyHandler({}), _OnUnixSocket(parts.path)).open
    elif parts.scheme not in {"http", "https"}:
        raise NoAnswer("the URL must start with http://, https:// or unix:/")
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        with opened(Request(url + path, headers=headers), timeout=TIMEOUT_S) as answer:  # noqa: S310  (http, see above)
            body: bytes = answer.read()
    except HTTPError as error:
        raise NoAnswer(_refusal(error)) from error
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        if isinstance(reason, ssl.SSLError):
            from gathernd._failures import certificate_problem, reason_of  # noqa: PLC0415  (imports NumPy)

            raise NoAnswer(certificate_problem(reason) or reason_of(reason)) from error
        raise NoAnswer(f"no response: {reason}; is it running?") from error
    return body


class _OnUnixSocket(HTTPHandler):
    """Opens HTTP URLs over a Unix socket, ignoring their host."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def http_open(self, req: Request) -> Any:
        """Open a URL; urllib calls this."""
        path = self._path

        class Connection(HTTPConnection):
            def connect(self) -> None:
                self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self.sock.settimeout(self.timeout)
                self.sock.connect(path)

        return self.do_open(Connection, req)


def _refusal(error: HTTPError) -> str:
    """Return the code and detail of an error body of the service, or the HTTP status if it is not such a body."""
    try:
        body: Any = json.loads(error.read())
        return f"{body['code']}: {body['detail']}"
    except (KeyError, TypeError, ValueError):
        return f"HTTP status {error.code}"
