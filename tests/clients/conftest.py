"""What the generated clients share: the file that they are generated from, the tools, a server, what they must get.

A program per language (tests/clients/programs), written as users would write it, makes the same calls and prints what
it got as JSON; `expected` is what all of them must print.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.http.conftest import start
from tests.http.server import ROOT, Server
from tests.markdown_blocks import Block, blocks, documents
from tests.needs import in_environment

__all__ = ["start"]

OPENAPI = ROOT / "openapi" / "openapi.json"
TOOLS = ROOT / ".venv-clients"
PROGRAMS = Path(__file__).with_name("programs")


def tool(name: str) -> Path:
    """A file of the environment that `make clients` makes, and `make test-all` before the tests."""
    return in_environment(f"{TOOLS.name}/{name}", "clients")


def run(command: Sequence[str | Path], folder: Path) -> str:
    """Run to a good end; what it wrote, to both outputs."""
    environment = os.environ | {"PATH": f"{TOOLS / 'bin'}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=240,
        check=False,
    )
    text = done.stdout.decode()
    assert done.returncode == 0, text
    return text


def got(printed: str) -> dict[str, Any]:
    """What a program printed. A float16 may be printed with any digits that are read as the same float16."""
    answers: dict[str, Any] = json.loads(printed)
    values = answers["float16"]["values"]
    answers["float16"]["values"] = [item if isinstance(item, str) else float(np.float16(item)) for item in values]
    return answers


def shown_programs(language: str, server: Server) -> list[tuple[str, Block | None]]:
    """The programs of the documents in a language, with this server's address, and what each is said to print."""
    found = [block for document in documents() for block in blocks(document) if block.language == language]
    assert found, f"no document has a program in {language}"
    return [(block.code.replace("http://127.0.0.1:8080", server.url), block.output) for block in found]


@pytest.fixture(scope="session")
def server(start: Any) -> Iterator[Server]:
    """A server of the clients' own."""
    with start() as running:
        yield running


@pytest.fixture(scope="session")
def expected(server: Server) -> dict[str, Any]:
    """What each program must print. The resident tensor that it looks up is uploaded here."""
    rows = bytes.fromhex("0000803f 00000040 00004040 00008040".replace(" ", ""))
    query = {"dtype": "float32", "shape": "2,2"}
    content_type = {"content-type": "application/octet-stream"}
    answer = server.shared_client().put("/tensors/table", params=query, content=rows, headers=content_type)
    assert answer.status_code == 201, answer.text
    error = {"status": 422, "code": "index_out_of_bounds", "clause": "5", "total": 1, "axis": 0}
    return {
        "example 1": {"dtype": "float32", "shape": [2], "values": [0.0, 3.0]},
        "float16": {"dtype": "float16", "shape": [3], "values": [-0.0999755859375, 65504.0, "NaN"]},
        "int64": [str(-(2**63)), str(2**53 + 1)],
        "string": {"dtype": "string", "shape": [2], "values": ["Größe 😀", ""]},
        "batch_dims": {"dtype": "float32", "shape": [2], "values": [1.0, 2.0]},
        "resident": {"values": [3.0, 4.0], "data_etag": answer.json()["etag"]},
        "error": error
        | {"pointer": "/indices/values/2", "position": [1, 0], "value": 5, "size": 2, "allowed": [-2, 1]},
        "error on an empty axis": error
        | {"pointer": "/indices/values/0", "position": [0, 0], "value": 0, "size": 0, "allowed": None},
        "infer": {"id": "seven", "datatype": "FP32", "shape": [1, 2], "data": [2.0, 3.0]},
        "infer error": {"code": "index_out_of_bounds", "pointer": "/inputs/1/data/0", "allowed": [-2, 1]},
        "scatter": [0.0, 13.0, 2.0, 3.0],
        "gradient": {"indices": [2], "values": [2.0, 3.0]},
        "lookup": {"shape": [1, 4], "values": [3.0, 4.0, 7.0, 10.0], "data_etags": [answer.json()["etag"]] * 2},
        "lookup error": {"code": "index_out_of_bounds", "pointer": "/features/0/indices/values/1", "allowed": [0, 1]},
    }
