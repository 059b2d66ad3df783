"""Behind nginx and Caddy: refusals of uploads arrive, idle connections break nothing, and the page's files do it."""

from __future__ import annotations

import http.client
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from time import sleep
from typing import Any

import grpc
import httpx
import pytest
import yaml

from app.settings import Settings
from tests.conftest import slow_but_for
from tests.free_port import free_port
from tests.grpc_api.conftest import port_of
from tests.http.conftest import Start
from tests.http.proxies import caddy, nginx, page_blocks, replaced
from tests.http.raw import TINY
from tests.http.test_early_refusals import EARLY, Refusing, refusing
from tests.needs import skip_without

__all__ = ["refusing"]
MIB = 1 << 20
STATUSES = (401, 403, 404, 405, 412, 413, 415, 422)
FORWARDS = {
    "default": "",
    "unbuffered": "proxy_request_buffering off; proxy_http_version 1.1;",
    "unbuffered, kept": 'proxy_request_buffering off; proxy_http_version 1.1; proxy_set_header Connection "";',
}
NAME = "gathernd.example.com"


def upload(port: int, refusing: Refusing, status: int, size: int) -> int:
    """The status of a request with a body of `size` bytes, which the proxy on `port` passes on."""
    line, fields = EARLY[status]
    method, path = line.split()
    headers = dict(field.split(": ", 1) for field in fields)
    headers = {"Authorization": f"Bearer {refusing.key}", **headers}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, bytes(size), headers)
        answer = connection.getresponse()
        answer.read()
    finally:
        connection.close()
    return answer.status


@pytest.mark.parametrize("size", slow_but_for((6 * MIB,), (6 * MIB, 64 * MIB)), ids=["6 MiB", "64 MiB"])
@pytest.mark.parametrize("forward", FORWARDS)
def test_the_refusal_of_an_upload_comes_through_nginx(
    refusing: Refusing, forward: str, size: int, tmp_path: Path
) -> None:
    port = free_port()
    location = f"location / {{ proxy_pass http://127.0.0.1:{refusing.server.port}; {FORWARDS[forward]} }}"
    server = f"server {{ listen 127.0.0.1:{port}; client_max_body_size 0; {location} }}"
    with nginx(server, port, tmp_path / "nginx"):
        expected = [(status, status) for status, _ in product(STATUSES, range(2))]
        assert [(status, upload(port, refusing, status, size)) for status, _ in expected] == expected


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


def test_caddy_finds_the_page_s_configuration_valid(tmp_path: Path) -> None:
    skip_without(caddy="caddy")
    file = tmp_path / "Caddyfile"
    file.write_text("{\n\tstorage file_system " + str(tmp_path) + "\n}\n" + "".join(page_blocks("caddyfile")))
    command = ["caddy", "validate", "--adapter", "caddyfile", "--config", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_envoy_s_configuration_names_what_it_has() -> None:
    """No Debian package has Envoy: the file is held against what its reference says."""
    (text,) = page_blocks("yaml")
    resources = yaml.safe_load(text)["static_resources"]
    (listener,) = resources["listeners"]
    (chain,) = listener["filter_chains"]
    (manager,) = chain["filters"]
    (host,) = manager["typed_config"]["route_config"]["virtual_hosts"]
    clusters = {one["name"]: one for one in resources["clusters"]}
    assert [route["route"]["cluster"] for route in host["routes"]] == ["gathernd_grpc", "gathernd"]
    assert all(one["load_assignment"]["cluster_name"] == name for name, one in clusters.items())
    options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    protocols = {
        name: list(one["typed_extension_protocol_options"][options]["explicit_http_config"])
        for name, one in clusters.items()
    }
    assert protocols == {"gathernd": ["http_protocol_options"], "gathernd_grpc": ["http2_protocol_options"]}
    manager_type = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
    assert set(re.findall(r"type\.googleapis\.com/(\S+)", text)) == {
        manager_type, "envoy.extensions.filters.http.router.v3.Router", options,
    }  # fmt: skip


def test_the_service_keeps_idle_connections_longer_than_the_page_s_proxies() -> None:
    pattern = r"\b(?:keepalive_timeout|keepalive|idle_timeout:) (\d+)s"
    text = "".join("".join(page_blocks(language)) for language in ("nginx", "caddyfile", "yaml"))
    found = [int(seconds) for seconds in re.findall(pattern, text)]
    assert len(found) == 3
    assert Settings().keep_alive > max(found)


@pytest.mark.slow
def test_no_request_meets_a_connection_that_closes_where_the_proxy_closes_first(start: Start, tmp_path: Path) -> None:
    """Requests come just when nginx takes its connections for idle; the service keeps them for longer."""
    port = free_port()
    short = {
        "listen 80;": f"listen 127.0.0.1:{port};",
        "keepalive_timeout 60s;": "keepalive_timeout 1s;",
        "proxy_set_header Host $host;": "proxy_set_header Host $proxy_host;",
        "http://gathernd;": "http://gathernd_short;",
        "upstream gathernd {": "upstream gathernd_short {",
    }
    with start("--keep-alive", "3", "--allowed-hosts", "gathernd_short") as server:
        lines = replaced(page_blocks("nginx")[0], short | {"127.0.0.1:8080": f"127.0.0.1:{server.port}"})

        def ask(number: int) -> list[int]:
            found = []
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as client:
                for _ in range(5):
                    found.append(client.post("/gathernd", content=TINY).status_code)
                    sleep(0.98 + number * 0.0025)
            return found

        with nginx(lines, port, tmp_path / "nginx"), ThreadPoolExecutor(16) as threads:
            assert [code for found in threads.map(ask, range(16)) for code in found] == [200] * 80
