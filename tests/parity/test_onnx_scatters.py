"""The same scatters to ONNX's reference evaluator and to ONNX Runtime: where they are right, the bits are the same.

They are peers and not judges: what they cannot take, answer wrongly, or take though the text forbids it, is listed
here, and is checked to be still so.
"""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

import httpx
import numpy as np
import pytest

from tests.conftest import samples
from tests.for_each import for_each
from tests.http.forms import COMPLEX, FLOATS
from tests.parity.items import NUMPY, Array, Rng, name_of, same
from tests.parity.messages import Request
from tests.parity.onnx_peers import PEERS, answered, code_of
from tests.parity.scatter_cases import ELEMENTS, ND, faults_of, random_scatter


def cannot_take(peer: str, request: Request) -> bool:
    """Valid requests that a peer refuses: ONNX Runtime has no kernels for these types."""
    dtype, reduction = name_of(request.arrays["data"]), request.parameters.get("reduction", "none")
    return peer == "runtime" and (dtype in ("bfloat16", *COMPLEX) or (dtype == "float16" and reduction != "none"))


def answers_otherwise(peer: str, request: Request) -> bool:
    """Valid requests that a peer may answer in another way: the least or largest where there is a NaN, or 0 and -0.

    The texts leave both open. ONNX Runtime, and the evaluator's ScatterElements, compare as Python and C do, so that it
    depends on the order which of the two is left.
    """
    if request.parameters.get("reduction", "none") not in ("min", "max"):
        return False
    if name_of(request.arrays["data"]) not in FLOATS:
        return False
    with np.errstate(invalid="ignore"):  # of a signalling NaN
        both = [request.arrays[name].astype(np.float64) for name in ("data", "updates")]
    return any(bool((np.isnan(each) | (each == 0)).any()) for each in both)


@pytest.mark.parametrize("share", range(2))
def test_a_valid_scatter_is_answered_as_the_peers_answer_it(every_client: httpx.Client, rng: Rng, share: int) -> None:
    compared, by = 0, Counter[str]()
    while compared < samples(400):
        request = random_scatter(rng, spoiled=False)
        if faults_of(request) or answers_otherwise("any", request):
            continue
        found = answered(every_client, request)
        asked = [peer for peer in PEERS if not cannot_take(peer, request)]
        for peer in asked:
            with np.errstate(all="ignore"):
                wanted = np.asarray(PEERS[peer](request))
            assert same(found, wanted), (peer, request, found, wanted)
        compared += 1
        by.update(asked)
    assert by["reference"] == compared
    assert by["runtime"] > compared * 0.6


def scatter(path: str, data: Array, indices: Any, updates: Any, **parameters: Any) -> Request:
    updated = np.asarray(updates, data.dtype)
    return Request(path, {"data": data, "indices": np.asarray(indices, np.int64), "updates": updated}, parameters)


@pytest.mark.parametrize("path", [ND, ELEMENTS])
@pytest.mark.parametrize("dtype", ["bfloat16", *COMPLEX, "float16"])
def test_the_runtime_still_lacks_types(path: str, dtype: str) -> None:
    reduction = "add" if dtype == "float16" else "none"
    request = scatter(path, np.ones(2, NUMPY[dtype]), [[0]] if path == ND else [0], [1], reduction=reduction)
    assert cannot_take("runtime", request)
    with pytest.raises(Exception):  # noqa: B017, PT011  (of several kinds)
        PEERS["runtime"](request)


@pytest.mark.parametrize(
    ("peer", "path"),
    [("reference", ELEMENTS), ("runtime", ELEMENTS), ("runtime", ND)],
    ids=lambda part: part.strip("/"),
)
def test_peers_still_lose_a_nan_and_mix_up_zeros(every_client: httpx.Client, peer: str, path: str) -> None:
    """Here a NaN stays, and -0 is less than 0."""
    indices = [[0], [0]] if path == ND else [0, 0]
    lost = scatter(path, np.ones(1, np.float32), indices, [np.nan, 2], reduction="max")
    zeros = scatter(path, np.zeros(1, np.float32), indices, [-0.0, 0], reduction="min")
    assert answers_otherwise(peer, lost)
    assert answers_otherwise(peer, zeros)
    assert np.asarray(PEERS[peer](lost)).tolist() == [2.0]
    assert not np.signbit(np.asarray(PEERS[peer](zeros))[0])
    for request, kept in ((lost, np.isnan), (zeros, np.signbit)):
        assert kept(answered(every_client, request)[0])


def floats(*shape: int) -> Array:
    return np.arange(prod(shape), dtype=np.float32).reshape(shape)


BOTH, NEITHER = frozenset(PEERS), frozenset[str]()
REFERENCE = frozenset({"reference"})
# Forbidden requests, the code of the service, and the peers that take them all the same.
FORBIDDEN: dict[str, tuple[Request, str, frozenset[str]]] = {
    "an index out of range": (scatter(ND, floats(3), [[3]], [1]), "index_out_of_bounds", NEITHER),
    "a negative index out of range": (scatter(ND, floats(3), [[-4]], [1]), "index_out_of_bounds", NEITHER),
    "an inner index out of range": (scatter(ND, floats(3, 4), [[0, 5]], [1]), "index_out_of_bounds", NEITHER),
    "an index whose product with the stride wraps": (
        scatter(ND, floats(3, 4), [[2**62, 1]], [1]), "index_out_of_bounds", NEITHER,
    ),
    "an index into an empty axis": (scatter(ND, floats(0), [[0]], [1]), "index_out_of_bounds", NEITHER),
    "an index to empty slices": (
        scatter(ND, floats(2, 0), [[2]], floats(1, 0)), "index_out_of_bounds", NEITHER,
    ),
    "tuples of length zero": (
        scatter(ND, floats(2), np.zeros((1, 0)), floats(1, 2)), "index_depth_out_of_range", BOTH,
    ),
    "tuples longer than the rank": (scatter(ND, floats(2), [[0, 0]], [1]), "index_depth_out_of_range", NEITHER),
    "updates of another shape": (scatter(ND, floats(3, 2), [[0]], [[1]]), "updates_shape_mismatch", REFERENCE),
    "updates for fewer tuples": (scatter(ND, floats(3), [[0], [1]], [1]), "updates_shape_mismatch", NEITHER),
    "updates without the axis of tuples": (scatter(ND, floats(3), [[0]], 1), "updates_shape_mismatch", NEITHER),
    "a scalar as indices": (scatter(ND, floats(3), 0, 1), "rank_too_small", NEITHER),
    "an entry out of range": (scatter(ELEMENTS, floats(3), [3], [1]), "index_out_of_bounds", NEITHER),
    "an entry far below": (scatter(ELEMENTS, floats(3), [-4], [1]), "index_out_of_bounds", NEITHER),
    "an entry into an empty axis": (scatter(ELEMENTS, floats(0), [0], [1]), "index_out_of_bounds", NEITHER),
    "an axis beyond the rank": (scatter(ELEMENTS, floats(3), [0], [1], axis=1), "axis_out_of_range", NEITHER),
    "entries of another rank": (scatter(ELEMENTS, floats(2, 2), [0], [1]), "rank_mismatch", REFERENCE),
    "entries at places that data has not": (
        scatter(ELEMENTS, floats(2, 2), [[0, 0, 0]], [[1, 2, 3]]), "indices_shape_mismatch", NEITHER,
    ),
    "updates of fewer entries": (
        scatter(ELEMENTS, floats(3), [0, 1], [1]), "updates_shape_mismatch", NEITHER,
    ),
    "add before 16": (
        scatter(ND, floats(3), [[0]], [1], dialect="onnx-13", reduction="add"), "invalid_field", REFERENCE,
    ),
    "max before 18": (
        scatter(ELEMENTS, floats(3), [0], [1], dialect="onnx-16", reduction="max"), "invalid_field", BOTH,
    ),
    "bfloat16 before 13": (
        scatter(ND, np.ones(2, NUMPY["bfloat16"]), [[0]], [1], dialect="onnx-11"), "unsupported_dtype", REFERENCE,
    ),
}  # fmt: skip


@for_each("name", FORBIDDEN)
def test_what_the_text_forbids_is_refused_also_where_a_peer_takes_it(every_client: httpx.Client, name: str) -> None:
    request, code, takers = FORBIDDEN[name]
    assert [fault.code for fault in faults_of(request)] == [code]
    assert code_of(every_client, request) == code
    found = set()
    for peer, ask in PEERS.items():
        try:
            ask(request)
        except Exception:  # noqa: BLE001  (peers refuse with whatever their own code happens to raise)
            continue
        found.add(peer)
    assert found == takers
