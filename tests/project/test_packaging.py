"""What the two distributions hold and need: `gathernd`, the client, and `gathernd-server`, the tree `app`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import app
from tests.commands import command_names

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "clients/python"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CLIENT_PROJECT = tomllib.loads((CLIENT / "pyproject.toml").read_text())
OWN = {"gathernd", "gathernd-server"}
"""Distributions that come from the checkout and are in no lock."""
LOCKS = [
    "requirements/runtime.lock", "requirements/dev.lock", "requirements/build.lock", "requirements/clients.lock",
    "requirements/docs.lock",
    "requirements/cloud.lock", "requirements/cluster.lock", "requirements/grpc.lock", "requirements/otel.lock",
    "tests/imports/moto/requirements.lock", "tests/oip/kserve/requirements.lock",
]  # fmt: skip
COMPILER_LOCK = "tests/kernels/nvrtc/requirements.lock"
"""Of the test that compiles the GPU kernel: the one lock for development that has something of CUDA."""


def files_of(folder: Path, names: Iterable[str]) -> set[str]:
    """The files below the folders `names` of `folder`, but for what Python and tools leave behind."""
    return {
        str(path.relative_to(folder))
        for name in names
        for path in (folder / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }


@pytest.mark.parametrize(
    ("folder", "project", "roots"),
    [(ROOT, PROJECT, ["app"]), (CLIENT, CLIENT_PROJECT, ["gathernd", "gathernd_cli"])],
    ids=["gathernd-server", "gathernd"],
)
def test_every_package_is_installed(folder: Path, project: dict[str, Any], roots: list[str]) -> None:
    folders = {path.parent.relative_to(folder) for root in roots for path in (folder / root).rglob("__init__.py")}
    assert set(project["tool"]["setuptools"]["packages"]) == {".".join(found.parts) for found in folders}


def test_version_is_one_in_both_distributions_the_installation_and_the_changelog() -> None:
    newest = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == app.__version__ == metadata.version("gathernd-server")
    assert newest[1] == CLIENT_PROJECT["project"]["version"] == metadata.version("gathernd")


def test_the_service_needs_the_client_of_its_own_version() -> None:
    assert f"gathernd[cli]=={app.__version__}" in PROJECT["project"]["dependencies"]


def test_the_script_is_the_clients_and_the_service_adds_its_commands() -> None:
    (script,) = metadata.entry_points(group="console_scripts", name="gathernd")
    assert script.value == "gathernd_cli:main"
    assert script.dist is not None
    assert script.dist.name == "gathernd"
    added = {entry.name: entry.value for entry in metadata.entry_points(group="gathernd.commands")}
    modules = {path.stem for path in (ROOT / "app/cli").glob("*_command.py")}
    assert added == {stem.removesuffix("_command"): f"app.cli.{stem}:app" for stem in modules}
    assert command_names() == {
        "aliases", "backward", "call", "lookup", "status", "tensors", "version", *added,
    }  # fmt: skip


@dataclass(frozen=True)
class Built:
    """The two files of a distribution: its wheel, which was built from the source distribution, and that."""

    wheel: Path
    source: Path


def copy_of_sources(folder: Path) -> Path:
    """A copy of what distributions are built from: setuptools writes into the folder that it builds."""
    copy = folder / "copy"
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    for name in ("app", "clients", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=ignore)
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, copy)
    return copy


def held_by(wheel: Path) -> set[str]:
    """The files of a wheel, but for what describes it."""
    return {held for held in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in held}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Built]:
    """Both distributions."""
    folder = tmp_path_factory.mktemp("built")
    copy = copy_of_sources(folder)
    found = {}
    for name, place in (("gathernd", copy / "clients/python"), ("gathernd_server", copy)):
        made = folder / name
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(made), str(place)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        (wheel,), (source,) = made.glob("*.whl"), made.glob("*.tar.gz")
        found[name] = Built(wheel, source)
    return found


DISTRIBUTIONS = [("gathernd", CLIENT, ["gathernd", "gathernd_cli"]), ("gathernd_server", ROOT, ["app"])]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("name", "folder", "roots"), DISTRIBUTIONS)
def test_wheel_and_source_distribution_hold_every_module_and_every_static_file(
    built: dict[str, Built], name: str, folder: Path, roots: list[str]
) -> None:
    expected = files_of(folder, roots)
    assert held_by(built[name].wheel) == expected
    top = f"{name}-{app.__version__}/"
    with tarfile.open(built[name].source) as archive:
        members = {member.name.removeprefix(top) for member in archive if member.isfile()}
    written = {"PKG-INFO", "setup.cfg"} | {held for held in members if held.startswith(f"{name}.egg-info/")}
    assert members - written == expected | {"pyproject.toml", "LICENSE", "README.md"}


def closure(requirement: str) -> set[str]:
    """The names of the distributions that `requirement` installs here, itself included."""
    wanted = Requirement(requirement)
    names: set[str] = {canonicalize_name(wanted.name)}
    for text in metadata.requires(wanted.name) or ():
        below = Requirement(text)
        extras = ["", *wanted.extras]
        if below.marker is None or any(below.marker.evaluate({"extra": extra}) for extra in extras):
            names |= closure(str(below).partition(";")[0])
    return names


class Environment:
    """A virtual environment with wheels of ours and, by links, third-party packages of the environment of the tests."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        (self.packages,) = folder.glob("lib/python3*/site-packages")

    def link(self, names: Iterable[str]) -> None:
        """Make these distributions visible."""
        for name in names:
            found = metadata.distribution(name)
            tops = {file.parts[0] for file in found.files or () if ".." not in file.parts}
            for top in tops - {"__pycache__"}:
                if not (self.packages / top).exists():
                    (self.packages / top).symlink_to(str(found.locate_file(top)))

    def install(self, wheel: Path) -> None:
        """Install a wheel as `pip install --no-deps` does."""
        command = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install", "--quiet"]
        command += ["--no-deps", "--no-index", str(wheel)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def run(self, *command: str, code: int = 0) -> str:
        """The output of a command of the environment, which must end with `code`."""
        words = [str(self.bin / command[0]), *command[1:]]
        done = subprocess.run(
            words, cwd=self.bin, env={"COLUMNS": "200"}, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def listed_commands(self) -> set[str]:
        """The commands that `gathernd --help` lists."""
        return set(re.findall(r"^│ (\w+) ", self.run("gathernd", "--help"), re.MULTILINE))


_ROUND_TRIP = """
import httpx, numpy as np
from gathernd import Client
body = {"output": {"dtype": "int64", "shape": [1], "base64": "BQAAAAAAAAA="}}
transport = httpx.MockTransport(lambda request: httpx.Response(200, json=body))
with Client("http://service", transport=transport) as service:
    print(service.gathernd(np.arange(6), [[5]]))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_distributions_work_with_what_they_declare_and_nothing_else(built: dict[str, Built], tmp_path: Path) -> None:
    clean = Environment(tmp_path)
    clean.install(built["gathernd"].wheel)
    clean.link(closure("gathernd") - OWN)
    assert clean.run("python", "-c", _ROUND_TRIP) == "[5]\n"
    assert clean.run("python", "-c", "import app", code=1).endswith("No module named 'app'\n")
    bfloat16 = "from gathernd._array_bytes import ELEMENT_TYPES, decode; decode(ELEMENT_TYPES['bfloat16'], (0,), b'')"
    assert "bfloat16 needs the package ml_dtypes" in clean.run("python", "-c", bfloat16, code=1)
    assert "pip install './clients/python[cli]'" in clean.run("gathernd", "version", code=1)

    clean.link(closure("gathernd[cli]") - OWN)
    assert clean.run("gathernd", "version") == f"{app.__version__}\n"
    assert clean.listed_commands() == {"aliases", "backward", "call", "lookup", "status", "tensors", "version"}
    assert "come with the distribution gathernd-server" in clean.run("gathernd", "serve", code=2)

    clean.install(built["gathernd_server"].wheel)
    clean.link(closure("gathernd-server") - OWN)
    assert clean.listed_commands() == command_names()
    assert clean.run("gathernd", "settings").startswith("## Address and processes\n")


@pytest.mark.parametrize("lock", [*LOCKS, COMPILER_LOCK])
def test_lock_pins_everything_with_hashes_and_names_no_host(lock: str) -> None:
    text = (ROOT / lock).read_text()
    entries = re.split(r"^(?=\S)", text, flags=re.MULTILINE)[1:]
    assert entries
    for entry in entries:
        assert re.match(
            r"[a-z0-9-]+(\[[a-z0-9,-]+\])?==\S+( ; .+)? \\\n( +--hash=sha256:[0-9a-f]{64}( \\)?\n)+\Z", entry
        ), entry


def test_locks_agree_where_they_overlap() -> None:
    runtime, dev = (set(re.findall(r"^[a-z0-9-]+==\S+", (ROOT / lock).read_text(), re.MULTILINE)) for lock in LOCKS[:2])
    assert runtime
    assert runtime <= dev
