"""Imports through both clients and the command; files behind a URL that the command fetches itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from time import sleep
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from gathernd import errors
from gathernd._upload_sources import encode_upload
from gathernd_cli import url_files
from gathernd_cli.command_line import app
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
    with pytest.raises(errors.InvalidField, match="tensors"):
        service.import_tensor("c", f"{source.url}/t/many.safetensors")
    with pytest.raises(errors.PreconditionFailed):
        service.import_tensor("c", f"{source.url}/t/a.npy", if_match='"other"')
    source.files["/t/changing.npy"] = npy(np.zeros(1 << 18))

    def respond(handler: Any) -> bool:
        if len(source.asked) > 1 and "changing" in handler.path:
            source.files["/t/changing.npy"] = npy(np.ones(1 << 18))[:-8]
        return False

    source.asked, source.respond = [], respond
    with pytest.raises(errors.ImportFailed, match="changed"):
        service.import_tensor("c", f"{source.url}/t/changing.npy")
    with pytest.raises(ValueError, match="id of an import"):
        service.find_import("../tensors/a")


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("flags", [(), ("--server",)])
@pytest.mark.parametrize(
    ("path", "wanted"),
    [("a.npy", TABLE), ("many.safetensors#second", TABLE[:5] + 1), ("many.safetensors#first", TABLE)],
)
def test_the_command_puts_a_url(
    importing: Server, kind: Any, source: RangeServer, flags: tuple[str, ...], path: str, wanted: Any
) -> None:
    done = run("tensors", "put", "cli", f"{source.url}/t/{path}", *flags, "--url", importing.url)
    assert done.exit_code == 0, done.output
    with kind(importing.url) as service:
        assert service.metadata("cli").etag == done.output.strip()
        assert np.array_equal(service.get("cli"), wanted)


def test_the_command_says_what_is_wrong(importing: Server, source: RangeServer, tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(npy(TABLE))
    for arguments, text in (
        ((f"{source.url}/t/missing.npy",), "404"),
        ((f"{source.url}/t/many.safetensors",), "first, second"),
        ((f"{source.url}/t/many.safetensors#third",), "first, second"),
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


def test_a_download_is_resumed_where_it_was_cut(
    source: RangeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("gathernd_cli.url_files.sleep", lambda seconds: None)
    content = np.random.default_rng(1).bytes(20 << 20)
    source.files["/t/large.npy"] = npy(np.frombuffer(content, np.uint8))
    source.cut_every = 3 << 20
    told: list[tuple[int, int]] = []
    with url_files.fetched(f"{source.url}/t/large.npy", None, lambda *done: told.append(done)) as path:
        assert path.read_bytes() == source.files["/t/large.npy"]
    assert not path.exists()
    assert source.cuts >= 5
    assert told[-1][0] == told[-1][1]


@pytest.mark.parametrize("answer", ["416", "416 with a page", "200", "another range", "a longer file"])
def test_a_file_without_etag_that_changes_meanwhile_is_not_put_together(
    source: RangeServer, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    monkeypatch.setattr(source, "etag", False)
    whole = npy(np.zeros(20 << 20, np.uint8))
    source.files["/t/changing.npy"] = whole
    size = len(whole)

    def respond(handler: Any) -> bool:
        first, last = map(int, handler.headers["Range"].removeprefix("bytes=").split("-"))
        if first < 1 << 20:
            return False
        length = last + 1 - first
        if answer == "200":
            return bool(handler.answer(200, bytes(length)))
        if answer.startswith("416"):
            return bool(handler.answer(416, b"<p>no</p>" if "page" in answer else b"", Content_Range="bytes */9"))
        shift, total = (-1, size) if answer == "another range" else (0, size + 8)
        return bool(handler.answer(206, bytes(length), Content_Range=f"bytes {first + shift}-{last + shift}/{total}"))

    source.respond = respond
    with (
        pytest.raises(OSError, match="changed meanwhile"),
        url_files.fetched(f"{source.url}/t/changing.npy", None, lambda *done: None),
    ):
        pass


@pytest.mark.parametrize("chunked", [False, True])
def test_a_server_without_ranges_is_read_once(source: RangeServer, chunked: bool) -> None:
    array = np.arange(3 << 20, dtype=np.float32)
    files = {"/t/a.npy": npy(array), "/t/small.npy": npy(array[:5]), "/t/many": save(a=array[:7], b=array, c=array[:9])}
    source.respond = lambda handler: handler.answer_whole(files[handler.path], chunked=chunked)
    told: list[tuple[int, int]] = []
    for path, tensor in (("/t/a.npy", None), ("/t/small.npy", None), ("/t/many", "b"), ("/t/many", "c")):
        source.asked = []
        with url_files.fetched(source.url + path, tensor, lambda *done: told.append(done)) as fetched:
            if tensor is None:
                assert fetched.read_bytes() == files[path]
            else:
                wanted = array if tensor == "b" else array[:9]
                assert bytes(encode_upload(fetched, tensor).raw) == wanted.tobytes()
        assert len(source.asked) == 1
        assert told[-1][0] == told[-1][1]


@pytest.mark.parametrize(
    ("change", "chunked", "cut", "what"),
    [
        (0, False, 1 << 20, "no ranges to go on"),
        (0, True, 1 << 20, "no ranges to go on"),
        (1, True, None, "more bytes"),
        (-1, True, None, "ends before"),
    ],
)
def test_a_file_without_ranges_comes_whole_or_not_at_all(
    source: RangeServer, change: int, chunked: bool, cut: int | None, what: str
) -> None:
    whole = npy(np.zeros(3 << 20, np.uint8))
    file = whole + b"x" * change if change >= 0 else whole[:change]
    source.respond = lambda handler: handler.answer_whole(file, chunked=chunked, cut_after=cut)
    with (
        pytest.raises(OSError, match=what),
        url_files.fetched(f"{source.url}/t/a.npy", None, lambda *done: None),
    ):
        pass


def of_range(handler: Any, size: int) -> tuple[int, int, str]:
    """Begin and end of the range that is asked for, and the field that answers it."""
    first, last = map(int, handler.headers["Range"].removeprefix("bytes=").split("-"))
    end = min(last + 1, size)
    return first, end, f"bytes {first}-{end - 1}/{size}"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gathernd_cli.url_files.sleep", lambda seconds: None)


@pytest.mark.parametrize("field", ["ETag", "Last-Modified"])
@pytest.mark.parametrize("value", ['"{}"', 'W/"{}"'])
def test_what_a_server_says_of_another_content_is_believed(source: RangeServer, field: str, value: str) -> None:
    size = len(source.files["/t/a.npy"])

    def respond(handler: Any) -> bool:
        first, end, came = of_range(handler, size)
        fields = {"Content-Range": came, field: value.format(len(source.asked))}
        return bool(handler.answer(206, source.files["/t/a.npy"][first:end], **fields))

    source.respond = respond
    with (
        pytest.raises(OSError, match="changed meanwhile"),
        url_files.fetched(f"{source.url}/t/a.npy", None, lambda *done: None),
    ):
        pass


def test_an_etag_is_sent_back_byte_for_byte(source: RangeServer) -> None:
    whole, etag = source.files["/t/a.npy"], '"caf\xe9"'

    def respond(handler: Any) -> bool:
        assert handler.headers["If-Range"] in (None, etag)
        first, end, came = of_range(handler, len(whole))
        return bool(handler.answer(206, whole[first:end], Content_Range=came, ETag=etag))

    source.respond = respond
    with url_files.fetched(f"{source.url}/t/a.npy", None, lambda *done: None) as path:
        assert path.read_bytes() == whole


@pytest.mark.parametrize(("sent", "why"), [(0, "cut 6 times in a row"), (1 << 30, "more than it was asked for")])
@pytest.mark.usefixtures("quick")
def test_a_server_that_sends_nothing_or_no_end_is_given_up(
    source: RangeServer, monkeypatch: pytest.MonkeyPatch, sent: int, why: str
) -> None:
    monkeypatch.setattr(source, "etag", False)
    size, went = len(source.files["/t/a.npy"]), 0

    def respond(handler: Any) -> bool:
        nonlocal went
        _, end, came = of_range(handler, size)
        if end == 1:
            return False
        handler.send_response(206)
        handler.send_header("Content-Range", came)
        handler.send_header("Content-Length", str(sent))
        handler.end_headers()
        while went < sent:
            handler.wfile.write(bytes(1 << 20))
            went += 1 << 20
        return True

    source.respond = respond
    with pytest.raises(OSError, match=why), url_files.fetched(f"{source.url}/t/a.npy", None, lambda *done: None):
        pass
    assert len(source.asked) <= 2 * url_files.ATTEMPTS
    assert went < 1 << 26


def test_a_compressed_answer_is_refused(source: RangeServer) -> None:
    whole = source.files["/t/a.npy"]

    def respond(handler: Any) -> bool:
        first, end, came = of_range(handler, len(whole))
        return bool(handler.answer(206, whole[first:end], Content_Range=came, Content_Encoding="gzip"))

    source.respond = respond
    with (
        pytest.raises(ValueError, match="compressed"),
        url_files.fetched(f"{source.url}/t/a.npy", None, lambda *done: None),
    ):
        pass


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1:1/a.npy?SECRET", "could not be reached"),
        ("{}/t/cut.npy?SECRET", "could not be reached"),
        ("{}/t/circle.npy?SECRET", "redirects"),
        ("{}/t/nowhere.npy?SECRET", "could not be reached"),
        ("http://user:SECRET@{port}/t/missing.npy", "404"),
        ("http://user:SECRET@127.0.0.1:1/t/missing.npy", "could not be reached"),
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_temporary_file(source: RangeServer, tmp_path: Path, number: signal.Signals) -> None:
    going = Event()
    source.files["/t/held.npy"] = npy(np.zeros(1 << 18))
    source.respond = lambda handler: len(source.asked) > 2 and going.wait(60) and False
    before = signal.signal(number, signal.SIG_DFL)  # these tests may run where it is ignored, and so would the command
    try:
        command = subprocess.Popen(
            [sys.executable, "-m", "gathernd_cli", "tensors", "put", "held", f"{source.url}/t/held.npy"],
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
    finally:
        signal.signal(number, before)
    while len(source.asked) < 3 and command.poll() is None:
        sleep(0.01)
    assert len(list(tmp_path.iterdir())) == 1
    command.send_signal(number)
    try:
        assert command.wait(60) == -number
    finally:
        going.set()
        command.kill()
        command.wait()
    assert list(tmp_path.iterdir()) == []


@contextmanager
def bucket_of(moto: str, monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[Any]:
    """An httpx client of a new bucket, which the library finds by the environment."""
    import httpx

    signed = {"authorization": "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request"}
    for variable, value in (
        ("AWS_ACCESS_KEY_ID", "ours"), ("AWS_SECRET_ACCESS_KEY", "secret"), ("AWS_REGION", "us-east-1"),
        ("AWS_ENDPOINT_URL", moto),
    ):  # fmt: skip
        monkeypatch.setenv(variable, value)
    with httpx.Client(base_url=f"{moto}/{name}", headers=signed, trust_env=False, timeout=60) as bucket:
        bucket.put("")
        yield bucket


def test_an_object_store_is_read_with_the_library(moto: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with bucket_of(moto, monkeypatch, "of-client") as bucket:
        bucket.put("/many.safetensors", content=save(first=TABLE, second=TABLE[:5]))
    with url_files.fetched("s3://of-client/many.safetensors", "second", lambda *done: None) as path:
        assert path.stat().st_size < TABLE[:5].nbytes + 200
    with (
        pytest.raises(OSError, match="cannot be read"),
        url_files.fetched("s3://of-client/missing", None, lambda *done: None),
    ):
        pass


@pytest.mark.parametrize(("change", "why"), [("put", "changed meanwhile"), ("delete", "cannot be read")])
def test_an_object_that_changes_or_goes_while_it_is_read(
    moto: str, monkeypatch: pytest.MonkeyPatch, change: str, why: str
) -> None:
    with bucket_of(moto, monkeypatch, "going") as bucket:
        bucket.put("/a.npy", content=npy(TABLE))
        opened = url_files._Stored("s3://going/a.npy")
        bucket.request(change, "/a.npy", content=npy(TABLE + 1) if change == "put" else None)
        with pytest.raises(OSError, match=f"^s3://going/a.npy.* {why}"):
            opened.read(0, 100)
