"""The types that openapi-typescript generates, with openapi-fetch: no warnings, every operation, strict, and at work.

Node.js and npm are Debian packages; the npm packages and what they need stand in typescript/package-lock.json.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import OPENAPI, PROGRAMS, got, run, shown_programs, tool
from tests.http.server import Server
from tests.markdown_blocks import check_output
from tests.needs import skip_without

pytestmark = pytest.mark.slow
OPTIONS: dict[str, Any] = {
    "strict": True,
    "exactOptionalPropertyTypes": True,
    "noUncheckedIndexedAccess": True,
    "noUnusedLocals": True,
    "skipLibCheck": False,
    "noEmitOnError": True,
    "target": "es2022",
    "module": "nodenext",
    "lib": ["es2022", "dom", "dom.iterable"],
    "types": [],
    "outDir": "built",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program beside the generated types."""
    skip_without(node="nodejs", npm="npm")
    made = tmp_path_factory.mktemp("typescript")
    modules = tool("npm/node_modules")
    (made / "node_modules").symlink_to(modules)
    (made / "package.json").write_text('{"type": "module"}')
    said = run([modules / ".bin" / "openapi-typescript", OPENAPI, "--output", "schema.ts"], made)
    lines = [line for line in said.splitlines() if line.strip()]
    assert len(lines) == 2, said
    assert re.fullmatch(r"✨ openapi-typescript \S+", lines[0])
    assert re.fullmatch(r"🚀 \S+ → schema\.ts \[\S+\]", lines[1])
    shutil.copy(PROGRAMS / "round_trip.ts", made)
    return made


@pytest.fixture(scope="module")
def built(folder: Path) -> Path:
    """The program, type-checked with the types and translated."""
    files = ["round_trip.ts", "schema.ts"]
    (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": OPTIONS, "files": files}))
    assert run([folder / "node_modules" / ".bin" / "tsc"], folder) == ""
    return folder / "built" / "round_trip.js"


def test_round_trip(built: Path, server: Server, expected: dict[str, Any]) -> None:
    assert got(run(["node", built, server.url], built.parent)) == expected


def test_programs_of_the_documents_do_what_they_show(folder: Path, server: Server) -> None:
    for number, (program, output) in enumerate(shown_programs("typescript", server)):
        (folder / f"shown_{number}.ts").write_text(program)
        files = [f"shown_{number}.ts", "schema.ts"]
        (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": OPTIONS, "files": files}))
        assert run([folder / "node_modules" / ".bin" / "tsc"], folder) == ""
        check_output(output, run(["node", f"built/shown_{number}.js"], folder))
