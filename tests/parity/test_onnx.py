"""The same requests to ONNX's reference evaluator and to ONNX Runtime: where they take one, the answers are the same.

They are peers and not judges: what they cannot take or are known to answer wrongly is left out, with the reason.
"""

from __future__ import annotations

from collections import Counter

import httpx
import numpy as np
import pytest

from tests.conftest import samples
from tests.http.forms import COMPLEX, FLOATS
from tests.parity.gather_cases import mode_of, random_gather
from tests.parity.items import Rng, name_of, same
from tests.parity.messages import Request
from tests.parity.onnx_peers import PEERS, answered
from tests.parity.scatter_cases import random_scatter


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
        request = random_gather(rng)
        foreign = str(request.parameters.get("dialect")).startswith("openvino") or mode_of(request) != "error"
        if foreign or known_to_differ(peer, request):
            continue
        found, wanted = answered(client, request), np.asarray(PEERS[peer](request))
        if wanted.dtype.kind == "U":
            wanted = wanted.astype(object)
        assert same(found, wanted), (request, found, wanted)
        compared += 1


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
        request = random_scatter(rng)
        if answers_otherwise("any", request):
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
