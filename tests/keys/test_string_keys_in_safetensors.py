"""String keys in safetensors: `keys.offsets` and `keys.bytes` must match each other."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from app.errors import GatherError
from app.formats.body_formats import SAFETENSORS, formats_of
from app.operators.registry import ROWS
from tests.cluster.keyed_cases import key_arrays
from tests.keyed import KEYS, LACKED, LIMITS, TABLE, run
from tests.parity.messages import saved
from tests.served import served

GATHER = ROWS["gather"].signature


def test_strings_in_safetensors_are_two_tensors() -> None:
    codec = formats_of(GATHER)[SAFETENSORS]
    body = saved(key_arrays([KEYS["string"][2], LACKED["string"], KEYS["string"][0]], "string"))
    call, _ = codec.read(body, b"tensor=string&missing=fill&fill_value=2.5", GATHER, LIMITS, served().memory)
    assert run(call).output.array.tolist() == [*TABLE[2].tolist(), *[2.5] * 3, *TABLE[0].tolist()]
    lookup = ROWS["lookup"].signature
    text = json.dumps({"features": [{"tensor": "string", "missing": "fill"}, {"tensor": "plain"}]})
    arrays = key_arrays(["", "x", "jürgen"], "string", "0.keys") | {"1.indices": np.arange(3)}
    call, _ = codec.read(saved(arrays, {"lookup": text}), b"", lookup, LIMITS, served().memory)
    assert run(call).output.array.reshape(3, 6)[:, :3].tolist() == [TABLE[1].tolist(), [0, 0, 0], TABLE[2].tolist()]


@pytest.mark.parametrize(
    ("code", "pointer", "change"),
    [
        ("invalid_field", "/keys.offsets", {"keys.bytes": None}),
        ("unsupported_dtype", "/keys.offsets", {"keys.offsets": np.array([0, 1], np.int32)}),
        ("unsupported_dtype", "/keys.bytes", {"keys.bytes": np.array([65], np.int8)}),
        ("element_count_mismatch", "/keys.offsets", {"keys.offsets": np.array([], np.int64)}),
        ("element_count_mismatch", "/keys.offsets", {"keys.offsets": np.array([0, 2], np.int64)}),
        ("element_count_mismatch", "/keys.offsets", {"keys.offsets": np.array([1, 1], np.int64)}),
        ("element_count_mismatch", "/keys.offsets", {"keys.offsets": np.array([0, 2, -1, 1], np.int64)}),
        ("invalid_field", "/keys.offsets", {"keys.offsets": np.array([[0, 1]], np.int64)}),
        ("value_not_representable", "/keys.bytes", {"keys.bytes": np.array([255], np.uint8)}),
    ],
)
def test_wrong_string_keys_in_safetensors(code: str, pointer: str, change: dict[str, Any]) -> None:
    codec = formats_of(GATHER)[SAFETENSORS]
    arrays = {name: given for name, given in (key_arrays(["A"], "string") | change).items() if given is not None}
    with pytest.raises(GatherError) as caught:
        codec.read(saved(arrays), b"tensor=string", GATHER, LIMITS, served().memory)
    assert (caught.value.code, caught.value.places[0].pointer) == (code, pointer)
