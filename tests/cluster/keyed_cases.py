"""Random tables with keys, and random requests by key, valid and not, in several formats."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx
import numpy as np

from tests.http.forms import FLOATS, TYPES
from tests.http.tensors import SAFETENSORS
from tests.parity.items import Array, Rng, choose, items, name_of
from tests.parity.messages import loaded, saved, values

KEY_TYPES = ("int64", "uint64", "string")
CARRIED = tuple(dtype for dtype in TYPES if dtype not in ("string", "complex128"))
"""Types that safetensors carries."""
SHAPES: tuple[list[int], ...] = ([], [1], [3], [2, 2], [5], [0], [64])
PREFIXES = ("", "a", "item-", "ä", "日本-", "x" * 70)
JSON = "application/json"


@dataclass
class Keyed:
    """A table, its keys in the order of its rows, and how it is sent."""

    keys: list[Any]
    key_type: str
    rows: Array
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes = b""

    def __post_init__(self) -> None:
        self.content = self.content or saved({**key_arrays(self.keys, self.key_type), "data": self.rows})

    def send(self, client: httpx.Client, name: str) -> httpx.Response:
        headers = {"content-type": SAFETENSORS, **self.headers}
        return client.put(f"/tensors/{name}", params=self.query, content=self.content, headers=headers)


def key_arrays(keys: list[Any], key_type: str, name: str = "keys") -> dict[str, Array]:
    """Keys as a safetensors body has them."""
    if key_type != "string":
        return {name: np.array(keys, key_type)}
    texts = [key.encode() for key in keys]
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.int64)
    return {f"{name}.offsets": offsets, f"{name}.bytes": np.frombuffer(b"".join(texts), np.uint8)}


def random_key(rng: Rng, key_type: str) -> Any:
    number = int(rng.integers(0, 2**63)) if rng.random() < 0.3 else int(rng.integers(0, 400))
    match key_type:
        case "int64":
            return number if rng.random() < 0.7 else -number - (rng.random() < 0.1)
        case "uint64":
            return number if rng.random() < 0.8 else number + 2**63
        case _:
            return f"{choose(rng, PREFIXES)}{number if rng.random() < 0.95 else ''}"


def random_table(rng: Rng) -> Keyed:
    key_type = choose(rng, KEY_TYPES)
    count = int(choose(rng, (0, 1, 2, 7, 40, 300)))
    keys = list(dict.fromkeys(random_key(rng, key_type) for _ in range(count)))
    dtype = choose(rng, (*CARRIED, "float32", "float32", "float16"))
    return Keyed(keys, key_type, items(rng, dtype, [len(keys), *choose(rng, SHAPES)]))


def repeated(rng: Rng, table: Keyed) -> Keyed:
    """A table some of whose keys come twice."""
    keys = list(table.keys)
    for _ in range(int(choose(rng, (1, 3, 30)))):
        keys.insert(int(rng.integers(len(keys) + 1)), choose(rng, keys))
    return Keyed(keys, table.key_type, items(rng, name_of(table.rows), [len(keys), *table.rows.shape[1:]]))


def some_keys(rng: Rng, table: Keyed, count: int, lacked: float) -> list[Any]:
    """Keys of a table, and others."""
    return [
        choose(rng, table.keys) if table.keys and rng.random() >= lacked else random_key(rng, table.key_type)
        for _ in range(count)
    ]


def _named(rng: Rng, table: Keyed) -> dict[str, Any]:
    return {"key": some_keys(rng, table, 1, 0.2)[0]}


def missing_members(rng: Rng, table: Keyed) -> dict[str, Any]:
    """What a request says beside its keys, but for a value that rows are filled with."""
    members: dict[str, Any] = {}
    match choose(rng, ("", "error", "fill", "fill", "row")):
        case "row":
            members |= {"missing": "row", "missing_row": _named(rng, table)}
        case "":
            pass
        case mode:
            members["missing"] = mode
    if rng.random() < 0.4:
        members["found"] = bool(rng.random() < 0.8)
    return members


def send_gather(client: httpx.Client, rng: Rng, name: str, table: Keyed) -> httpx.Response:
    """A gather by key in JSON, safetensors or over the inference protocol."""
    shape = [int(size) for size in choose(rng, ([], [0], [1], [4], [9], [2, 3], [1, 2, 2], [200]))]
    members = missing_members(rng, table)
    lacked = 0.3 if "missing" in members or rng.random() < 0.3 else 0
    keys = some_keys(rng, table, int(np.prod(shape)), lacked)
    sent_type = table.key_type if rng.random() < 0.9 else choose(rng, (*KEY_TYPES, "int32"))
    if sent_type != "string":
        held = np.iinfo(sent_type)
        whole = [key if isinstance(key, int) else len(key) for key in keys]
        keys = [min(max(key, held.min), held.max) for key in whole]
    else:
        keys = [str(key) for key in keys]
    if members.get("missing") == "fill" and rng.random() < 0.5 and name_of(table.rows) in ("float32", "int64"):
        members["fill_value"] = values(items(rng, name_of(table.rows), [1]))[0]
    if name_of(table.rows) in ("float16", "float32") and rng.random() < 0.1:
        members["output_dtype"] = "float32" if name_of(table.rows) == "float16" else "float16"
    accept = {"accept": choose(rng, (JSON, SAFETENSORS))}
    form = choose(rng, ("json", "json", "safetensors", "oip"))
    if form == "safetensors" and (sent_type != "string" or len(shape) == 1):
        query = {"tensor": name} | {
            field: json.dumps(value) if not isinstance(value, str) else value for field, value in members.items()
        }
        arrays = key_arrays(keys, sent_type)
        if sent_type != "string":
            arrays = {"keys": np.array(keys, sent_type).reshape(shape)}
        fields = {"content-type": SAFETENSORS, **accept}
        return client.post("/gather", params=query, content=saved(arrays), headers=fields)
    if form == "oip":
        datatype = {"string": "BYTES"}.get(sent_type, sent_type.upper())
        given: dict[str, Any] = {"name": "keys", "datatype": datatype, "shape": shape, "data": keys}
        parameters = {
            field: json.dumps(value) if isinstance(value, dict) else value for field, value in members.items()
        }
        return client.post(f"/v2/models/{name}/infer", json={"inputs": [given], "parameters": parameters})
    tensor = {"dtype": sent_type, "shape": shape, "values": keys}
    body = {"data": {"tensor": name}, "keys": tensor, **members}
    return client.post("/gather", json=body, headers=accept)


def send_rows(client: httpx.Client, rng: Rng, name: str, table: Keyed) -> httpx.Response:
    """Ask for the rows of some keys as curl does."""
    keys = some_keys(rng, table, int(rng.integers(1, 6)), 0.3)
    if rng.random() < 0.1:
        keys.append("x")
    return client.get(f"/tensors/{name}/rows", params=[("key", str(key)) for key in keys])


def send_lookup(client: httpx.Client, rng: Rng, held: Mapping[str, Keyed], plain: Mapping[str, Array]) -> Any:
    """A lookup of some features, most of them by key."""
    features: list[dict[str, Any]] = []
    bags = int(rng.integers(1, 5))
    for _ in range(int(rng.integers(1, 5))):
        pools = bool(rng.random() < 0.6)
        feature: dict[str, Any] = {}
        count = int(rng.integers(0, 9)) if pools else bags
        if plain and rng.random() < 0.2:
            name = choose(rng, list(plain))
            rows = rng.integers(0, len(plain[name]), count).tolist()
            feature |= {"tensor": name, "indices": {"dtype": "int64", "shape": [count], "values": rows}}
            is_float = True
        else:
            names = [name for name, one in held.items() if one.rows.ndim == 2 or rng.random() < 0.1]
            name = choose(rng, names or list(held))
            table = held[name]
            members = missing_members(rng, table)
            keys = some_keys(rng, table, count, 0.3 if "missing" in members else 0)
            feature |= {"tensor": name, "keys": {"dtype": table.key_type, "shape": [count], "values": keys}, **members}
            is_float = name_of(table.rows) in FLOATS
            if pools and rng.random() < 0.3:
                feature["padding_index"] = {"key": keys[0]} if keys and rng.random() < 0.7 else _named(rng, table)
            if pools and rng.random() < 0.3:
                feature["default_index"] = _named(rng, table)
        if pools:
            starts = np.sort(rng.integers(0, count + 1, bags)).tolist()
            starts[0] = 0
            feature["offsets"] = {"dtype": "int64", "shape": [bags], "values": starts}
            feature["pooling"] = choose(rng, ("sum", "mean", "max"))
            if is_float and feature["pooling"] == "sum" and rng.random() < 0.3:
                dtype = name_of(held[name].rows) if name in held else "float32"
                weights = values(items(rng, dtype, [count]))
                feature["weights"] = {"dtype": dtype, "shape": [count], "values": weights}
        features.append(feature)
    body: dict[str, Any] = {"features": features}
    if rng.random() < 0.7:
        body["concat"] = False
    accept = choose(rng, (JSON, SAFETENSORS))
    return client.post("/lookup", json=body, headers={"accept": accept})


def keys_of(content: bytes, key_type: str) -> list[object]:
    """Return the keys in a safetensors body, in the order of its rows."""
    arrays, _ = loaded(content)
    if key_type != "string":
        return list(arrays["keys"].tolist())
    octets, stops = arrays["keys.bytes"].tobytes(), arrays["keys.offsets"].tolist()
    return [octets[start:stop].decode() for start, stop in pairwise(stops)]
