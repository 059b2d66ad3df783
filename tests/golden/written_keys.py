"""Requests of the golden corpus that name rows by key, to tables without keys and to one that has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.golden.source import safetensors
from tests.golden.written import (
    AXIS,
    MATRIX,
    ND,
    ROWS,
    SAFETENSORS,
    V2_DATA,
    V2_INDICES,
    Written,
    binary,
    gather,
    look_up,
    post,
    rows,
)
from tests.http.forms import tensor


def keys() -> Iterator[Written]:
    """Requests by key to tables that have none, and mistakes in what stands beside keys."""
    more: dict[str, Any]
    wanted = tensor("int64", [2], [7, -1])
    asked = {"data": {"tensor": "g_float32"}, "keys": wanted}
    for more in (
        {}, {"found": True}, {"missing": "fill"}, {"missing": "row", "missing_row": 0}, {"indices": ROWS}, {"axis": 1},
        {"data": MATRIX}, {"missing": "none"}, {"missing": "row"}, {"missing_row": 1}, {"fill_value": 0}, {"found": 1},
        {"missing": "row", "missing_row": "7"}, {"missing": "row", "missing_row": {"key": 7, "row": 1}},
        {"out_of_bounds": "clip"}, {"keys": None}, {"keys": {"tensor": "g_row"}}, {"key": wanted},
        {"data": {"tensor": "g_none"}}, {"dialect": "onnx-11", "data": {"tensor": "g_bfloat16"}},
    ):  # fmt: skip
        yield post(AXIS, asked | more)
    for name, value in (("missing", "fill"), ("missing_row", 0), ("found", False)):
        yield gather(path=AXIS, **{name: value})
    yield post(AXIS, {"data": {"tensor": "g_row"}})
    yield post(ND, asked | {"indices": ROWS})
    for query in ("", "&found=yes", "&missing=row&missing_row=x", "&missing=row&missing_row=1", "&out_of_bounds=clip"):
        yield binary(f"/gather?tensor=g_float32{query}", {"keys": wanted})
    yield binary("/gather?tensor=g_float32", {"keys": wanted, "indices": wanted})
    yield binary("/gather?tensor=g_float32", {"keys.offsets": wanted})
    feature = {"tensor": "g_float32", "keys": wanted}
    for more in ({}, {"indices": wanted}, {"missing": "row"}, {"pooling": "sum"}):
        yield look_up(feature | more)
    yield look_up({"tensor": "g_float32"})
    yield look_up(rows(found=True))
    yield look_up(feature, out_of_bounds="clip")
    one = {"name": "keys", "datatype": "INT64", "shape": [2], "data": [7, -1]}
    model = "/v2/models/g_float32/infer"
    for parameters in ({}, {"missing_row": 1}, {"missing": "row", "missing_row": "[]"}, {"batch_dims": 0}):
        yield post(model, {"inputs": [one], "parameters": parameters})
    yield post(model, {"inputs": [one, V2_INDICES]})
    yield post("/v2/models/gather/infer", {"inputs": [V2_DATA, one]})
    for query in ("key=7", "key=7&key=x", "", "rows=0:1"):
        yield Written("GET", f"/tensors/g_float32/rows?{query}", {}, b"")
    updates = tensor("float32", [2, 4], [0] * 8)
    for what, change in (("upsert", {"keys": wanted, "updates": updates}), ("remove", {"keys": wanted})):
        path = f"/tensors/g_float32/{what}"
        for more in ({}, {"keys": None}, {"key": 7}, {"updates": 7}, {"reduction": "sub"}):
            yield post(path, change | more)
        yield post(f"/tensors/g_none/{what}", change)
        yield post(f"{path}?explain=true", change)
        yield post(f"{path}?reduction=add", change)
        yield binary(path, change)
        yield binary(f"{path}?reduction=sub", change)
        yield binary(path, {"indices": wanted})
        yield Written("GET", path, {}, b"")
    yield Written("GET", "/tensors/g_none/rows?key=1", {}, b"")
    yield from _of_a_table_with_keys()


def _of_a_table_with_keys() -> Iterator[Written]:
    """Requests by key to a table that is uploaded before them, and removed at their end."""
    more: dict[str, Any]
    put = {"content-type": SAFETENSORS}
    held = {"keys": tensor("int64", [3], [7, -1, 2**63 - 1]), "data": tensor("float32", [3, 2], [1, 2, 3, 4, 5, 6])}
    yield Written("PUT", "/tensors/g_keys", put, safetensors(held))
    asked = {"data": {"tensor": "g_keys"}, "keys": tensor("int64", [2, 2], [-1, 8, 2**63 - 1, 9])}
    fill, row = {"missing": "fill", "found": True}, {"missing": "row", "missing_row": {"key": 7}}
    for more in (
        {}, fill, fill | {"fill_value": "NaN", "output_encoding": "base64"}, row,
        row | {"missing_row": 2, "found": True}, {"missing": "row", "missing_row": {"key": 10}},
        {"missing": "row", "missing_row": 3}, fill | {"fill_value": "x"}, {"keys": tensor("int32", [2], [7, -1])},
        {"keys": tensor("uint64", [1], [7])}, {"keys": tensor("int64", [], [7])},
    ):  # fmt: skip
        yield post(AXIS, asked | more)
    for query in ("", "&missing=fill&found=true", "&missing=row&missing_row=1"):
        yield binary(f"/gather?tensor=g_keys{query}", {"keys": tensor("int64", [2], [-1, 8])})
    feature = {"tensor": "g_keys", "keys": tensor("int64", [3], [7, 8, -1])}
    bags_ = {"pooling": "sum", "offsets": tensor("int64", [2], [0, 2])}
    for more in ({}, fill, row, fill | bags_, bags_ | {"padding_index": {"key": 8}, "default_index": 0}):
        yield look_up(feature | more)
    one = {"name": "keys", "datatype": "INT64", "shape": [2], "data": [7, 8]}
    for parameters in ({}, fill, {"missing": "row", "missing_row": "2"}):
        yield post("/v2/models/g_keys/infer", {"inputs": [one], "parameters": parameters})
    yield Written("GET", "/v2/models/g_keys", {}, b"")
    for query in ("key=7&key=8", "key=x", f"key={2**63}"):
        yield Written("GET", f"/tensors/g_keys/rows?{query}", {}, b"")
    twice = held | {"keys": tensor("int64", [3], [7, 7, 7])}
    yield Written("PUT", "/tensors/g_keys", put, safetensors(twice))
    yield Written("DELETE", "/tensors/g_keys", {}, b"")


WRITTEN_KEYS = {"keys": keys()}
