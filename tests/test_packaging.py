"""What an installation holds: the tree `app`, the client under its own name, and one version everywhere."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import app

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = [
    "requirements.lock", "requirements-dev.lock", "requirements-build.lock", "requirements-clients.lock",
    "requirements-otel.lock",
    "tests/client/mdf/requirements.lock", "tests/oip/kserve/requirements.lock",
]  # fmt: skip
COMPILER_LOCK = "tests/kernels/nvrtc/requirements.lock"
"""Of the test that compiles the GPU kernel: the one lock for development that has something of CUDA."""


def installed_name(folder: Path) -> str:
    """The package that a folder under app/ is installed as."""
    parts = folder.relative_to(ROOT).parts
    return ".".join(("gathernd", *parts[2:]) if parts[:2] == ("app", "client") else parts)


def test_every_package_is_installed_and_the_client_under_its_own_name() -> None:
    folders = {path.parent for path in (ROOT / "app").rglob("__init__.py")}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == {installed_name(folder) for folder in folders}


def test_version_is_one_in_package_installation_and_changelog() -> None:
    newest = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == app.__version__ == metadata.version("gathernd")


def test_image_of_the_compose_file_carries_the_version() -> None:
    assert f"image: gathernd:{app.__version__}\n" in (ROOT / "docker-compose.yml").read_text()


def test_command_is_the_cli() -> None:
    (script,) = metadata.entry_points(group="console_scripts", name="gathernd")
    assert script.value == "app.cli:main"


def test_client_needs_nothing_of_the_service() -> None:
    program = "import sys; from gathernd import GatherND; print([m for m in sys.modules if m.split('.')[0] == 'app'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.timeout(120)
def test_wheel_holds_every_module_and_every_static_file(tmp_path: Path) -> None:
    for name in ("app", "pyproject.toml", "LICENSE", "README.md"):
        if (ROOT / name).exists():  # built aside, for setuptools writes into the folder that it builds
            subprocess.run(["cp", "-r", str(ROOT / name), str(tmp_path)], check=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*command, "-w", str(tmp_path / "dist"), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = set()
    for path in (ROOT / "app").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith("."):
            folder = installed_name(path.parent).replace(".", "/")
            expected.add(f"{folder}/{path.name}")
    assert held == expected


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


def test_locks_hold_every_declared_requirement() -> None:
    def names(requirements: list[str]) -> set[str]:
        found = (re.match(r"[A-Za-z0-9_.-]+", text) for text in requirements)
        return {re.sub(r"[-_.]+", "-", match[0]).lower() for match in found if match}

    for lock, declared in (
        ("requirements.lock", PROJECT["project"]["dependencies"]),
        ("requirements-dev.lock", PROJECT["project"]["optional-dependencies"]["dev"]),
        ("requirements-otel.lock", PROJECT["project"]["optional-dependencies"]["otel"]),
        ("requirements-build.lock", PROJECT["build-system"]["requires"]),
    ):
        pinned = set(re.findall(r"^([a-z0-9-]+)[=\[]", (ROOT / lock).read_text(), re.MULTILINE))
        assert names(declared) <= pinned


def test_make_lock_writes_every_lock() -> None:
    locks = {str(path.relative_to(ROOT)) for path in ROOT.rglob("requirements*.lock") if ".venv" not in str(path)}
    written = re.findall(r"^\t\$\(COMPILE\) .*?-o (\S+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert sorted(written) == sorted(locks)
    assert locks >= set(LOCKS)


@pytest.mark.parametrize("lock", LOCKS)
def test_no_lock_drags_in_a_framework_or_cuda(lock: str) -> None:
    pinned = re.findall(r"^([a-z0-9-]+)==", (ROOT / lock).read_text(), re.MULTILINE)
    assert [name for name in pinned if re.match(r"torch|tensorflow|jax|nvidia|cuda|cupy", name)] == []
