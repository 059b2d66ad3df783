"""The same requests to ONNX's reference evaluator and to ONNX Runtime: where they take one, the answers are the same.

They are peers and not judges: what they are known to answer wrongly, or to take though the text forbids it, is listed
here with the reason, and is checked to be still so.
"""

from __future__ import annotations

from math import prod
from typing import Any

import httpx
import numpy as np
import pytest

from tests.conformance.cases import case
from tests.conftest import samples
from tests.http.forms import COMPLEX, int64, tensor
from tests.parity.gather_cases import faults_of, mode_of, random_gather
from tests.parity.items import Rng, name_of, same
from tests.parity.messages import Request
from tests.parity.onnx_peers import PEERS, answered, code_of


def asked(path: str, body: dict[str, Any]) -> Request:
    """A request out of flat JSON."""
    made = case("", path, body)
    return Request(path, {name: told.array for name, told in made.arrays.items()}, dict(made.parameters))


def known_to_differ(peer: str, request: Request) -> bool:
    """Valid requests that a peer cannot take, or answers wrongly."""
    path, data, indices = request.path, request.arrays["data"], request.arrays["indices"]
    if peer == "runtime":
        # It has no kernels for these types; and its Gather copies the first string of each slice only.
        return name_of(data) in {"bfloat16", *COMPLEX, *(["string"] if path == "/gather" else [])}
    if path == "/gather_elements":
        # It wants indices of data's size on every other axis, and takes a negative axis for another one.
        axis = request.parameters.get("axis", 0)
        sizes = zip(data.shape, indices.shape, strict=True)
        return axis < 0 or any(size != given for at, (size, given) in enumerate(sizes) if at != axis)
    if path == "/gather" and name_of(data) == "string" and data.ndim == 1:
        # One string by itself becomes an array of characters, which ends before the NULs at its end.
        return indices.shape == () and any(value.endswith("\0") for value in data.tolist())
    # It reshapes with one dimension left open, which NumPy cannot work out for arrays without items.
    return path == "/gathernd" and 0 in (*data.shape, *indices.shape)


@pytest.mark.parametrize("peer", PEERS)
def test_a_valid_request_is_answered_as_the_peer_answers_it(client: httpx.Client, peer: str, rng: Rng) -> None:
    compared = 0
    while compared < samples(200):
        request = random_gather(rng, spoiled=False)
        foreign = str(request.parameters.get("dialect")).startswith("openvino") or mode_of(request) != "error"
        if foreign or faults_of(request) or known_to_differ(peer, request):
            continue
        found, wanted = answered(client, request), np.asarray(PEERS[peer](request))
        if wanted.dtype.kind == "U":
            wanted = wanted.astype(object)
        assert same(found, wanted), (request, found, wanted)
        compared += 1


def test_the_runtime_still_loses_strings(client: httpx.Client) -> None:
    request = asked("/gather", {"data": tensor("string", [1, 2], ["a", "b"]), "indices": int64([1], [0])})
    assert answered(client, request).tolist() == [["a", "b"]]
    assert PEERS["runtime"](request).tolist() == [["a", ""]]


def test_the_reference_still_loses_nuls_at_the_end_of_a_string(client: httpx.Client) -> None:
    request = asked("/gather", {"data": tensor("string", [1], ["a\0"]), "indices": int64([], [0])})
    assert answered(client, request).tolist() == "a\0"
    assert np.asarray(PEERS["reference"](request)).tolist() == "a"


def floats(*shape: int) -> dict[str, Any]:
    return tensor("float32", shape, [float(number) for number in range(prod(shape))])


BOTH, NEITHER = frozenset(PEERS), frozenset[str]()
RUNTIME, REFERENCE = frozenset({"runtime"}), frozenset({"reference"})
# Forbidden requests: path, body, the code of the service, and the peers that take them all the same.
FORBIDDEN: dict[str, tuple[str, dict[str, Any], str, frozenset[str]]] = {
    "batch dims that differ but divide": (
        "/gathernd",
        {"data": floats(2, 3), "indices": int64([4, 1], [0, 1, 2, 0]), "batch_dims": 1},
        "batch_shape_mismatch",
        RUNTIME,
    ),
    "batch one against three": (
        "/gathernd",
        {"data": floats(1, 3), "indices": int64([3, 1], [0, 1, 2]), "batch_dims": 1},
        "batch_shape_mismatch",
        RUNTIME,
    ),
    "batch three against one": (
        "/gathernd",
        {"data": floats(3, 3), "indices": int64([1, 1], [0]), "batch_dims": 1},
        "batch_shape_mismatch",
        NEITHER,
    ),
    "a negative batch_dims": (
        "/gathernd",
        {"data": floats(2, 2, 2), "indices": int64([2, 1], [1, 0]), "batch_dims": -1},
        "batch_dims_out_of_range",
        NEITHER,
    ),
    "index tuples of length zero": (
        "/gathernd",
        {"data": floats(2, 2), "indices": int64([3, 0], [])},
        "index_depth_out_of_range",
        RUNTIME,
    ),
    "an inner index out of range": (
        "/gathernd",
        {"data": floats(3, 4), "indices": int64([1, 2], [0, 5])},
        "index_out_of_bounds",
        NEITHER,
    ),
    "an index whose product with the stride wraps": (
        "/gathernd",
        {"data": floats(3, 4), "indices": int64([1, 2], [2**62, 1])},
        "index_out_of_bounds",
        NEITHER,
    ),
    "an index into an empty axis": (
        "/gathernd",
        {"data": floats(0), "indices": int64([1, 1], [0])},
        "index_out_of_bounds",
        NEITHER,
    ),
    "an index into an empty axis where the output is empty": (
        "/gathernd",
        {"data": floats(2, 0, 0), "indices": int64([1, 2], [0, 0])},
        "index_out_of_bounds",
        RUNTIME,
    ),
    "a bad index to empty slices": (
        "/gathernd",
        {"data": floats(2, 3, 0), "indices": int64([1, 1], [2])},
        "index_out_of_bounds",
        RUNTIME,
    ),
    "a bad index before an empty axis": (
        "/gather",
        {"data": floats(0, 3), "indices": int64([1], [3]), "axis": 1},
        "index_out_of_bounds",
        REFERENCE,
    ),
    "an axis of 2^32": (
        "/gather",
        {"data": floats(2, 3), "indices": int64([1], [1]), "axis": 2**32},
        "axis_out_of_range",
        NEITHER,
    ),
    "a negative index under Gather-1": (
        "/gather",
        {"data": floats(3), "indices": int64([1], [-1]), "dialect": "onnx-1"},
        "index_out_of_bounds",
        BOTH,
    ),
    "indices of rank 0": (
        "/gathernd",
        {"data": floats(3), "indices": int64([], [1])},
        "rank_too_small",
        NEITHER,
    ),
    "entries of another rank": (
        "/gather_elements",
        {"data": floats(2, 3), "indices": int64([2], [0, 1])},
        "rank_mismatch",
        NEITHER,
    ),
    "entries at places that data has not": (
        "/gather_elements",
        {"data": floats(2, 3), "indices": int64([3, 1], [0, 1, 2]), "axis": 1},
        "indices_shape_mismatch",
        NEITHER,
    ),
    "an entry out of range": (
        "/gather_elements",
        {"data": floats(2, 3), "indices": int64([1, 3], [0, 2, 0])},
        "index_out_of_bounds",
        REFERENCE,
    ),
    "an entry of an empty axis": (
        "/gather_elements",
        {"data": floats(2, 0), "indices": int64([2, 1], [0, 0]), "axis": 1},
        "index_out_of_bounds",
        NEITHER,
    ),
    "bfloat16 before 13": (
        "/gathernd",
        {"data": tensor("bfloat16", [2], [1, 2]), "indices": int64([1, 1], [1]), "dialect": "onnx-12"},
        "unsupported_dtype",
        REFERENCE,
    ),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_the_text_forbids_is_refused_also_where_a_peer_takes_it(client: httpx.Client, name: str) -> None:
    path, body, code, takers = FORBIDDEN[name]
    request = asked(path, body)
    assert code_of(client, request) == code
    for peer, ask in PEERS.items():
        try:
            ask(request)
        except Exception:  # noqa: BLE001  (peers refuse with whatever their own code happens to raise)
            assert peer not in takers
        else:
            assert peer in takers
