"""What an upload may be made of besides arrays, and where a download may go."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from gathernd import AsyncClient, Result, _endpoints, errors
from gathernd._upload_sources import encode_upload
from tests.client.test_gathers import same, sample
from tests.for_each import for_each
from tests.http.server import Server
from tests.safetensors_files import FORBIDDEN, SOUND, UNSOUND

TABLE = np.arange(60, dtype=np.float32).reshape(12, 5)


def test_an_npy_file_is_uploaded_by_its_path(each_service: Any, tmp_path: Path) -> None:
    for number, data in enumerate(
        (TABLE, np.asfortranarray(TABLE), TABLE[:0], np.array(["a", "ß"]), TABLE.astype(">f8"))
    ):
        path = tmp_path / f"{number}.bin"  # the content decides, not the name
        with path.open("wb") as file:
            np.save(file, data)
        for source in (path, str(path)):
            info = each_service.put("file", source)
            assert info.shape == data.shape
            assert each_service.get("file").tolist() == data.tolist()
    each_service.delete("file")


def test_a_tensor_of_a_safetensors_file_is_uploaded(service: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    halves = (TABLE / 2).astype(ml_dtypes.bfloat16)
    save_file({"a.weight": TABLE, "b.weight": halves, "empty": TABLE[:, :0].copy()}, path)
    for name, data in (("a.weight", TABLE), ("b.weight", halves), ("empty", TABLE[:, :0])):
        service.put("part", path, tensor=name)
        assert same(service.get("part"), data)
    for tensor in (None, "c.weight"):
        with pytest.raises(ValueError, match=r"a\.weight.*b\.weight.*tensor="):
            service.put("part", path, tensor=tensor)
    save_file({"only": TABLE}, path)
    assert service.put("part", path).shape == (12, 5)
    service.delete("part")


def test_bfloat16_of_a_file_needs_no_ml_dtypes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({"only": TABLE.astype(ml_dtypes.bfloat16)}, tmp_path / "x.safetensors")
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    encoded = encode_upload(tmp_path / "x.safetensors", None)
    assert (encoded.element_type.name, encoded.shape, len(encoded.raw)) == ("bfloat16", (12, 5), 120)


@for_each(
    "content",
    [
        b"", b"short", b"a,b\n1,2\n", b"PK\x03\x04" + bytes(40), b"\x93NUMPY\x01\x00\x05\x00oops\n",
        b"\x80\x04\x95" + bytes(90),
        (1 << 40).to_bytes(8, "little") + b"{}", (2).to_bytes(8, "little") + b"[]", (2).to_bytes(8, "little") + b"{}",
        (60).to_bytes(8, "little") + b'{"x":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}'.ljust(60),
        (60).to_bytes(8, "little") + b'{"x":{"dtype":"F32","shape":[9]}}'.ljust(60),
    ],
)  # fmt: skip
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data").write_bytes(content)
    with pytest.raises(ValueError, match="data"):
        encode_upload(tmp_path / "data", None)


@for_each("name", SOUND)
def test_a_safetensors_file_is_read_as_the_service_reads_it(name: str, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(SOUND[name])
    encoded = encode_upload(tmp_path / "x.safetensors", None)
    assert (encoded.element_type.name, encoded.shape, len(encoded.raw)) == ("float32", (2,), 8)


@for_each("name", UNSOUND | FORBIDDEN)
def test_a_safetensors_file_is_refused_as_the_service_refuses_it(name: str, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes((UNSOUND | FORBIDDEN)[name])
    with pytest.raises((ValueError, TypeError), match="safetensors"):
        encode_upload(tmp_path / "x.safetensors", "x")


def test_files_that_cannot_be_uploaded_say_why(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        encode_upload(tmp_path / "nothing.npy", None)
    np.save(tmp_path / "objects.npy", np.array([None]), allow_pickle=True)
    with pytest.raises(ValueError, match=r"objects\.npy"):
        encode_upload(tmp_path / "objects.npy", None)
    text = b'{"x":{"dtype":"F8_E4M3FNUZ","shape":[1],"data_offsets":[0,1]}}'
    (tmp_path / "f8.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"\0")
    with pytest.raises(TypeError, match="element type"):
        encode_upload(tmp_path / "f8.safetensors", None)
    with pytest.raises(ValueError, match="tensor="):
        encode_upload(TABLE, "x")


def test_rows_come_one_after_the_other(each_service: Any) -> None:
    info = each_service.put("rows", (row for row in TABLE))
    assert info.shape == (12, 5)
    assert same(each_service.get("rows"), TABLE)
    batches = (TABLE[first : first + 5] for first in range(0, 12, 5))
    assert each_service.put("rows", itertools.chain.from_iterable(batches)).sha256 == info.sha256
    assert each_service.put("rows", iter([["a", "b"], ["c", "ü"]])).dtype == "string"
    assert each_service.get("rows").tolist() == [["a", "b"], ["c", "ü"]]
    assert each_service.put("rows", iter([1.5, 2.5])).shape == (2,)
    for wrong in (iter([]), iter([[1.0], [1.0, 2.0]]), iter([[1.0], [1]])):
        with pytest.raises(ValueError, match="row"):
            each_service.put("rows", wrong)
    each_service.delete("rows")


def test_a_download_goes_into_an_array_that_is_there(each_service: Any) -> None:
    each_service.put("out", TABLE)
    out = np.empty_like(TABLE)
    assert each_service.get("out", out=out) is out
    assert same(out, TABLE)
    pool = np.zeros((20, 5), np.float32)
    assert each_service.get("out", rows=(3, 5), out=pool[4:6]).base is pool
    assert pool[3:7].tolist() == [[0.0] * 5, *TABLE[3:5].tolist(), [0.0] * 5]
    assert each_service.get("out", out=out, with_info=True).array is out
    for wrong in (np.empty((12, 5)), np.empty((5, 12), np.float32), np.empty(60, np.float32)):
        with pytest.raises(ValueError, match="what comes is float32"):
            each_service.get("out", out=wrong)
    frozen = np.empty_like(TABLE)
    frozen.flags.writeable = False
    for wrong in (np.empty((5, 12), np.float32).T, frozen, np.empty((12, 5), ">f4"), np.empty(3, object)):
        with pytest.raises(ValueError, match="out must"):
            each_service.get("out", out=wrong)
    with pytest.raises(errors.TensorNotFound):
        each_service.get("nobody", out=out)
    assert same(each_service.get("out"), TABLE)  # the connection is still good
    each_service.delete("out")


def test_info_tells_what_was_read_where_and_how_long(service: Any) -> None:
    info = service.put("info", TABLE)
    found = service.gathernd("info", [[1]], with_info=True, headers={"x-request-id": "mine-1"})
    assert isinstance(found, Result)
    assert same(found.array, TABLE[[1]])
    assert (found.etag, found.device, found.request_id) == (info.etag, "cpu", "mine-1")
    assert {"parse", "queue", "kernel"} <= set(found.timings)
    assert all(0 <= seconds < 60 for seconds in found.timings.values())
    inline = service.gather(sample("string", (3,)), [1], with_info=True)
    assert (inline.etag, inline.device) == (None, "cpu")
    whole = service.get("info", with_info=True)
    assert (whole.etag, whole.device) == (info.etag, None)
    assert service.gather_elements(TABLE, [[0]], with_info=True).array.tolist() == [[0.0]]
    service.delete("info")


def test_exists_and_ready(service: Any, kind: Any) -> None:
    assert not service.exists("fleeting")
    service.put("fleeting", TABLE)
    assert service.exists("fleeting")
    service.delete("fleeting")
    assert service.ready()
    with kind("http://127.0.0.1:9") as client:
        assert not client.ready(wait=0.15)


def test_a_bar_is_shown_where_progress_is_wanted(each_service: Any, capsys: pytest.CaptureFixture[str]) -> None:
    data = np.zeros(1 << 19)
    each_service.put("bar", data, progress=True)
    assert capsys.readouterr().err.startswith("bar 100% [##############################] 4.2 of 4.2 MB, ")
    each_service.get("bar", progress=True)
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1
    assert "100%" in shown.err
    each_service.get("bar", progress=False)
    assert capsys.readouterr().err == ""
    each_service.delete("bar")


def test_one_tuple_taken_for_rows_is_explained(service: Any) -> None:
    with pytest.raises(errors.IndexDepthOutOfRange) as depth:
        service.gathernd(TABLE, [3, 5, 7])
    with pytest.raises(errors.IndexOutOfBounds) as bounds:
        service.gathernd(TABLE, [11, 5])
    for caught, first in ((depth, "[3, 5, 7] is one tuple, of 3 axes"), (bounds, "[11, 5] is one tuple, of 2 axes")):
        assert any(first in note for note in caught.value.__notes__)
        assert caught.value.hint in caught.value.__notes__
    with pytest.raises(errors.IndexOutOfBounds) as rows:
        service.gathernd(TABLE, [[12]])
    assert not any("tuple" in note for note in getattr(rows.value, "__notes__", []))


def test_what_takes_long_to_pack_is_packed_by_another_thread(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    packed_here: list[bool] = []
    loop_thread = threading.get_ident()
    makers = {"gather": _endpoints.gather, "put": _endpoints.put}
    for name, maker in makers.items():

        def watched(*args: Any, make: Any = maker) -> Any:
            packed_here.append(threading.get_ident() == loop_thread)
            return make(*args)

        monkeypatch.setattr(_endpoints, name, watched)

    async def run() -> None:
        async with AsyncClient(server.url) as client:
            await client.gather(TABLE, [1])
            await client.gather(np.zeros(1 << 17), [1])
            await client.gather([[0.0] * 512] * 256, [1])
            await client.put("threads", iter(TABLE))
            await client.delete("threads")

    asyncio.run(run())
    assert packed_here == [True, False, False, False]
