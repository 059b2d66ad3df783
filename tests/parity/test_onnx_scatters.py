"""The same scatters to ONNX's reference evaluator and to ONNX Runtime: where they are right, the bits are the same.

They are peers and not judges: what they cannot take or answer wrongly is left out, with the reason.
"""

from __future__ import annotations

from collections import Counter

import httpx
import numpy as np
import pytest

from tests.conftest import samples
from tests.http.forms import COMPLEX, FLOATS
from tests.parity.items import Rng, name_of, same
from tests.parity.messages import Request
from tests.parity.onnx_peers import PEERS, answered
from tests.parity.scatter_cases import random_scatter


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
