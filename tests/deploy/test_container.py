"""What can be said of the container without an engine: Dockerfile and compose file as data, and the scripts run."""

from __future__ import annotations

import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import entrypoint
from tests.deploy.dockerfile import DOCKERFILE, read_dockerfile
from tests.for_each import for_each
from tests.http.server import ROOT

HADOLINT = Path(sys.executable).with_name("hadolint")
STAGES = read_dockerfile()
BUILDER, FINAL = STAGES["builder"], STAGES["cpu"]


def compose() -> dict[str, Any]:
    loaded = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    assert isinstance(loaded, dict)
    return loaded


SERVICE: dict[str, Any] = compose()["services"]["gathernd"]


def healthcheck_command() -> list[str]:
    _, _, command = FINAL.arguments("HEALTHCHECK")[0].partition("CMD ")
    words = json.loads(command)
    assert isinstance(words, list)
    return words


@pytest.mark.skipif(not HADOLINT.exists(), reason="hadolint has wheels for few platforms")
def test_hadolint_accepts_the_dockerfile_without_a_remark() -> None:
    done = subprocess.run([HADOLINT, DOCKERFILE], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_base_images_are_slim_and_pinned_by_version_and_digest() -> None:
    assert len({stage.image for stage in STAGES.values()}) == 1
    for stage in STAGES.values():
        assert re.fullmatch(r"python:3\.\d+\.\d+-slim-[a-z]+@sha256:[0-9a-f]{64}", stage.image), stage.image
    assert ":latest" not in DOCKERFILE.read_text() + (ROOT / "docker-compose.yml").read_text()


def test_third_party_packages_are_installed_with_hashes_only() -> None:
    steps = {text for stage in STAGES.values() for text in stage.arguments("RUN")}
    installs = [text for text in steps if "pip install" in text]
    assert len(installs) == 3
    for text in installs:
        assert ("--require-hashes" in text) != ("--no-deps" in text and "--no-build-isolation" in text), text


def test_everything_written_lies_in_a_declared_volume_that_the_user_owns() -> None:
    assert FINAL.arguments("USER") == ["10001:10001"] == [SERVICE["user"]]
    environment = FINAL.environment()
    folders = {environment["GATHERND_STORE_DIR"], environment["GATHERND_CACHE_DIR"]}
    assert set(json.loads(FINAL.arguments("VOLUME")[0])) == folders
    made = next(text for text in FINAL.arguments("RUN") if text.startswith("install -d"))
    assert "-o 10001 -g 10001" in made
    folders.add("/etc/gathernd")  # the folder of keys, which a service without them does not write to
    assert folders <= set(made.split())
    assert {text.split(":")[1] for text in SERVICE["volumes"]} == folders
    assert {text.split(":")[0] for text in SERVICE["volumes"]} == set(compose()["volumes"])


@contextmanager
def answering(status: int) -> Iterator[int]:
    """A server on loopback that answers every GET with `status`; yields its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/readyz" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_port
        server.shutdown()


@for_each(("status", "healthy"), [(200, True), (503, False), (404, False)])
def test_health_check_follows_readyz_whatever_proxy_is_set(status: int, healthy: bool) -> None:
    with answering(status) as port:
        environ = {**os.environ, "GATHERND_PORT": str(port), "http_proxy": "http://192.0.2.1:1"}
        done = subprocess.run([sys.executable, *healthcheck_command()[1:]], env=environ, timeout=60, check=False)
    assert (done.returncode == 0) is healthy


def test_both_levels_of_the_entry_point_are_compiled_into_the_image() -> None:
    step = next(text for text in BUILDER.arguments("RUN") if "gathernd warm" in text)
    for level in (entrypoint.cpu_level("x86_64", FULL), entrypoint.cpu_level("x86_64", "")):
        assert re.search(rf"[ ;]{level}\b", step.replace(")", " ")), level
    assert f"GATHERND_CACHE_DIR={entrypoint.SEED}" in BUILDER.arguments("ENV")


FULL = "processor : 0\nflags\t\t: fpu sse2 " + " ".join(sorted(entrypoint.X86_64_V3)) + "\n"


@for_each(
    ("machine", "cpuinfo", "level"),
    [
        ("x86_64", FULL, "x86-64-v3"),
        ("x86_64", FULL.replace(" avx2", ""), "generic"),
        ("x86_64", "", "generic"),
        ("aarch64", "Features : fp asimd\n", "generic"),
    ],
)
def test_cpu_level_never_promises_what_the_host_lacks(machine: str, cpuinfo: str, level: str) -> None:
    assert entrypoint.cpu_level(machine, cpuinfo) == level


def test_seed_fills_an_empty_cache_and_leaves_what_is_there(tmp_path: Path) -> None:
    seed, cache = tmp_path / "seed", tmp_path / "cache"
    (seed / "numba-1").mkdir(parents=True)
    (seed / "numba-1" / "index").write_text("new")
    (seed / "calibration.json").write_text("of the build machine")
    # Left by a killed container. Process ids repeat: the first process of a container is 1.
    (cache / f".numba-1.{os.getpid()}").mkdir(parents=True)
    assert entrypoint.seed_cache(seed, cache) == ["numba-1"]
    (cache / "numba-1" / "index").write_text("grown")
    assert entrypoint.seed_cache(seed, cache) == []
    assert (cache / "numba-1" / "index").read_text() == "grown"
    assert not (cache / "calibration.json").exists()


def test_seed_that_cannot_be_copied_leaves_nothing_and_is_copied_once_it_can(tmp_path: Path) -> None:
    seed, cache = tmp_path / "seed", tmp_path / "cache"
    (seed / "numba-1").mkdir(parents=True)
    (seed / "numba-1" / "index").symlink_to(seed / "later")
    cache.mkdir()
    with pytest.raises(OSError, match="No such file"):
        entrypoint.seed_cache(seed, cache)
    assert list(cache.iterdir()) == []
    (seed / "later").write_text("new")
    assert entrypoint.seed_cache(seed, cache) == ["numba-1"]
    assert (cache / "numba-1" / "index").read_text() == "new"


def test_what_the_image_is_built_from_reaches_the_builder_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    sent = {line[1:].rstrip("/") for line in lines if line.startswith("!")}
    copies = [text for stage in STAGES.values() for text in stage.arguments("COPY") if not text.startswith("--from")]
    copied = {name for text in copies for name in text.split()[:-1]}
    assert "*" in lines
    assert sent == copied
    assert all((ROOT / name).exists() for name in sent)
