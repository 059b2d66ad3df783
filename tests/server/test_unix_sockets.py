"""Unix sockets: mode and owner, what is replaced and what is left alone, and what is removed."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread, current_thread

import pytest

from app.server.listening_sockets import CannotListen
from app.server.unix_sockets import LONGEST_PATH, Permissions, UnixSocket, is_private

PRIVATE = Permissions(0o600, None)


def listening(path: Path, permissions: Permissions = PRIVATE) -> socket.socket:
    """A socket that listens at `path`, which nobody removes."""
    return UnixSocket(path, permissions, "GATHERND_UDS").listen()


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
        probe.connect(str(path))
        return True
    return False


def test_the_file_has_its_mode_and_is_gone_in_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with UnixSocket(path, Permissions(0o640, None), "GATHERND_UDS") as one:
        assert not path.exists()
        with one.listen():
            assert stat.S_ISSOCK(path.stat().st_mode)
            assert stat.S_IMODE(path.stat().st_mode) == 0o640
            assert connects(path)
            assert list(tmp_path.iterdir()) == [path]
    assert not list(tmp_path.iterdir())


def test_until_it_is_in_its_place_nobody_else_may_reach_it(tmp_path: Path) -> None:
    with UnixSocket(tmp_path / "a.sock", PRIVATE, "GATHERND_UDS"):
        (folder,) = tmp_path.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_owner_and_group_by_name_and_by_number(tmp_path: Path) -> None:
    assert Permissions(0o600, "root:root").ids() == (0, 0)
    assert Permissions(0o600, ":7").ids() == (-1, 7)
    assert Permissions(0o600, "12").ids() == (12, -1)
    assert Permissions(0o600, None).ids() == (-1, -1)
    own = f"{os.getuid()}:{os.getgid()}"
    with listening(tmp_path / "a.sock", Permissions(0o660, own)):
        found = (tmp_path / "a.sock").stat()
        assert (found.st_uid, found.st_gid) == (os.getuid(), os.getgid())
    with pytest.raises(CannotListen, match="the group 'nobody here' of GATHERND_UDS_OWNER does not exist"):
        UnixSocket(tmp_path / "b.sock", Permissions(0o600, ":nobody here"), "GATHERND_UDS")


def test_the_file_of_a_service_that_was_killed_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    listening(path).close()
    assert path.exists()
    assert not connects(path)
    with listening(path):
        assert connects(path)


def test_a_socket_that_somebody_listens_on_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with listening(path):
        with pytest.raises(
            CannotListen, match=r"a\.sock: another program is listening there; GATHERND_UDS sets another"
        ):
            UnixSocket(path, PRIVATE, "GATHERND_UDS")
        assert connects(path)
    assert list(tmp_path.iterdir()) == [path]


def test_of_two_that_start_at_once_the_second_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    listening(path).close()
    first, second = (UnixSocket(path, PRIVATE, "GATHERND_UDS") for _ in range(2))
    with first, first.listen():
        with second, pytest.raises(CannotListen, match="another program is listening there"):
            second.listen()
        assert connects(path)
    assert not list(tmp_path.iterdir())


def directory(path: Path) -> None:
    path.mkdir()


def file(path: Path) -> None:
    path.write_text("mine")


def link(path: Path) -> None:
    path.with_name("target").write_text("mine")
    path.symlink_to("target")


@pytest.mark.parametrize("make", [directory, file, link])
def test_what_is_no_socket_is_refused_and_stays(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "a.sock"
    make(path)
    before = path.lstat()
    with pytest.raises(CannotListen, match="the path exists and is not a socket"):
        UnixSocket(path, PRIVATE, "GATHERND_UDS")
    assert path.lstat().st_ino == before.st_ino


def test_paths_of_any_length_that_a_client_can_connect_to(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * (LONGEST_PATH - len(str(tmp_path)) - 3))
    folder.mkdir()
    path = folder / "a"
    assert len(str(path)) == LONGEST_PATH
    with listening(path):
        assert connects(path)
    with pytest.raises(CannotListen, match=f"longer than {LONGEST_PATH} bytes"):
        UnixSocket(folder / "ab", PRIVATE, "GATHERND_UDS")


def test_a_folder_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotListen, match="No such file or directory; GATHERND_GRPC_UDS sets another path"):
        UnixSocket(tmp_path / "none" / "a.sock", PRIVATE, "GATHERND_GRPC_UDS")


def test_what_comes_in_its_place_in_the_moment_of_removing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.sock"
    first, second = (UnixSocket(path, PRIVATE, "GATHERND_UDS") for _ in range(2))
    first.listen().close()
    made: list[socket.socket] = []
    starting = Thread(target=lambda: made.append(second.listen()))
    looks = Path.lstat

    def looks_and_then_the_other_comes(self: Path) -> os.stat_result:
        found = looks(self)
        if current_thread() is not starting:
            starting.start()
            starting.join(0.5)
        return found

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(Path, "lstat", looks_and_then_the_other_comes)
        first.remove()
        starting.join()
    assert connects(path)
    made[0].close()
    second.remove()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("mode", "private"), [(0o600, True), (0o660, True), (0o664, True), (0o666, False), (0o602, False)]
)
def test_to_connect_is_to_write(mode: int, private: bool) -> None:
    assert is_private(mode) is private
