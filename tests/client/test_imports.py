"""Imports through both clients and the command; files behind a URL that the command fetches itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from gathernd import Client, errors
from gathernd_cli.command_line import app
from tests.for_each import for_each
from tests.http.conftest import Start
from tests.http.server import Server
from tests.http.tensors import npy, save
from tests.imports.range_server import RangeServer, range_server

pytestmark = pytest.mark.long

TABLE = np.arange(300 * 64, dtype=np.float32).reshape(300, 64)


@pytest.fixture(scope="module")
def source() -> Iterator[RangeServer]:
    with range_server() as running:
        yield running


@pytest.fixture(autouse=True)
def plain(source: RangeServer) -> None:
    source.files = {"/t/a.npy": npy(TABLE), "/t/many.safetensors": save(first=TABLE, second=TABLE[:5] + 1)}
    source.cut_every, source.cuts, source.sent = None, 0, 0
    source.asked, source.respond = [], lambda handler: False


@pytest.fixture(scope="module")
def importing(start: Start, source: RangeServer) -> Iterator[Server]:
    with start("--import-from", f"{source.url}/t/") as running:
        yield running


@pytest.fixture
def service(kind: Any, importing: Server) -> Iterator[Any]:
    with kind(importing.url) as made:
        yield made


def test_a_tensor_is_imported_and_waited_for(service: Any, source: RangeServer) -> None:
    told: list[int] = []
    info = service.import_tensor("a", f"{source.url}/t/a.npy", keep=1, progress=told.append)
    assert info.shape == (300, 64)
    assert service.metadata("a") == info
    assert np.array_equal(service.get("a"), TABLE)
    assert told[-1] == TABLE.nbytes
    assert told == sorted(told)
    assert service.import_tensor("a", f"{source.url}/t/many.safetensors", tensor="second").shape == (5, 64)


def test_keys_are_imported_with_their_rows(service: Any, source: RangeServer, importing: Server) -> None:
    url = f"{source.url}/t/keyed.safetensors"
    source.files["/t/keyed.safetensors"] = save(ids=np.arange(300) * 7, first=TABLE)
    assert service.import_tensor("b", url, tensor="first", keys="ids").keys.dtype == "int64"
    assert np.array_equal(service.gather("b", keys=[14, 0]), TABLE[[2, 0]])
    arguments = ["tensors", "put", "b", f"{url}#first", "--keys", "ids", "--server", "--url", importing.url]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert service.metadata("b").keys.dtype == "int64"


def test_the_service_reads_no_parquet_and_says_what_does(service: Any, source: RangeServer) -> None:
    source.files["/t/users.parquet"] = b"PAR1" + bytes(100) + b"PAR1"
    with pytest.raises(errors.ImportFailed, match="Parquet") as caught:
        service.import_tensor("a", f"{source.url}/t/users.parquet")
    assert "gathernd tensors put NAME URL" in str(caught.value.hint)


def test_an_import_is_begun_looked_at_and_listed(service: Any, source: RangeServer) -> None:
    begun = service.begin_import("b", f"{source.url}/t/a.npy?secret")
    assert (begun.name, begun.url, begun.bytes_total) == ("b", f"{source.url}/t/a.npy", TABLE.nbytes)
    made = service.wait_for_import(begun)
    found = service.find_import(begun.id)
    assert (found.state, found.info, found.error) == ("done", made, None)
    assert begun.id in [one.id for one in service.imports(page=2)]
    service.end_import(begun.id)
    with pytest.raises(errors.NotFound):
        service.find_import(begun.id)


def test_an_import_that_is_ended_says_so(service: Any, source: RangeServer) -> None:
    going = Event()
    source.files["/t/held.npy"] = npy(np.zeros(1 << 18))
    source.respond = lambda handler: handler.headers["Range"] != "bytes=0-65535" and going.wait(120) and False
    begun = service.begin_import("held", f"{source.url}/t/held.npy")
    service.end_import(begun.id)
    with pytest.raises(errors.NotFound, match="ended by a request"):
        service.wait_for_import(begun)
    going.set()


def test_errors_are_raised_when_it_begins_or_when_it_is_waited_for(service: Any, source: RangeServer) -> None:
    with pytest.raises(errors.Forbidden):
        service.import_tensor("c", f"{source.url}/other/a.npy")
    with pytest.raises(errors.ImportFailed, match="404"):
        service.import_tensor("c", f"{source.url}/t/missing.npy")
    with pytest.raises(errors.PreconditionFailed):
        service.import_tensor("c", f"{source.url}/t/a.npy", if_match='"other"')
    with pytest.raises(ValueError, match="id of an import"):
        service.find_import("../tensors/a")


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@for_each("flags", [(), ("--server",)])
@for_each(("path", "wanted"), [("a.npy", TABLE), ("many.safetensors#second", TABLE[:5] + 1)])
def test_the_command_puts_a_url(
    importing: Server, source: RangeServer, flags: tuple[str, ...], path: str, wanted: Any
) -> None:
    done = run("tensors", "put", "cli", f"{source.url}/t/{path}", *flags, "--url", importing.url)
    assert done.exit_code == 0, done.output
    with Client(importing.url) as service:
        assert service.metadata("cli").etag == done.output.strip()
        assert np.array_equal(service.get("cli"), wanted)


def test_the_command_says_what_is_wrong(importing: Server, source: RangeServer, tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(npy(TABLE))
    for arguments, text in (
        ((f"{source.url}/t/missing.npy",), "404"),
        ((f"{source.url}/t/many.safetensors",), "first, second"),
        ((f"{source.url}/t/a.npy#x",), "no names"),
        ((f"{source.url}/other.npy", "--server"), "forbidden"),
        ((f"{source.url}/t/missing.npy", "--server"), "import_failed"),
        ((str(tmp_path / "a.npy"), "--server"), "URL"),
    ):
        done = run("tensors", "put", "wrong", *arguments, "--url", importing.url)
        assert done.exit_code != 0, arguments
        assert text in done.output + done.stderr, (arguments, done.output)
    done = run("tensors", "put", "cli", f"file://{tmp_path}/a.npy", "--url", importing.url)
    assert done.exit_code == 0, done.output


@for_each("chunked", [False, True])
def test_a_file_is_downloaded_in_one_answer_whether_or_not_its_length_is_announced(
    importing: Server, source: RangeServer, chunked: bool
) -> None:
    content = save(first=TABLE, second=TABLE[:5] + 1)
    source.respond = lambda handler: handler.answer_whole(content, chunked=chunked)
    done = run("tensors", "put", "cli", f"{source.url}/t/many#second", "--url", importing.url)
    assert done.exit_code == 0, done.output
    with Client(importing.url) as service:
        assert np.array_equal(service.get("cli"), TABLE[:5] + 1)


@for_each(("chunked", "cut"), [(False, 1 << 20), (True, 1 << 20), (True, None)])
def test_a_download_that_ends_early_uploads_nothing(
    importing: Server, source: RangeServer, chunked: bool, cut: int | None
) -> None:
    whole = npy(np.zeros(3 << 20, np.uint8))
    file = whole if cut else whole[:-1]
    source.respond = lambda handler: handler.answer_whole(file, chunked=chunked, cut_after=cut)
    done = run("tensors", "put", "early", f"{source.url}/t/a.npy?SECRET", "--url", importing.url)
    assert done.exit_code == 1
    assert f"{source.url}/t/a.npy" in done.stderr
    assert "SECRET" not in done.stderr
    with Client(importing.url) as service:
        assert not service.exists("early")


@for_each(
    ("url", "why"),
    [
        ("s3://user:SECRET@bucket/a.npy", "--server"),
        ("{}/t/cut.npy?SECRET", "could not be downloaded"),
        ("{}/t/circle.npy?SECRET", "redirects"),
        ("{}/t/nowhere.npy?SECRET", "could not be downloaded"),
        ("http://user:SECRET@{port}/t/missing.npy", "404"),
        ("http://user:SECRET@127.0.0.1:1/t/missing.npy", "could not be downloaded"),
        ("http://user:SECRET@host:port/t/a.npy", "is not a URL"),
        ("{}/t/deep.safetensors?SECRET", "not a sound safetensors file"),
    ],
)
def test_a_url_that_cannot_be_read_ends_the_command_with_a_line(source: RangeServer, url: str, why: str) -> None:
    source.files["/t/deep.safetensors"] = (100_005).to_bytes(8, "little") + b'{"a":' + b"[" * 100_000

    def respond(handler: Any) -> bool:
        if handler.path.startswith("/t/cut"):
            handler.close_connection = True
            return True
        if handler.path.startswith(("/t/missing", "/t/deep")):
            return False
        location = handler.path if "circle" in handler.path else "ftp://127.0.0.1/a.npy"
        return bool(handler.answer(302, Location=location))

    source.respond = respond
    address = url.format(source.url, port=source.url.partition("//")[2])
    done = run("tensors", "put", "wrong", address, "--url", "http://127.0.0.1:1")
    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit), done.exception
    assert why in done.stderr
    assert "SECRET" not in done.output + done.stderr
    assert done.stderr.count("\n") == 1
