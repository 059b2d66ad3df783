"""The keys file: what is taken, what is refused whole, and how it is changed."""

from __future__ import annotations

import logging
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.api.route_table import TABLE
from app.errors import GatherError
from app.security import api_keys
from app.security.api_keys import BadKeysFile, key_digest
from app.security.authorizer import KeyAuthorizer, ReadOnlyAuthorizer
from tests.http.server import GATHERND, run_program

DIGEST = sha256(b"one").hexdigest()
OTHER = sha256(b"other").hexdigest()


def request(method: str = "POST", path: str = "/gathernd", key: str | None = None, scheme: str = "Bearer") -> Any:
    """As much of an exchange as a judge of keys looks at."""
    credential = None if key is None else key_digest(f"{scheme} {key}".encode())
    return SimpleNamespace(method=method, path=path, credential=credential)


def refusal(judge: KeyAuthorizer | ReadOnlyAuthorizer, asked: Any) -> str | None:
    """The code with which `asked` is refused, if it is."""
    try:
        judge.check(asked.method, TABLE.find(asked.path)[0].access, asked.credential)
    except GatherError as error:
        return error.code
    return None


def test_lines_comments_and_empty_lines_are_read() -> None:
    text = f"# two keys\n\n{DIGEST} gather alice\r\n  {OTHER.upper()}\ttensors,gather   bob@example  \n"
    found = api_keys.parse(text)
    assert [key.label for key in found] == ["alice", "bob@example"]
    assert [key.digest.hex() for key in found] == [DIGEST, OTHER]
    assert [key.scopes for key in found] == [{"gather"}, {"gather", "tensors"}]


@pytest.mark.parametrize(
    "line",
    [
        DIGEST,
        f"{DIGEST} alice",
        f"{DIGEST[:-1]} gather alice",
        f"{DIGEST}0 gather alice",
        f"{'g' * 64} gather alice",
        f"{DIGEST} gather, alice",
        f"{DIGEST} gather,gather alice",
        f"{DIGEST} admin alice",
        f"{DIGEST} GATHER alice",
        f"{DIGEST} gather al/ice",
        f"{DIGEST} gather alice bob",
        f"{DIGEST} gather {'a' * 65}",
        f"{DIGEST} gather alice\n{DIGEST} gather bob",
        f"{DIGEST} gather alice\n{OTHER} gather alice",
        "gathernd_secret gather alice",
    ],
)
def test_a_file_with_one_bad_line_is_refused_whole_and_not_shown(line: str) -> None:
    with pytest.raises(BadKeysFile, match=r"line [23]: ") as refused:
        api_keys.parse(f"# keys\n{line}\n")
    assert DIGEST not in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"\0" * ((1 << 20) + 1), None])
def test_a_file_that_cannot_be_read_is_refused(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadKeysFile):
        KeyAuthorizer(path)


@pytest.mark.timeout(20)
def test_what_is_no_file_is_refused_without_waiting_for_it_and_leaves_no_descriptor(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("pipe")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for place in (tmp_path / "pipe", tmp_path / "folder", tmp_path / "link", Path("/dev/zero")):
        with pytest.raises(BadKeysFile, match="it is not a regular file"):
            KeyAuthorizer(place)
        with pytest.raises(BadKeysFile):
            api_keys.add(place, "alice", ["gather"])
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_an_added_key_works_and_its_text_is_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    text = api_keys.add(path, "alice", ["gather"])
    assert text.encode() not in path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    judge = KeyAuthorizer(path)
    assert refusal(judge, request(key=text)) is None
    assert refusal(judge, request(key=text, scheme="bearer")) is None
    assert refusal(judge, request(key=text + "x")) == "unauthorized"
    assert refusal(judge, request(key=text[:-1])) == "unauthorized"
    assert refusal(judge, request(key=text, scheme="Basic")) == "unauthorized"
    assert refusal(judge, request(key=path.read_text().split()[-3])) == "unauthorized"
    assert refusal(judge, request(key="")) == "unauthorized"
    assert refusal(judge, request()) == "unauthorized"


@pytest.mark.parametrize(
    "path", ["/livez/", "/errorsx", "/v2/health", "/v2/healthy/x", "/docsx", "//docs/", "/v2/Health/live", ""]
)
def test_routes_that_only_look_public_ask_for_a_key(path: str, tmp_path: Path) -> None:
    api_keys.add(tmp_path / "keys", "t", ["tensors"])
    assert refusal(KeyAuthorizer(tmp_path / "keys"), request("GET", path)) == "unauthorized"


def test_a_second_write_within_one_tick_of_the_clock_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{DIGEST} gather a\n")
    judge = KeyAuthorizer(path)
    status = path.stat()
    path.write_text(f"{OTHER} gather a\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    found = judge.watcher.read_if_changed()
    assert found is not None
    assert found[0].digest.hex() == OTHER


@pytest.mark.parametrize("harm", ["line", "gone", "unreadable", "text"])
def test_a_broken_file_keeps_the_last_good_keys_and_is_logged_once(
    harm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    key = api_keys.add(path, "a", ["gather"])
    good = path.read_bytes()
    judge = KeyAuthorizer(path)
    path.unlink()
    if harm == "line":
        path.write_bytes(good + b"nonsense\n")
    elif harm == "unreadable":
        path.mkdir()
    elif harm == "text":
        path.write_bytes(b"\xff")
    with caplog.at_level(logging.INFO, "gathernd"):
        assert judge.watcher.read_if_changed() is None
        assert judge.watcher.read_if_changed() is None
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
    assert refusal(judge, request(key=key)) is None
    if harm == "unreadable":
        path.rmdir()
    path.write_bytes(good + f"{OTHER} gather b\n".encode())
    with caplog.at_level(logging.INFO, "gathernd"):
        judge.take(judge.watcher.read_if_changed() or [])
    assert caplog.records[-1].getMessage() == "keys file: 2 keys in force"


def test_comments_order_and_mode_stay_when_keys_come_and_go(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# first\n\n{DIGEST} gather a\n# last, without an end of line")
    path.chmod(0o640)
    api_keys.add(path, "b", ["tensors", "gather"])
    lines = path.read_text().splitlines()
    assert lines[:4] == ["# first", "", f"{DIGEST} gather a", "# last, without an end of line"]
    assert lines[4].startswith("# added ")
    assert lines[5].split()[1:] == ["gather,tensors", "b"]
    api_keys.remove(path, "a")
    assert path.read_text().splitlines() == [*lines[:2], *lines[3:]]
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_change_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys"
    api_keys.add(path, "a", ["gather"])
    before = path.read_bytes()
    for change in (
        lambda: api_keys.add(path, "a", ["gather"]),
        lambda: api_keys.add(path, "no label", ["gather"]),
        lambda: api_keys.remove(path, "b"),
    ):
        with pytest.raises(BadKeysFile):
            change()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        api_keys.add(path, "b", ["gather"])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_keys_added_at_the_same_time_are_all_there(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    with ThreadPoolExecutor(8) as executor:
        list(executor.map(lambda number: api_keys.add(path, f"key{number}", ["gather"]), range(40)))
    assert {key.label for key in api_keys.read(path)} == {f"key{number}" for number in range(40)}


def gathernd(*arguments: str, file: Path | None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GATHERND_")}
    if file is not None:
        environment["GATHERND_API_KEYS_FILE"] = str(file)
    return run_program([GATHERND, "keys", *arguments], variables=environment)


def test_the_command_makes_lists_and_removes_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    added = gathernd("add", "alice", "--scope", "tensors", "--scope", "gather", file=path)
    assert added.returncode == 0, added.stderr
    text = added.stdout.strip()
    assert refusal(KeyAuthorizer(path), request("PUT", "/tensors/x", text)) is None
    other = gathernd("add", "bob", "--file", str(path), file=None)
    assert refusal(KeyAuthorizer(path), request("PUT", "/tensors/x", other.stdout.strip())) == "forbidden"
    listed = gathernd("ls", file=path).stdout.splitlines()
    assert [line.split("\t")[:2] for line in listed] == [["alice", "gather,tensors"], ["bob", "gather"]]
    keys = api_keys.read(path)
    assert [line.split("\t")[2:] for line in listed] == [[key.digest.hex()[:12], key.added] for key in keys]
    assert text not in "".join(listed)
    assert gathernd("rm", "alice", file=path).returncode == 0
    assert [key.label for key in api_keys.read(path)] == ["bob"]


def test_a_key_has_the_date_when_it_was_added_and_loses_it_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# team keys\n{OTHER} gather old\n")
    before = datetime.now(UTC).replace(microsecond=0)
    api_keys.add(path, "alice", ["gather"])
    old, alice = api_keys.read(path)
    assert old.added == ""
    assert before <= datetime.fromisoformat(alice.added) <= datetime.now(UTC)
    assert [line for line in path.read_text().splitlines() if not line.startswith("#")] == [
        f"{OTHER} gather old",
        f"{alice.digest.hex()} gather alice",
    ], "a version that knows no dates reads its own form, and comments"
    api_keys.remove(path, "alice")
    assert path.read_text() == f"# team keys\n{OTHER} gather old\n"


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    nowhere = gathernd("ls", file=None)
    assert (nowhere.returncode, "GATHERND_API_KEYS_FILE" in nowhere.stderr) == (2, True)
    missing = gathernd("rm", "alice", file=tmp_path / "keys")
    assert (missing.returncode, "alice" in missing.stderr) == (1, True)
    assert "Traceback" not in missing.stderr
    no_folder = gathernd("add", "alice", file=tmp_path / "none" / "keys")
    assert (no_folder.returncode, "Traceback" in no_folder.stderr) == (1, False)


def test_each_scope_opens_its_own_routes(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    gather, tensors = api_keys.add(path, "g", ["gather"]), api_keys.add(path, "t", ["tensors"])
    judge = KeyAuthorizer(path)
    for _ in range(2):  # the second time from what is remembered
        for method, route in [
            ("POST", "/gathernd"),
            ("POST", "/gather"),
            ("POST", "/v2/models/items/infer"),
            ("POST", "/v2/repository/models/items/unload"),
            ("GET", "/v2/models/items"),
            ("GET", "/tensors"),
            ("HEAD", "/tensors/items"),
            ("GET", "/tensors/items/content"),
        ]:
            assert refusal(judge, request(method, route, gather)) is None, (method, route)
            assert refusal(judge, request(method, route, tensors)) == "forbidden", (method, route)
        for method, route in [
            ("PUT", "/tensors/items"),
            ("DELETE", "/tensors/items"),
            ("POST", "/tensors/items/scatter"),
            ("PATCH", "/tensors"),
            ("PUT", "/tensors/"),
        ]:
            assert refusal(judge, request(method, route, tensors)) is None, (method, route)
            assert refusal(judge, request(method, route, gather)) == "forbidden", (method, route)
        for key in (gather, tensors):
            assert refusal(judge, request("GET", "/metrics", key)) is None
        assert refusal(judge, request("GET", "/metrics")) == "unauthorized"


def test_an_empty_file_lets_nobody_in(tmp_path: Path) -> None:
    (tmp_path / "keys").touch()
    assert refusal(KeyAuthorizer(tmp_path / "keys"), request(key="x")) == "unauthorized"
