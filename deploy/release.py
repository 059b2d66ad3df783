"""`make release`: complete dist/ and check what is in it.

Beside the distributions come the image's build context, the bills of materials and the checksums. The check downloads
the locked packages once into build/wheelhouse, with hashes. It installs from there and from dist/, without an index,
into an environment that has nothing else, and has the service answer a gather. Exit codes: 0 the release is good, 1 it
is not.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

from app import __version__

LOCK = Path("requirements/runtime.lock")
DISTRIBUTIONS = ("gathernd", "gathernd_server")
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet")
_ONE_GATHER = """
import sys
from gathernd import Client
with Client(sys.argv[1]) as service:
    assert service.ready(wait=300)
    print(service.gather([0.5, 1.5, 2.5], [2, 0]).tolist())
"""


class BadRelease(Exception):
    """What was built is not what is to be released; the text says why."""


def run(*words: str | Path, env: Mapping[str, str] | None = None) -> str:
    """Run a command to a good end and return what it prints. Raises BadRelease."""
    command = [str(word) for word in words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise BadRelease(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def image_sources() -> list[str]:
    """The files and folders of the checkout that the image is built from, with its recipe."""
    lines = Path(".dockerignore").read_text().splitlines()
    return ["Dockerfile", ".dockerignore", *(line[1:].rstrip("/") for line in lines if line.startswith("!"))]


def write_image_context(folder: Path) -> None:
    """Write what `docker build - < FILE` builds the image from, as committed."""
    target = folder / f"gathernd-image-{__version__}.tar.gz"
    run("git", "archive", "--format=tar.gz", f"--output={target}", "HEAD", "--", *image_sources())


def write_bills(folder: Path) -> None:
    """Write a bill of materials for the image without and with CUDA."""
    for lock in ("runtime", "gpu"):
        bill = run(sys.executable, "-m", "deploy.sbom", f"requirements/{lock}.lock")
        (folder / f"sbom-{lock}.json").write_text(bill)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_checksums(folder: Path) -> None:
    files = sorted(path for path in folder.iterdir() if path.name != "SHA256SUMS")
    (folder / "SHA256SUMS").write_text("".join(f"{digest(path)}  {path.name}\n" for path in files))


def write_lock(folder: Path, target: Path) -> None:
    """Write the runtime lock with the wheels of `folder`, each by its hash."""
    lines = [LOCK.read_text()]
    for name in DISTRIBUTIONS:
        (wheel,) = folder.glob(f"{name}-{__version__}-*.whl")
        lines.append(f"{name.replace('_', '-')}=={__version__} --hash=sha256:{digest(wheel)}\n")
    target.write_text("".join(lines))


def install(folder: Path, environment: Path) -> Path:
    """Make an environment with the release and the locked packages. Returns the folder of its commands."""
    wheelhouse = Path("build/wheelhouse")
    run(*_PIP, "download", "--require-hashes", "--only-binary=:all:", "-d", wheelhouse, "-r", LOCK)
    venv.create(environment, with_pip=False)
    lock = environment / "release.lock"
    write_lock(folder, lock)
    offline = ("--no-index", f"--find-links={wheelhouse}", f"--find-links={folder}", "--only-binary=:all:")
    run(*_PIP, "--python", environment / "bin/python", "install", "--require-hashes", *offline, "-r", lock)
    return environment / "bin"


def serve_once(commands: Path, scratch: Path) -> None:
    """Start the installed service, gather from it with the installed client, and stop it. Raises BadRelease."""
    said = run(commands / "gathernd", "--version").strip()
    if not said.endswith(__version__):
        raise BadRelease(f"gathernd --version says {said!r} in place of {__version__}")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    own = {f"GATHERND_{name}_DIR": str(scratch / name.lower()) for name in ("STORE", "CACHE")}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GATHERND_", "PYTHON"))}
    run(commands / "gathernd", "warm", env=kept | own)
    log = scratch / "service.log"
    with log.open("w") as lines:
        command = [str(commands / "gathernd"), "serve", "--port", port]
        service = subprocess.Popen(command, env=kept | own, stderr=lines, cwd=scratch)  # noqa: S603
        try:
            found = run(commands / "python", "-I", "-c", _ONE_GATHER, f"http://127.0.0.1:{port}").strip()
        finally:
            service.send_signal(signal.SIGTERM)
            ended = service.wait(120)
    if (found, ended) != ("[2.5, 0.5]", 0):
        raise BadRelease(f"the service answered {found} and ended with {ended}:\n{log.read_text()}")


def main(arguments: Sequence[str]) -> int:
    """`python -m deploy.release DIST`; returns the exit code."""
    (folder,) = map(Path, arguments)
    try:
        if changed := run("git", "status", "--porcelain").strip():
            raise BadRelease(f"commit these changes first, since the image's context has what is committed:\n{changed}")
        write_image_context(folder)
        write_bills(folder)
        write_checksums(folder)
        with tempfile.TemporaryDirectory() as scratch:
            commands = install(folder, Path(scratch) / "environment")
            serve_once(commands, Path(scratch))
    except BadRelease as error:
        sys.stderr.write(f"no release: {error}\n")
        return 1
    sys.stdout.write((folder / "SHA256SUMS").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
