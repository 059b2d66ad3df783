"""The Dockerfile's steps lead to an image that serves: carried out in a clean root, and started as a container."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep

import httpx
import pytest

import app
from tests.deploy.clean_root import Root, bootstrap, entry
from tests.deploy.dockerfile import read_dockerfile
from tests.free_port import free_port
from tests.needs import skip_without

STAGES = read_dockerfile()
IMAGE = STAGES["cpu"]
VOLUMES: list[str] = json.loads(IMAGE.arguments("VOLUME")[0])
CALL = {
    "data": {"dtype": "float32", "shape": [2, 2], "values": [0, 1, 2, 3]},
    "indices": {"dtype": "int64", "shape": [2, 2], "values": [0, 0, 1, 1]},
}


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file under `folder` with its size and time of change; what a process makes of /proc is none of it."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and not path.is_relative_to(folder / "proc"):
            status = path.stat()
            found[str(path.relative_to(folder))] = (status.st_size, status.st_mtime_ns)
    return found


@contextmanager
def container(root: Root) -> Iterator[tuple[str, dict[str, str]]]:
    """A running container of the image, on loopback; yields its URL and environment. It must end with 0."""
    port = free_port()
    environment = {**root.environment, "GATHERND_HOST": "127.0.0.1", "GATHERND_PORT": str(port)}
    log = root.folder.parent / "log.txt"
    with log.open("wb") as file:
        process = subprocess.Popen(root.command(*entry(IMAGE), environment=environment), stdout=file, stderr=file)
    url = f"http://127.0.0.1:{port}"
    try:
        end = monotonic() + 120
        while not ready(url):
            assert process.poll() is None, log.read_text()
            assert monotonic() < end, log.read_text()
            sleep(0.1)
        yield url, environment
        # The program itself, which is the container's first process: `unshare` stands outside.
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(child), 15)
        assert process.wait(60) == 0, log.read_text()
        assert "Traceback" not in log.read_text()
    finally:
        if process.poll() is None:
            process.kill()


def ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.soak
def test_image_is_built_in_a_clean_root_and_serves_as_an_unprivileged_user(tmp_path: Path) -> None:
    skip_without(debootstrap="debootstrap", unshare="util-linux")
    if os.geteuid() != 0:
        pytest.skip("only root may make a root file system")
    base = tmp_path / "base"
    bootstrap(base, IMAGE.image)
    builder, final = Root(tmp_path / "builder"), Root(tmp_path / "final")
    for root in (builder, final):
        subprocess.run(["cp", "-a", "--reflink=auto", base, root.folder], check=True)
    builder.carry_out(STAGES["builder"], {})
    final.carry_out(IMAGE, {"builder": builder})

    version = final.command("gathernd", "version", environment=final.environment)
    assert subprocess.run(version, capture_output=True, text=True, check=True).stdout.strip() == app.__version__
    before = files(final.folder)
    with container(final) as (url, environment):
        answer = httpx.post(f"{url}/gathernd", json=CALL, trust_env=False)
        assert answer.json()["output"]["values"] == [0.0, 3.0]
        words = json.loads(IMAGE.arguments("HEALTHCHECK")[0].partition("CMD ")[2])
        assert subprocess.run(final.command(*words, environment=environment), check=False).returncode == 0
        other = {**environment, "GATHERND_PORT": "9"}
        assert subprocess.run(
            final.command(*words, environment=other), stderr=subprocess.DEVNULL, check=False
        ).returncode
    after = files(final.folder)
    changed = {name for name in after.keys() | before.keys() if before.get(name) != after.get(name)}
    outside = {name for name in changed if not any(name.startswith(f"{volume[1:]}/") for volume in VOLUMES)}
    assert outside == set(), "the root file system could not be read-only"
    # The kernels that the image brings were used: none was compiled into the volume.
    seeded = {name.split("/cache/", 1)[1] for name in after if name.startswith("opt/gathernd/cache/")}
    cached = {name.split("gathernd/", 1)[1] for name in after if name.startswith("var/cache/gathernd/")}
    assert {name for name in seeded if name.endswith(".nbc")}
    assert {name for name in cached if name.endswith(".nbc")} == {name for name in seeded if name.endswith(".nbc")}

    # Another user cannot write to the volumes, and is told what is missing.
    for volume in VOLUMES:
        for path in (final.folder / volume[1:]).iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        (final.folder / volume[1:]).chmod(0o755)
    refused = replace(final, user="10002:10002").command(*entry(IMAGE), environment=final.environment)
    done = subprocess.run(refused, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert done.stderr.startswith("GATHERND_CACHE_DIR must be a folder that user 10002 can write to")
