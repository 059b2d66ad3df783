"""The systemd unit, judged by systemd itself, and against the image and the settings."""

from __future__ import annotations

import grp
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from app.security import api_keys
from app.settings import SETTING_NAMES
from tests.http.server import GATHERND, ROOT, serving
from tests.needs import skip_without

FOLDER = ROOT / "deploy/systemd"
UNIT = FOLDER / "gathernd.service"
SYSTEMD = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs the Debian package systemd")


def directives(path: Path = UNIT) -> dict[str, list[str]]:
    """The values of each directive; continued lines are not used."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", "--no-pager", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit for this environment's program, since systemd looks whether there is one."""
    path = tmp_path / UNIT.name
    path.write_text(UNIT.read_text().replace("/opt/gathernd/bin/gathernd", GATHERND))
    return path


@SYSTEMD
def test_systemd_accepts_the_unit_without_a_remark(unit: Path) -> None:
    done = analyze("verify", "--man=no", unit)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@SYSTEMD
def test_systemd_finds_the_service_well_confined(unit: Path) -> None:
    done = analyze("security", "--offline=true", "--threshold=15", unit)
    assert done.returncode == 0, done.stdout + done.stderr


@SYSTEMD
def test_systemd_accepts_the_unit_with_the_lines_for_a_gpu(unit: Path) -> None:
    folder = unit.with_name(f"{unit.name}.d")
    folder.mkdir()
    shutil.copy(FOLDER / "gpu.conf", folder)
    done = analyze("verify", "--man=no", unit)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    with (folder / "gpu.conf").open("a") as file:
        file.write("DevicesAllow=x\n")
    assert "DevicesAllow" in analyze("verify", "--man=no", unit).stderr


def shown_commands() -> list[str]:
    """The commands that the unit's comments show, in their order."""
    return [line[6:] for line in UNIT.read_text().splitlines() if line.startswith("#     ")]


def test_the_files_that_the_comments_have_root_make_can_be_made_in_that_order_and_read_by_the_service(
    tmp_path: Path,
) -> None:
    """Carried out in a folder of its own, with this process's group for the service's."""
    group = grp.getgrgid(os.getgid()).gr_name
    root = tmp_path / "root"
    for name in ("etc/systemd/system", "etc/sysusers.d"):  # there on every machine with systemd
        (root / name).mkdir(parents=True)
    done = []
    for command in shown_commands():
        if not re.match(r"install |\S+gathernd keys ", command):
            continue
        own = re.sub(r"(?<=[ =])/etc/", f"{root}/etc/", command.partition(" && ")[0]).replace(
            "-g gathernd", f"-g {group}"
        )
        own = own.replace("/opt/gathernd/bin/gathernd", GATHERND)
        ran = subprocess.run(["bash", "-euc", own], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode == 0, (command, ran.stderr)
        done.append(command)
    assert len(done) == 6
    folder = root / "etc/gathernd"
    # systemd neither chowns this folder, which is root's, nor changes one that is there: others must be let in.
    assert folder.stat().st_mode & 0o777 == int(directives()["ConfigurationDirectoryMode"][0], 8) == 0o755
    for name in ("environment", "api-keys.txt"):
        status = (folder / name).stat()
        assert (status.st_mode & 0o777, status.st_gid) == (0o640, os.getgid()), name
    assert (folder / "environment").read_text() == "GATHERND_WORKERS=2\n"
    assert len(api_keys.read(folder / "api-keys.txt")) == 1


def test_settings_exist_and_point_to_folders_that_systemd_makes() -> None:
    values = directives()
    chosen = dict(pair.split("=") for line in values["Environment"] for pair in line.split())
    assert {name for name in chosen if name.startswith("GATHERND_")} <= set(SETTING_NAMES)
    assert chosen["GATHERND_STORE_DIR"] == f"/var/lib/{values['StateDirectory'][0]}"
    assert chosen["GATHERND_CACHE_DIR"] == f"/var/cache/{values['CacheDirectory'][0]}"
    assert values["EnvironmentFile"][0].startswith(f"-/etc/{values['ConfigurationDirectory'][0]}/")
    named = set(re.findall(r"GATHERND_[A-Z_]*[A-Z]", UNIT.read_text()))
    assert named <= set(SETTING_NAMES)


def test_a_stop_is_given_the_time_that_the_default_drain_takes() -> None:
    from app.settings import Settings

    settings = Settings()
    assert float(directives()["TimeoutStopSec"][0]) >= settings.drain_delay + settings.drain_timeout + 10
    assert directives()["KillMode"] == ["mixed"]


def allowed_calls() -> set[str]:
    """The system calls that the unit's filter lets through."""

    def members(name: str) -> set[str]:
        lines = analyze("syscall-filter", name).stdout.splitlines()[1:]
        entries = {line.strip() for line in lines if line.strip() and not line.strip().startswith("#")}
        return {call for entry in entries for call in (members(entry) if entry.startswith("@") else {entry})}

    allowed: set[str] = set()
    for value in directives()["SystemCallFilter"]:
        taken = value.startswith("~")
        for name in value.removeprefix("~").split():
            calls = members(name) if name.startswith("@") else {name}
            allowed = allowed - calls if taken else allowed | calls
    return allowed


@pytest.mark.soak
def test_filter_lets_every_system_call_of_the_service_through(tmp_path: Path) -> None:
    # Not by marks, which would come before that of the soak and be judged where nothing soaks.
    skip_without(**{"systemd-analyze": "systemd", "strace": "strace", "pgrep": "procps"})
    log = tmp_path / "strace.txt"
    command = ["strace", "-f", "-qq", "-c", "-I", "2", "-o", str(log), GATHERND, "serve"]
    content = bytes(4 << 20)
    types = {"content-type": "application/octet-stream"}
    # A cache of its own: the kernels are compiled under the filter too.
    with serving(tmp_path / "cache", tmp_path, "--workers", "2", "--grpc-port", "0", command=command) as server:
        client = server.shared_client()
        for name, query in (("u", ""), ("t", "&prefault=true&lock=true")):
            path = f"/tensors/{name}?dtype=uint8&shape=1048576,4{query}"
            assert client.put(path, content=content, headers=types).status_code == 201
        indices = {"dtype": "int64", "shape": [4096, 1], "values": [0] * 4096}
        assert client.post("/gathernd", json={"data": {"tensor": "u"}, "indices": indices}).status_code == 200
        assert client.delete("/tensors/u").status_code == 204
        client.get("/metrics")
        children = subprocess.run(
            ["pgrep", "-P", str(server.process.pid)], capture_output=True, text=True, check=True
        ).stdout.split()
        for child in children:
            subprocess.run(["kill", f"-{signal.SIGTERM}", child], check=True)
        server.process.wait(60)
    made = {line.split()[-1] for line in log.read_text().splitlines()[2:-2] if line.strip()}
    assert len(made) > 40
    # As root, which the unit's service is not, SQLite gives its files to the owner of the database.
    of_root = {"fchown"} if os.geteuid() == 0 else set()
    assert made - allowed_calls() - of_root == set()
