"""`gathernd call` and `gathernd tensors` against a running server."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from email.message import Message
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from app import __version__
from gathernd import Client, errors
from gathernd_cli import status_command, tensors_command
from gathernd_cli.command_line import app
from gathernd_cli.status_command import NoAnswer
from tests.client.test_gathers import same
from tests.for_each import for_each
from tests.http.conftest import Start
from tests.http.server import Server
from tests.http.test_tls import Pair, pair

__all__ = ["pair"]

DATA = np.arange(12, dtype=np.float32).reshape(3, 4)
Run = Callable[..., Any]


@pytest.fixture
def run(run: Run) -> Run:
    """Run a command in a folder with a table and indices."""
    np.save("data.npy", DATA)
    np.save("indices.npy", np.array([[0, 1], [2, -1]]))
    np.save("columns.npy", np.array([3, 0]))
    return run


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_refusal_is_shown_with_its_place_and_its_hint(run: Run, tmp_path: Path) -> None:
    assert run("tensors", "put", "near", "data.npy").exit_code == 0
    assert run("tensors", "show", "naer").output.splitlines() == [
        "gathernd: tensor_not_found: no tensor is named 'naer'",
        "  at /name",
        "  Write 'near' in place of 'naer'.",
    ]
    np.save("tuple.npy", np.array([2, 9]))
    refused = run("call", "near", "tuple.npy").output
    assert "Use an index from -4 to 3" in refused
    assert "[2, 9] is one tuple, of 2 axes" in refused
    run("tensors", "rm", "near")
    np.save("bad.npy", np.full((12, 1), 9))
    done = run("call", "data.npy", "bad.npy", "--output", "out.npy")
    assert done.exit_code == 1
    assert all(text in done.output for text in ("index_out_of_bounds", "at /indices [1, 0]", "and 2 more"))
    assert "out.npy" not in listing(tmp_path)


def test_call_prints_or_writes_what_was_gathered(run: Run, tmp_path: Path) -> None:
    assert run("call", "data.npy", "indices.npy").output == "[ 1. 11.]\n"
    done = run("call", "data.npy", "columns.npy", "--op", "gather", "--axis", "-1", "--output", "out.npy")
    assert (done.exit_code, done.output) == (0, "")
    assert same(np.load("out.npy"), DATA[:, [3, 0]])
    assert listing(tmp_path) == ["columns.npy", "data.npy", "indices.npy", "out.npy"]
    assert (tmp_path / "out.npy").stat().st_mode == (tmp_path / "data.npy").stat().st_mode
    np.save("elements.npy", np.array([[3, 0], [1, -1]]))
    done = run("call", "data.npy", "elements.npy", "--op", "gather_elements", "--axis", "1")
    assert done.output == "[[3. 0.]\n [5. 7.]]\n"
    np.save("each.npy", np.array([[3, 9], [1, -1], [0, 0]], np.int8))
    batched = ("call", "data.npy", "each.npy", "--op", "gather", "--axis", "1", "--batch-dims", "1")
    told = run(*batched, "--dialect", "openvino-8")
    assert told.stdout == "[[3. 0.]\n [5. 7.]\n [8. 8.]]\n"
    assert told.stderr == "gathernd: 1 component of the indices was out of bounds and replaced\n"
    np.save("pair.npy", np.array([[50, 60], [70, 80]], DATA.dtype))
    added = ("--op", "scatter_elements", "--axis", "1", "--updates", "pair.npy", "--reduction", "add")
    assert run("call", "data.npy", "elements.npy", *added, "--output", "s.npy").exit_code == 0
    np.add.at(expected := DATA.copy(), ([[0, 0], [1, 1]], [[3, 0], [1, -1]]), [[50, 60], [70, 80]])
    assert same(np.load("s.npy"), expected)
    np.save("batch.npy", np.array([[0], [1], [2]]))
    assert run("call", "data.npy", "batch.npy", "--batch-dims", "1", "--dialect", "onnx-12").output == "[ 0.  5. 10.]\n"


def test_call_with_indices_out_of_bounds(run: Run) -> None:
    np.save("far.npy", np.array([1, 9, -7]))
    gather = ("call", "data.npy", "far.npy", "--op", "gather", "--axis", "1", "--output", "out.npy", "--out-of-bounds")
    for mode, columns in (("clip", [1, 3, 0]), ("wrap", [1, 1, 1])):
        assert run(*gather, mode).output == "gathernd: 2 components of the indices were out of bounds and replaced\n"
        assert same(np.load("out.npy"), DATA[:, columns])
    assert run(*gather, "fill", "--fill-value", "-1.5").exit_code == 0
    assert np.load("out.npy").tolist() == [[row, -1.5, -1.5] for row in (1.0, 5.0, 9.0)]
    assert run(*gather, "fill", "--fill-value", '"NaN"').exit_code == 0
    assert np.isnan(np.load("out.npy")[:, 1:]).all()
    assert "index_out_of_bounds" in run(*gather, "error").output
    assert run(*gather, "clip", "--output-dtype", "float16").exit_code == 0
    assert same(np.load("out.npy"), DATA[:, [1, 3, 0]].astype(np.float16))
    assert run(*gather, "clip", "--output-dtype", "int8").exit_code == 2
    assert (
        run("call", "data.npy", "columns.npy", "--op", "gather", "--axis", "1", "--out-of-bounds", "clip").stderr == ""
    )


@for_each(
    ("arguments", "code", "text"),
    [
        ("call nothing.npy indices.npy", 1, "nothing.npy"),
        ("call text.npy indices.npy", 1, "text.npy is not an npy file"),
        ("call data.npy empty.npy", 1, "empty.npy is not an npy file"),
        ("call objects.npy indices.npy", 1, "objects.npy holds Python objects"),
        ("call nobody indices.npy", 1, "nobody is neither a file nor a resident tensor"),
        ("call several.npz indices.npy", 1, "several arrays"),
        ("call data.npy indices.npy --axis 1", 2, "--axis"),
        ("call data.npy indices.npy --op gather --batch-dims 1", 2, "--batch-dims"),
        ("call data.npy data.npy --axis 1", 2, "gather or gather_elements or scatter_elements"),
        ("call data.npy indices.npy --op scatternd", 2, "needs --updates"),
        ("call data.npy indices.npy --updates data.npy", 2, "--updates and --reduction belong"),
        ("call data.npy indices.npy --op scatternd --updates data.npy", 1, "updates_shape_mismatch"),
        ("call data.npy indices.npy --out-of-bounds fill --fill-value x", 2, "is not JSON"),
        ("call data.npy indices.npy --fill-value 1", 1, "invalid_field"),
        ("call data.npy indices.npy --op scatternd --updates data.npy --out-of-bounds clip", 2, "belong to gathers"),
        ("call data.npy indices.npy --device tpu", 1, "invalid_field"),
        ("call data.npy indices.npy --url http://127.0.0.1:9", 1, "connection refused; is it running?"),
        ("call data.npy indices.npy --output no/such/folder.npy", 1, "No such file"),
        ("call tensor:nobody indices.npy", 1, "tensor_not_found"),
        ("tensors get nobody out.npy", 1, "tensor_not_found"),
        ("tensors rm nobody", 1, "tensor_not_found"),
        ("tensors show nobody", 1, "tensor_not_found"),
        ("tensors scatter nobody indices.npy data.npy", 1, "tensor_not_found"),
        ("status --url http://127.0.0.1:9", 1, "is it running?"),
        ("status --url ftp://127.0.0.1", 1, "http://"),
        ("tensors put gather data.npy", 1, "invalid_field"),
        ("tensors put ../x data.npy", 1, "name"),
    ],
)
def test_a_command_that_fails_says_why(run: Run, arguments: str, code: int, text: str) -> None:
    Path("text.npy").write_text("no array")
    Path("empty.npy").touch()
    np.save("objects.npy", np.array([{}, None], object), allow_pickle=True)
    np.savez("several.npz", DATA, DATA)
    done = run(*arguments.split())
    assert done.exit_code == code, done.output
    assert text in done.output
    assert "Traceback" not in done.output


def test_tensors_come_and_go(run: Run, service: Client) -> None:
    etag = run("tensors", "put", "table", "data.npy", "--new").output.strip()
    assert etag == service.metadata("table").etag
    assert run("tensors", "put", "table", "data.npy", "--new").exit_code == 1
    replaced = run("tensors", "put", "table", "data.npy").output.strip()
    assert replaced == service.metadata("table").etag != etag
    assert run("tensors", "put", "table", "data.npy", "--if-match", '"other"').exit_code == 1
    etag = run("tensors", "put", "table", "data.npy", "--prefault", "--lock").output.strip()
    info = service.metadata("table")
    assert (info.prefault, info.lock) == (True, True)
    assert run("tensors", "ls").output == f"table\tfloat32\t[3,4]\t48\t{info.modified}\t{etag}\t{info.version}\n"
    for name in ("tensor:table", "table"):
        assert run("call", name, "indices.npy").output == "[ 1. 11.]\n"
    np.save("table", DATA + 100)
    Path("table.npy").rename("table")
    assert run("call", "table", "indices.npy").output == "[101. 111.]\n", "a file goes before a tensor of its name"
    assert run("call", "tensor:table", "indices.npy").output == "[ 1. 11.]\n"
    shown = dict(line.split("\t") for line in run("tensors", "show", "table").output.splitlines())
    plain = ("name", "dtype", "bytes", "etag", "sha256", "created", "modified")
    said = {name: str(getattr(info, name)) for name in plain}
    versions = {"version": str(info.version), "versions": str(info.version)}
    assert shown == said | versions | {"shape": "[3,4]", "prefault": "true", "lock": "true"}
    assert run("tensors", "get", "table", "back.npy").exit_code == 0
    assert same(np.load("back.npy"), DATA)
    assert run("tensors", "rm", "table", "--if-match", '"other"').exit_code == 1
    assert run("tensors", "rm", "table").exit_code == 0
    assert run("tensors", "ls").output == ""


def test_a_safetensors_file_is_uploaded(run: Run, service: Client) -> None:
    save_file({"one": DATA}, "one.safetensors")
    save_file({"one": DATA, "other": DATA + 1}, "two.safetensors")
    assert run("tensors", "put", "from-file", "one.safetensors").exit_code == 0
    assert same(service.get("from-file"), DATA)
    assert run("tensors", "put", "from-file", "two.safetensors", "--tensor", "other").exit_code == 0
    assert same(service.get("from-file"), DATA + 1)
    done = run("tensors", "put", "from-file", "two.safetensors")
    assert done.exit_code == 1
    assert "has the tensors one, other" in done.output
    service.delete("from-file")


def test_a_scatter_changes_what_its_files_say(run: Run, service: Client) -> None:
    service.put("changing", DATA)
    np.save("rows.npy", np.array([[0], [2], [0]]))
    np.save("updates.npy", np.ones((3, 4), np.float32))
    scatter = ("tensors", "scatter", "changing", "rows.npy", "updates.npy", "--reduction", "add")
    etag = run(*scatter, "--idempotency-key", "once").output.strip()
    assert etag == service.metadata("changing").etag
    assert run(*scatter, "--idempotency-key", "once").output.strip() == etag
    changed = DATA + np.array([[2], [0], [1]], np.float32)
    assert same(service.get("changing"), changed)
    assert run(*scatter, "--if-match", '"other"').exit_code == 1
    assert run("tensors", "scatter", "changing", "rows.npy", "updates.npy").exit_code == 0
    changed[[0, 2]] = 1
    assert same(service.get("changing"), changed)
    service.delete("changing")


def test_status_says_what_the_service_has_and_does(run: Run, server: Server, service: Client) -> None:
    service.put("counted", DATA)

    def status() -> dict[str, str]:
        done = run("status", "--url", f"{server.url}/")
        assert done.exit_code == 0, done.output
        return dict(line.split("\t") for line in done.output.splitlines())

    before = status()
    assert (before["url"], before["ready"], before["version"]) == (server.url, "yes", __version__)
    assert (before["device"], before["processes"], before["requests_in_flight"]) == ("cpu", "1", "1")
    service.gathernd("counted", np.array([[0, 1]]))
    after = status()
    assert int(after["requests"]) - int(before["requests"]) >= 2
    tensors = list(service.tensors())
    assert (int(after["tensors"]), int(after["tensor_bytes"])) >= (len(tensors), sum(info.bytes for info in tensors))
    assert 0 <= int(after["memory_used"]) <= int(after["memory_budget"])
    service.delete("counted")


def test_status_of_a_service_that_is_not_ready_fails_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(url: str, path: str, *_: object) -> bytes:
        if path == "/readyz":
            error = HTTPError(url, 503, "", Message(), BytesIO(b'{"code": "not_ready", "detail": "kernels"}'))
            raise NoAnswer(status_command._refusal(error)) from error
        metrics = (
            'gathernd_requests_total{method="GET",path="/",status="503"} 2.0\n'
            'gathernd_requests_total{method="GET",path="/readyz",status="503"} 30.0\n'
            'gathernd_requests_total{method="GET",path="/v2/health/ready",status="503"} 30.0\n'
            'gathernd_requests_total{method="GET",path="/v2/models/{name}/ready",status="503"} 30.0\n'
            'gathernd_requests_total{method="GET",path="/v2/models/{name}/ready",status="500"} 1.0\n'
        )
        return {"/v2": b'{"version": "9"}', "/metrics": metrics.encode()}[path]

    monkeypatch.setattr(status_command, "_get", answer)
    done = CliRunner().invoke(app, ["status", "--url", "http://127.0.0.1:1"])
    assert done.exit_code == 1
    assert "ready\tno: not_ready: kernels\nversion\t9\n" in done.output
    assert "requests_failed\t3\n" in done.output
    assert "requests\t93\n" in done.output


def test_commands_trust_the_authorities_that_they_are_told(start: Start, pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").touch()
    calls = (("status",), ("tensors", "ls"))
    with start(*pair.flags(), tls=pair.trusting()) as server:
        url = {"GATHERND_URL": server.url}
        for call in calls:
            refused = CliRunner().invoke(app, [*call], env=url)
            assert refused.exit_code == 1
            assert "its certificate is not trusted: self" in refused.output
            assert "--ca" in refused.output
            assert "running" not in refused.output
            assert CliRunner().invoke(app, [*call, "--ca", str(pair.certificate)], env=url).exit_code == 0
            named = {**url, "GATHERND_CA": str(pair.certificate)}
            assert CliRunner().invoke(app, [*call], env=named).exit_code == 0
        missing = CliRunner().invoke(app, ["status", "--ca", "missing.pem"], env=url)
        assert missing.exit_code == 2
        assert "missing.pem" in missing.output
        for call in calls:
            empty = CliRunner().invoke(app, [*call, "--ca", str(tmp_path / "empty.pem")], env=url)
            assert (empty.exit_code, "no CA certificate" in empty.output) == (1, True)


def test_pieces_of_two_contents_are_never_put_together(
    run: Run, service: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tensors_command, "CHUNK_BYTES", 1000)
    tables = [np.full((100, 7), value) for value in (1.0, 2.0)]
    service.put("moving", tables[0])
    get, calls = Client.get, []

    def replaced_meanwhile(self: Client, name: str, **options: Any) -> Any:
        calls.append(options["rows"])
        if len(calls) == 3:
            service.put("moving", tables[1])
        return get(self, name, **options)

    monkeypatch.setattr(Client, "get", replaced_meanwhile)
    assert run("tensors", "get", "moving", "back.npy").exit_code == 0
    assert same(np.load("back.npy"), tables[1])
    assert calls.count((0, 17)) == 2

    def always_replaced(self: Client, name: str, **options: Any) -> Any:
        raise errors.PreconditionFailed(412, {"code": "precondition_failed", "detail": "changed"})

    monkeypatch.setattr(Client, "get", always_replaced)
    assert run("tensors", "get", "moving", "never.npy").exit_code == 1
    assert "never.npy" not in "".join(listing(tmp_path))
    monkeypatch.undo()
    service.delete("moving")


def test_a_signal_leaves_no_part_of_a_download(tmp_path: Path) -> None:
    program = """
import sys, time
from pathlib import Path
from gathernd_cli.npy_files import replace_atomically
with replace_atomically(Path(sys.argv[1])) as one, replace_atomically(Path(sys.argv[2])) as other:
    print(flush=True)
    time.sleep(60)
"""
    files = [str(tmp_path / name) for name in ("a.npy", "b.npy")]
    with subprocess.Popen([sys.executable, "-c", program, *files], stdout=subprocess.PIPE) as command:
        assert command.stdout is not None
        command.stdout.readline()
        assert len(list(tmp_path.iterdir())) == 2
        command.terminate()
        assert command.wait(60) == -signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
