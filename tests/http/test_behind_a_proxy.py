"""Behind nginx and Caddy, with the configurations of the page: gathers, uploads and gRPC come through."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from tests.free_port import free_port
from tests.grpc_api.conftest import port_of
from tests.http.conftest import Start
from tests.http.held import until
from tests.http.raw import TINY
from tests.markdown_blocks import ROOT, blocks
from tests.needs import skip_without

MIB = 1 << 20
NAME = "gathernd.example.com"
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

    def is_listening() -> bool:
        assert process.poll() is None, log.read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env={**os.environ, **own}, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        until(is_listening)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@contextmanager
def proxied(name: str, port: int, grpc_port: int, folder: Path, **ports: int) -> Iterator[None]:
    """The page's proxy `name`, which takes HTTP on `port` and gRPC on `grpc_port`, of this machine alone."""
    to = {"127.0.0.1:8080": f"127.0.0.1:{ports['http']}", "127.0.0.1:8081": f"127.0.0.1:{ports['grpc']}"}
    if name == "nginx":
        own = {"listen 80;": f"listen 127.0.0.1:{port};", "listen 81 ": f"listen 127.0.0.1:{grpc_port} "}
        with nginx(replaced("".join(page_blocks(name)), to | own), port, folder):
            yield
    else:
        own = {f"\n{NAME} {{": f"\nhttp://{NAME}:{port} {{", f"grpc.{NAME} {{": f"http://grpc.{NAME}:{grpc_port} {{"}
        (caddyfile,) = page_blocks("caddyfile")
        with caddy(replaced(caddyfile, to | own), port, folder):
            yield


@pytest.mark.parametrize("name", ["nginx", "caddy"])
def test_the_configuration_of_the_page(start: Start, name: str, tmp_path: Path) -> None:
    port, grpc_port = free_port(), free_port()
    flags = ("--grpc-port", "0", "--allowed-hosts", NAME)
    with start(*flags) as server, proxied(
        name, port, grpc_port, tmp_path / name, http=server.port, grpc=port_of(server)
    ), httpx.Client(
        base_url=f"http://127.0.0.1:{port}", trust_env=False, headers={"Host": NAME}, timeout=60
    ) as client:  # fmt: skip
        for _ in range(20):
            assert client.post("/gathernd", content=TINY).json()["output"]["values"] == [8]
        connections = server.shared_client().get("/metrics").text
        assert int(re.findall(r"^gathernd_connections (\d+)", connections, re.MULTILINE)[0]) <= 3
        raw = {"content-type": "application/octet-stream"}
        for tensor, status in (("large", 201), ("gathernd", 422)):
            path = f"/tensors/{tensor}?dtype=int8&shape={64 * MIB}"
            assert client.put(path, content=bytes(64 * MIB), headers=raw).status_code == status
        with httpx.Client(trust_env=False, timeout=60) as foreign:
            # Caddy serves no other name; nginx has the one server for all.
            status = foreign.get(f"http://127.0.0.1:{port}/tensors", headers={"Host": "other.example"}).status_code
            assert status == (403 if name == "nginx" else 200)
        authority = [("grpc.default_authority", f"grpc.{NAME}:{grpc_port}")]
        with grpc.insecure_channel(f"127.0.0.1:{grpc_port}", authority) as channel:
            check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert check(b"", timeout=60) == b"\x08\x01"
