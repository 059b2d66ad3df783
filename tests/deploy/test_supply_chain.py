"""What operators learn of the packages that they run: locks, known vulnerabilities, bill of materials."""

from __future__ import annotations

import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

import app
from deploy import audit, sbom
from tests.for_each import for_each
from tests.http.server import ROOT, run_program

_ENTRY = re.compile(
    r"^([a-z0-9-]+)(?:\[[^]]*\])?==(\S+)(?: ; (.+?))? \\\n((?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE
)


def entries(lock: Path) -> dict[tuple[str, str], tuple[str | None, set[str]]]:
    """Name and version of each package of a lock, with its marker and hashes."""
    return {
        (found[1], found[2]): (found[3], set(re.findall(r"sha256:([0-9a-f]{64})", found[4])))
        for found in _ENTRY.finditer(lock.read_text())
    }


def test_gpu_lock_is_the_runtime_lock_and_what_the_gpu_needs() -> None:
    runtime, gpu = entries(ROOT / "requirements/runtime.lock"), entries(ROOT / "requirements/gpu.lock")
    assert runtime.items() <= gpu.items()
    further = {name for name, _ in gpu.keys() - runtime.keys()}
    assert {"cupy-cuda12x", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime-cu12"} <= further
    assert all(re.match(r"cupy-|cuda-|nvidia-", name) for name in further), further


@dataclass
class Advisories:
    """An advisory service on loopback that knows of one bug, and what it was asked."""

    port: int = 0
    asked: list[tuple[str, str]] = field(default_factory=list)
    status: int = 200
    bug_in: str = ""

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        name = question["package"]["name"]
        self.asked.append((name, question["version"]))
        if name != self.bug_in:
            return {}
        package = {"name": name, "ecosystem": "PyPI"}
        ranges = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1000.0"}]}]
        return {"vulns": [{"id": "GHSA-test", "summary": "s", "affected": [{"package": package, "ranges": ranges}]}]}


@pytest.fixture
def advisories() -> Iterator[Advisories]:
    service = Advisories()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            question = json.loads(self.rfile.read(int(self.headers["content-length"])))
            body = json.dumps(service.answer(question)).encode()
            self.send_response(service.status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        service.port = server.server_port
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield service
        server.shutdown()


def run_audit(port: int, *locks: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deploy.audit", *locks, "--", "--osv-url", f"http://127.0.0.1:{port}/v1/query"]
    environ = {**os.environ, "NO_PROXY": "127.0.0.1"}
    return run_program(command, variables=environ)


def test_audit_asks_about_every_package_of_the_lock_by_its_exact_version(advisories: Advisories) -> None:
    done = run_audit(advisories.port, "requirements/runtime.lock")
    assert done.returncode == 0, done.stderr
    # The lock holds for every platform; only what this one installs can be installed here.
    locked = entries(ROOT / "requirements/runtime.lock")
    elsewhere = {package for package, (marker, _) in locked.items() if marker}
    asked = set(advisories.asked)
    assert locked.keys() - elsewhere <= asked <= locked.keys()
    assert done.stdout == f"{len(asked)} packages audited, 0 known vulnerabilities\n"


def test_audit_fails_on_a_known_vulnerability_and_names_it(advisories: Advisories) -> None:
    advisories.bug_in = "uvicorn"
    done = run_audit(advisories.port, "requirements/runtime.lock")
    version = next(version for name, version in entries(ROOT / "requirements/runtime.lock") if name == "uvicorn")
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[0] == f"uvicorn {version}: GHSA-test, fixed in 1000.0"


@pytest.mark.parametrize(
    "reachable", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["unreachable", "out of order"]
)
def test_audit_that_could_not_be_made_says_so_and_is_no_clean_bill(advisories: Advisories, reachable: bool) -> None:
    advisories.status = 500
    port = advisories.port if reachable else 9  # the discard port: nothing listens
    done = run_audit(port, "requirements/build.lock")
    assert done.returncode == 2, done.stdout
    assert done.stderr.startswith("NOT AUDITED")
    assert done.stdout == ""


def test_audit_of_a_lock_without_hashes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.lock").write_text("uvicorn==0.40.0\n")
    with pytest.raises(audit.AuditFailed):
        audit.judged(str(tmp_path / "bad.lock"), ["--dry-run"])


def test_bill_of_materials_lists_every_locked_package_with_its_hashes() -> None:
    lock = "requirements/gpu.lock"
    command = [sys.executable, "-m", "deploy.sbom", lock]
    text = run_program(command).stdout
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    listed = {
        (part["name"], part["version"]): {found["content"] for found in part["externalReferences"][0]["hashes"]}
        for part in bill["components"]
    }
    assert listed == {package: hashes for package, (_, hashes) in entries(ROOT / lock).items()}
    assert all(part["purl"] == f"pkg:pypi/{part['name']}@{part['version']}" for part in bill["components"])
    root = bill["metadata"]["component"]
    assert (root["name"], root["version"]) == ("gathernd-server", app.__version__)
    (tree,) = (found for found in bill["dependencies"] if found["ref"] == root["bom-ref"])
    assert set(tree["dependsOn"]) == {part["bom-ref"] for part in bill["components"]}


@for_each("line", ["uvicorn>=0.40", "uvicorn==0.40.0", "", "uvicorn @@"])
def test_bill_of_materials_of_what_is_no_lock_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "bad.lock").write_text(f"{line}\n")
    with pytest.raises(sbom.BadLock):
        sbom.bill([tmp_path / "bad.lock"])
