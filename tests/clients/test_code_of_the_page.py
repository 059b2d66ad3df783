"""The programs that the page shows in TypeScript, Java and Go are compiled strictly, run, and get the answer.

Go is Debian's golang-go. Its standard library is all that the programs need, so nothing is downloaded.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import run, shown_programs, tool
from tests.clients.test_typescript import OPTIONS
from tests.http.forms import int64, tensor
from tests.http.server import ROOT, Server
from tests.markdown_blocks import check_output
from tests.needs import skip_without

pytestmark = pytest.mark.slow
WEB = ROOT / "app" / "api" / "web"
_PRINT = """
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
const [folder, base, operator, key] = process.argv.slice(2);
const body = readFileSync("body.json", "utf8");
globalThis.document = { baseURI: base };
const { PROGRAMS } = await import(pathToFileURL(folder + "/code_in_languages.js"));
const { useKey } = await import(pathToFileURL(folder + "/service.js"));
useKey(key);
const programs = PROGRAMS.map(([label, write]) => [label.toLowerCase(), write(operator, body)]);
console.log(JSON.stringify(Object.fromEntries(programs)));
"""
AWKWARD = {
    "data": tensor("string", [4], ["it's", '"quoted" \\u0022 \\', "Größe 😀\u2028", "`${x}` %d\t\u007f"]),
    "indices": int64([4, 1], [3, 2, 1, 0]),
}
EXACT = {"data": int64([2], [2**63 - 1, 2**53 + 1]), "indices": int64([2, 1], [0, 1])}
LONG = {"data": tensor("string", [1], ["ö" * 70_000]), "indices": int64([1, 1], [0])}
BODIES = (AWKWARD, EXACT, LONG)


def written(folder: Path, server: Server, body: Any, key: str = "") -> dict[str, str]:
    """The programs that the page shows for a gather, by language."""
    skip_without(node="nodejs")
    for name in ("code_in_languages.js", "service.js"):
        (folder / name).write_bytes((WEB / name).read_bytes())
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "print.js").write_text(_PRINT)
    (folder / "body.json").write_text(json.dumps(body, ensure_ascii=False))
    shown: dict[str, str] = json.loads(run(["node", "print.js", folder, f"{server.url}/", "gathernd", key], folder))
    return shown


def run_typescript(program: str, folder: Path) -> str:
    (folder / "gather.ts").write_text(program)
    (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": OPTIONS, "files": ["gather.ts"]}))
    assert run([tool("npm/node_modules/.bin/tsc")], folder) == ""
    return run(["node", "built/gather.js"], folder)


def run_java(program: str, folder: Path) -> str:
    (folder / "Gather.java").write_text(program)
    assert run(["javac", "-Xlint:all", "-Werror", "-d", "classes", "Gather.java"], folder) == ""
    return run(["java", "-Dstdout.encoding=UTF-8", "-Dfile.encoding=UTF-8", "-cp", "classes", "Gather"], folder)


def run_go(program: str, folder: Path) -> str:
    (folder / "main.go").write_text(program)
    (folder / "go.mod").write_text("module gather\n")
    go = ["env", "GOPROXY=off", "GOFLAGS=-mod=mod", f"GOCACHE={folder.parent / 'go-cache'}", "go"]
    run([*go, "vet", "."], folder)
    run([*go, "build", "-o", "gather", "."], folder)
    return run([folder / "gather"], folder)


RUNNERS: dict[str, tuple[Callable[[str, Path], str], dict[str, str]]] = {
    "typescript": (run_typescript, {"npm": "npm"}),
    "java": (run_java, {"javac": "default-jdk-headless"}),
    "go": (run_go, {"go": "golang-go"}),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("language", RUNNERS)
def test_a_program_of_the_page_gets_the_answer(language: str, server: Server, tmp_path: Path) -> None:
    runner, needs = RUNNERS[language]
    skip_without(node="nodejs", **needs)
    client = server.shared_client()
    for number, body in enumerate(BODIES):
        folder = tmp_path / str(number)
        folder.mkdir()
        printed = runner(written(folder, server, body)[language], folder)
        assert json.loads(printed) == client.post("/gathernd", json=body).json()
    program = written(tmp_path, server, EXACT, "a-secret-key")[language]
    assert "a-secret-key" not in program
    assert "GATHERND_API_KEY" in program


def test_programs_of_the_documents_in_go_do_what_they_show(server: Server, tmp_path: Path) -> None:
    skip_without(go="golang-go")
    for program, output in shown_programs("go", server):
        check_output(output, run_go(program, tmp_path))
