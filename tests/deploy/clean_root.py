"""Builds the image without a container engine: each step of the Dockerfile in a root file system of its own.

debootstrap makes the file system of the Debian release that the base image is named after; its Python stands in for
the base image's. Needs root.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.deploy.dockerfile import Stage
from tests.http.server import ROOT

# What a build needs of the machine that it runs on to reach a package index.
HANDED_IN = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
_PASSED_ON = re.compile(r"PIP_.*|.*_proxy|.*_PROXY")


def release_of(image: str) -> tuple[str, str]:
    """Python's version and Debian's release of a base image's name."""
    found = re.fullmatch(r"python:(3\.\d+)[.\d]*-slim-([a-z]+)(@.*)?", image)
    assert found is not None, image
    return found[1], found[2]


def mirror() -> str:
    """Where this machine fetches Debian packages from."""
    named = re.compile(r"(?:URIs: *|^deb .*?)(https?://\S+/debian)/?\s", re.MULTILINE)
    for path in (Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")):
        if path.is_file() and (found := named.search(path.read_text())):
            return found[1]
    raise AssertionError("this machine's sources of packages name no mirror of Debian")


def bootstrap(folder: Path, image: str) -> None:
    """Make the file system that stands in for the base image."""
    python, release = release_of(image)
    packages = "python3,python3-venv,ca-certificates"
    command = ["debootstrap", "--variant=minbase", f"--include={packages}", release, str(folder), mirror()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    (folder / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    made = subprocess.run(["chroot", folder, "python", "--version"], capture_output=True, text=True, check=True).stdout
    assert made.startswith(f"Python {python}."), made


@dataclass
class Root:
    """A root file system in which the steps of a stage are carried out."""

    folder: Path
    environment: dict[str, str] = field(
        default_factory=lambda: {"PATH": "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin"}
    )
    working: str = "/"
    user: str = "0:0"

    def inside(self, path: str) -> Path:
        """Where a path of the root, absolute or from the working folder, lies on this machine."""
        return self.folder / os.path.join(self.working, path).lstrip("/")  # noqa: PTH118  (an absolute one replaces)

    def command(self, *words: str, environment: Mapping[str, str]) -> list[str]:
        """The command that runs `words` in here, as the stage's user; /proc is there while it runs."""
        variables = [f"{name}={value}" for name, value in environment.items()]
        run = ["chroot", f"--userspec={self.user}", str(self.folder), "env", "-i", *variables]
        run += ["sh", "-c", f'cd {shlex.quote(self.working)} && exec "$@"', "sh", *words]
        mount = f"mount -t proc proc {shlex.quote(str(self.folder / 'proc'))} && exec {shlex.join(run)}"
        return ["unshare", "--mount", "--fork", "--kill-child=TERM", "sh", "-c", mount]

    def carry_out(self, stage: Stage, others: Mapping[str, Root]) -> None:
        """Every step of the stage; `others` are the roots of the stages that it copies from."""
        for word, text in stage.steps:
            if word in {"ENV", "ARG"}:
                for pair in shlex.split(text):
                    name, _, value = pair.partition("=")
                    self.environment[name] = re.sub(r"\$(\w+)", lambda found: self.environment[found[1]], value)
            elif word == "WORKDIR":
                self.working = text
                self.inside(".").mkdir(parents=True, exist_ok=True)
            elif word == "USER":
                self.user = text
            elif word == "COPY":
                self._copy(shlex.split(text), others)
            elif word == "RUN":
                self._run(text)
            else:
                assert word in {"VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}, word

    def _copy(self, words: list[str], others: Mapping[str, Root]) -> None:
        source = ROOT
        if words[0].startswith("--from="):
            source = others[words.pop(0).removeprefix("--from=")].folder
        *names, target = words
        for name in names:
            path = source / name.lstrip("/")
            into = self.inside(target)
            if path.is_dir():
                ignore = shutil.ignore_patterns("__pycache__") if source == ROOT else None
                shutil.copytree(path, into, symlinks=True, ignore=ignore, dirs_exist_ok=True)
            else:
                into = into / path.name if target.endswith("/") else into
                into.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, into)

    def _run(self, text: str) -> None:
        assert self.user == "0:0", f"a step that needs rights after USER: {text}"
        lent = [Path(path) for path in HANDED_IN if Path(path).exists()]
        for path in lent:
            inside = self.folder / str(path).lstrip("/")
            inside.parent.mkdir(parents=True, exist_ok=True)
            inside.unlink(missing_ok=True)
            shutil.copy(path.resolve(), inside)
        passed = {name: value for name, value in os.environ.items() if _PASSED_ON.fullmatch(name)}
        command = self.command("sh", "-c", text, environment={**passed, **self.environment})
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
        assert done.returncode == 0, f"RUN {text}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def entry(stage: Stage) -> list[str]:
    """What a container of the stage runs."""
    words: list[str] = []
    for name in ("ENTRYPOINT", "CMD"):
        words += json.loads(stage.arguments(name)[-1])
    return words
