"""The same requests to ONNX's reference evaluator and to ONNX Runtime: where they take one, the answers are the same.

They are peers and not judges: what they are known to answer wrongly is left out, with the reason.
"""

from __future__ import annotations

import httpx
import numpy as np
import pytest

from tests.conftest import samples
from tests.http.forms import COMPLEX
from tests.parity.gather_cases import mode_of, random_gather
from tests.parity.items import Rng, name_of, same
from tests.parity.messages import Request
from tests.parity.onnx_peers import PEERS, answered


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
