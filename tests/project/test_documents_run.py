"""Every code block of README.md and docs/ runs as printed, in order, and prints what the document shows.

The blocks of a document share one folder, one shell and one Python session, as those of a reader who copies them one by
one. A block that does not run says why in the line above: `<!-- not run: reason -->`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gathernd import Client
from tests.block_shell import Shell
from tests.free_port import free_port
from tests.http.server import Server, serving
from tests.imports.conftest import moto
from tests.markdown_blocks import ROOT, RUNNABLE, blocks, check_output, documents
from tests.needs import skip_without

__all__ = ["moto"]

SLOW = {
    "docs/tutorial.md": "has a table of 256 MB",
    "docs/how-to/upload.md": "runs many commands",
    "docs/reference/commands.md": "runs many commands",
    "docs/how-to/keys-and-tls.md": "starts services of its own",
    "docs/how-to/publish-every-night.md": "runs a program that tests/examples runs",
    "docs/how-to/workers.md": "starts services of its own",
    "docs/how-to/backup.md": "starts services of its own",
    "docs/how-to/import.md": "starts services of its own",
    "docs/how-to/move-from-redis.md": "starts Redis",
    "docs/how-to/pandas-and-parquet.md": "reads from a server of S3",
}
"""Documents that run under `make test-all` only."""
STARTS_SERVICES = {name for name, why in SLOW.items() if why == "starts services of its own"}
"""Documents that start the service themselves, as 127.0.0.1:8080, on a free port here."""
S3_KEYS = {"AWS_ACCESS_KEY_ID": "ours", "AWS_SECRET_ACCESS_KEY": "a-secret", "AWS_REGION": "us-east-1"}
COMMANDS = {"curl": "curl", "openssl": "openssl", "redis-server": "redis-server"}
"""Commands of the documents, and the Debian packages that bring them."""
PACKAGES = {"pandas": "the group dev", "pyarrow": "the client's extra parquet", "redis": "the group dev"}
"""Packages of the documents that are not the client's own, and what installs them."""
_SHOWN_ADDRESS = "127.0.0.1:8080"


def _name(document: Path) -> str:
    return str(document.relative_to(ROOT))


def _parameters() -> Iterator[Any]:
    for document in documents():
        marks = [pytest.mark.slow, pytest.mark.timeout(600)] if _name(document) in SLOW else []
        if any(block.language in RUNNABLE and block.reason is None for block in blocks(document)):
            yield pytest.param(document, id=_name(document), marks=marks)


@pytest.fixture(scope="module")
def shared_server(warmed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(warmed, tmp_path_factory.mktemp("documents")) as server:
        yield server


@pytest.fixture
def shared(shared_server: Server) -> Iterator[Server]:
    """The server for documents that do not start one, without tensors and aliases before each of them."""
    yield shared_server
    with Client(shared_server.url) as client:
        for alias in list(client.aliases()):
            client.delete_alias(alias.alias)
        for tensor in list(client.tensors()):
            client.delete(tensor.name)


@pytest.mark.parametrize("document", list(_parameters()))
def test_blocks_do_what_the_document_shows(
    document: Path, warmed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    running = [block for block in blocks(document) if block.language in RUNNABLE and block.reason is None]
    text = "".join(block.code for block in running if block.language == "bash")
    skip_without(**{name: package for name, package in COMMANDS.items() if re.search(rf"\b{name} ", text)})
    for name, source in PACKAGES.items():
        if any(re.search(rf"^import {name}\b|\.{name}\b", block.code, re.MULTILINE) for block in running):
            pytest.importorskip(name, reason=f"needs the package {name}, of {source}")
    port = free_port() if _name(document) in STARTS_SERVICES else request.getfixturevalue("shared").port
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GATHERND_")}
    variables.pop("PYTHONWARNINGS", None)
    variables |= {
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "GATHERND_URL": f"http://127.0.0.1:{port}",
        "GATHERND_PORT": str(port),
        "GATHERND_CACHE_DIR": str(warmed),
        "GATHERND_STORE_DIR": str(tmp_path / "store"),
    }
    if any("S3FileSystem" in block.code for block in running):
        variables |= variables_of_s3(request.getfixturevalue("moto"))
        for name in set(variables) - set(os.environ):
            monkeypatch.setenv(name, variables[name])
    for example in re.findall(r"^python (\w+\.py)", text, re.MULTILINE):
        if (ROOT / "clients/python/examples" / example).exists():
            shutil.copy(ROOT / "clients/python/examples" / example, tmp_path)
    monkeypatch.setenv("GATHERND_URL", variables["GATHERND_URL"])
    monkeypatch.chdir(tmp_path)
    shell = Shell(tmp_path, variables)
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        for block in running:
            code = block.code.replace(_SHOWN_ADDRESS, f"127.0.0.1:{port}")
            place = f"{_name(document)}:{block.line}"
            try:
                printed = shell.run(code) if block.language == "bash" else _run_python(code, place, names)
                check_output(block.output, printed.replace(f"127.0.0.1:{port}", _SHOWN_ADDRESS))
            except Exception as error:
                error.add_note(f"in the block at {place}")
                raise
    finally:
        shell.close()


def variables_of_s3(moto: str) -> dict[str, str]:
    """Make the bucket of the documents; the variables with which it is found."""
    signed = {"authorization": "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request"}
    assert httpx.put(f"{moto}/features", headers=signed, trust_env=False).status_code == 200
    return {**S3_KEYS, "AWS_ENDPOINT_URL": moto}


def _run_python(code: str, place: str, names: dict[str, Any]) -> str:
    """What the block prints, in a session that has the `names` of the blocks before."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, place, "exec", dont_inherit=True), names)
    return printed.getvalue()
