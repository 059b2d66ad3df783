"""The reader against a second one, written with Python's own JSON and plain loops, on random requests."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from app.errors import GatherError
from app.json_text import grammar
from app.tensors.buffer_type import Buffer
from app.tensors.shape_limits import Limits
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor
from tests.conftest import slow_but_for
from tests.strings import items
from tests.wire import json_oracle
from tests.wire.json_random import Requests
from tests.wire.json_requests import SIGNATURES, read_call

pytestmark = pytest.mark.usefixtures("every_codec")

LIMITS = Limits(string_bytes=40)


def outcome(read: Callable[..., Any], body: Buffer, operator: str) -> tuple[Any, ...]:
    """All that a reader makes of a body: each bit and pointer of the call, or each place of the error."""
    try:
        call, encoding = read(body, SIGNATURES[operator], LIMITS)
        if call.over_limit is not None:
            raise call.over_limit
    except GatherError as error:
        places = [(place.pointer, place.position, repr(place.value)) for place in error.places]
        return error.code, places, error.total, dict(error.facts)
    tensors = map(described, (call.data, call.indices))
    return "read", *tensors, call.operator, call.parameters, call.dialect, call.device, call.at, encoding


def described(data: Tensor | str) -> Any:
    if isinstance(data, str):
        return data
    if data.dtype.kind == "string":
        # The oracle has strings as objects.
        found: Any = (items(data) if isinstance(data, PackedStrings) else data.array).tolist()
    else:
        found = data.array.dtype.str, data.array.tobytes()
    flags = data.array.flags
    assert data.array.ndim == 1
    assert flags.c_contiguous
    assert flags.aligned
    return data.dtype.name, data.shape, found, data.pointer, data.form, data.shape_pointer, data.dtype_pointer


def strict(body: bytes) -> bool:
    """Whether Python takes `body` for JSON that names each key once and nests at most 512 deep."""

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a key twice")
        return dict(pairs)

    def constant(name: str) -> None:
        raise ValueError(name)

    try:
        json.loads(body.decode(), object_pairs_hook=members, parse_constant=constant)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("seed", slow_but_for((0,), range(4)))
def test_both_readers_make_the_same_of_every_request(seed: int, soak_scale: int) -> None:
    requests, seen = Requests(seed), Counter[str]()
    for _ in range(2500 * soak_scale):
        body, operator = requests.body()
        found, wanted = (outcome(read, body, operator) for read in (read_call, json_oracle.read_call))
        assert found == wanted, body
        seen[found[0]] += 1
    wanted_codes = {"read", "malformed_request", "invalid_field", "unsupported_dtype", "value_not_representable"}
    assert wanted_codes | {"element_count_mismatch", "limit_exceeded"} <= seen.keys()
    assert seen["read"] > 200


@pytest.mark.parametrize("seed", slow_but_for((100,), range(100, 102)))
def test_malformed_is_what_python_finds_malformed(seed: int, soak_scale: int) -> None:
    requests, seen = Requests(seed), Counter[bool]()
    for _ in range(3000 * soak_scale):
        body = requests.broken(requests.body()[0])
        fine = grammar.fault(body) is None
        assert fine == strict(body), body
        refused = outcome(read_call, body, "gathernd")[0] == "malformed_request"
        assert refused != fine, body
        seen[fine] += 1
    assert min(seen.values()) > 200


@pytest.mark.parametrize("seed", [5, 6, 7])
def test_a_body_cut_short_at_any_byte_is_malformed(seed: int) -> None:
    requests = Requests(seed)
    whole = b""
    while outcome(read_call, whole, "gathernd")[0] != "read" or len(whole) < 150 or b"tensor" in whole:
        whole = requests.body()[0]
    whole = whole.strip()
    for size in range(len(whole)):
        for cut in (whole[:size], bytearray(whole[:size]), memoryview(whole)[:size]):
            found = outcome(read_call, cut, "gathernd")
            assert found == ("malformed_request", [], 0, {}), (size, whole)


@pytest.mark.parametrize("seed", slow_but_for((8,), (8, 9)))
def test_every_kind_of_buffer_and_surroundings_reads_alike(seed: int, soak_scale: int) -> None:
    requests = Requests(seed)
    for _ in range(200 * soak_scale):
        body, operator = requests.body()
        wanted = outcome(read_call, body, operator)
        padded = b"1" * 7 + body + b'"]}1'
        forms = (bytearray(body), memoryview(body), memoryview(padded)[7:-4], memoryview(bytearray(padded))[7:-4])
        assert all(outcome(read_call, form, operator) == wanted for form in forms), body
        spaced = b" " * 90 + body + b"\n" * 90
        assert outcome(read_call, spaced, operator) == wanted, body
