"""String keys in safetensors: two tensors, which have to fit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.errors import GatherError
from app.formats.body_formats import SAFETENSORS, formats_of
from app.operators.registry import ROWS
from tests.golden.source import safetensors
from tests.keyed import KEYS, LACKED, LIMITS, TABLE, run, tensor
from tests.served import served

GATHER = ROWS["gather"].signature


def keys_of(dtype: str) -> dict[str, Any]:
    """Three keys, of which a table with keys of the type lacks the second."""
    return tensor(dtype, [3], [KEYS[dtype][2], LACKED[dtype], KEYS[dtype][0]])


def string_keys(texts: list[str], prefix: str = "") -> dict[str, Any]:
    cuts = [0]
    for text in texts:
        cuts.append(cuts[-1] + len(text.encode()))
    octets_ = list("".join(texts).encode())
    return {
        f"{prefix}keys.offsets": tensor("int64", [len(cuts)], cuts),
        f"{prefix}keys.bytes": tensor("uint8", [len(octets_)], octets_),
    }


def test_strings_in_safetensors_are_two_tensors() -> None:
    codec = formats_of(GATHER)[SAFETENSORS]
    body = safetensors(string_keys(keys_of("string")["values"]))
    call, _ = codec.read(body, b"tensor=string&missing=fill&fill_value=2.5", GATHER, LIMITS, served().memory)
    assert run(call).output.array.tolist() == [*TABLE[2].tolist(), *[2.5] * 3, *TABLE[0].tolist()]
    lookup = ROWS["lookup"].signature
    text = json.dumps({"features": [{"tensor": "string", "missing": "fill"}, {"tensor": "plain"}]})
    arrays = string_keys(["", "x", "jürgen"], "0.") | {"1.indices": tensor("int64", [3], [0, 1, 2])}
    call, _ = codec.read(safetensors(arrays, {"lookup": text}), b"", lookup, LIMITS, served().memory)
    assert run(call).output.array.reshape(3, 6)[:, :3].tolist() == [TABLE[1].tolist(), [0, 0, 0], TABLE[2].tolist()]


@pytest.mark.parametrize(
    ("code", "pointer", "change"),
    [
        ("invalid_field", "/keys.offsets", {"keys.bytes": None}),
        ("unsupported_dtype", "/keys.offsets", {"keys.offsets": tensor("int32", [2], [0, 1])}),
        ("unsupported_dtype", "/keys.bytes", {"keys.bytes": tensor("int8", [1], [65])}),
        ("element_count_mismatch", "/keys.offsets", {"keys.offsets": tensor("int64", [0], [])}),
        ("element_count_mismatch", "/keys.offsets", {"keys.offsets": tensor("int64", [2], [0, 2])}),
        ("element_count_mismatch", "/keys.offsets", {"keys.offsets": tensor("int64", [2], [1, 1])}),
        ("element_count_mismatch", "/keys.offsets", {"keys.offsets": tensor("int64", [4], [0, 2, -1, 1])}),
        ("invalid_field", "/keys.offsets", {"keys.offsets": tensor("int64", [1, 2], [0, 1])}),
        ("value_not_representable", "/keys.bytes", {"keys.bytes": tensor("uint8", [1], [255])}),
    ],
)
def test_wrong_string_keys_in_safetensors(code: str, pointer: str, change: dict[str, Any]) -> None:
    codec = formats_of(GATHER)[SAFETENSORS]
    arrays = {name: given for name, given in (string_keys(["A"]) | change).items() if given is not None}
    with pytest.raises(GatherError) as caught:
        codec.read(safetensors(arrays), b"tensor=string", GATHER, LIMITS, served().memory)
    assert (caught.value.code, caught.value.places[0].pointer) == (code, pointer)
