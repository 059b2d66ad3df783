"""Proxies in front of a server, run with configurations of a test or of docs/how-to/behind-a-proxy.md."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from tests.markdown_blocks import ROOT, blocks
from tests.needs import skip_without

PAGE = ROOT / "docs/how-to/behind-a-proxy.md"
_NGINX = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
{http}
}}
"""

_CADDY = """
{
	admin off
	auto_https off
	default_bind 127.0.0.1
	servers {
		protocols h1 h2c
	}
}
"""


def page_blocks(language: str) -> list[str]:
    """The configurations that the page shows in a language."""
    return [block.code for block in blocks(PAGE) if block.language == language]


def replaced(text: str, changes: Mapping[str, str]) -> str:
    """`text` with other words, each of which it has."""
    for before, after in changes.items():
        assert before in text, before
        text = text.replace(before, after)
    return text


@contextmanager
def nginx(http: str, port: int, folder: Path) -> Iterator[None]:
    """nginx with these lines of the context `http`, which listen on `port`; skips where there is none."""
    skip_without(nginx="nginx-light")
    folder.mkdir(parents=True)
    file = folder / "nginx.conf"
    file.write_text(_NGINX.format(folder=folder, http=http))
    with _running(["nginx", "-e", "stderr", "-p", str(folder), "-c", str(file)], port, folder):
        yield


@contextmanager
def caddy(caddyfile: str, port: int, folder: Path) -> Iterator[None]:
    """Caddy with this configuration, which listens on `port`; skips where there is none."""
    skip_without(caddy="caddy")
    folder.mkdir(parents=True)
    file = folder / "Caddyfile"
    file.write_text(_CADDY + caddyfile)
    with _running(["caddy", "run", "--config", str(file), "--adapter", "caddyfile"], port, folder):
        yield


@contextmanager
def _running(command: Sequence[str], port: int, folder: Path) -> Iterator[None]:
    log = folder / "log"
    own = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env={**os.environ, **own}, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        end = monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 5).close()
                break
            except ConnectionRefusedError:
                assert process.poll() is None, log.read_text()
                assert monotonic() < end, log.read_text()
                sleep(0.02)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)
