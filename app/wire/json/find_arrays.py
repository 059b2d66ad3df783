"""Where the arrays of a JSON body are, found without reading them.

One scanner walks all but the arrays of a body, and is told of what depth and name the members are that hold them:
`values` and `base64` of a tensor in a gather or in a feature of a lookup, `data` of an input in an inference request.
The arrays are cut out, a library reads the rest (`body_without_arrays`), and `codec_functions.read_elements` reads the
arrays. The scanner looks at no more than it needs and so accepts much that is not JSON; what reads the parts refuses
that, and `grammar_and_duplicate_keys` tells what is no JSON from what is wrong for another reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.wire.json.codec_functions import scan_features, scan_inputs

ArrayPlace: TypeAlias = tuple[int, int, int]
"""The first byte of an array, its end and its kind."""


class FoundArrays(NamedTuple):
    """The arrays of a body, and what is known of the rest.

    `closed` is False where strings or brackets do not close. `members` counts the members of all objects outside the
    arrays, `numbers` says how those there are written (`codec_constants`). `arrays` counts the arrays, of which those
    that there was room for have their `places`.
    """

    closed: bool
    members: int
    numbers: int
    arrays: int
    places: Sequence[ArrayPlace]


def find_inputs(view: NDArray[np.uint8], most: int) -> FoundArrays:
    """The arrays of an inference request, the places of so many of them at most."""
    words = np.empty((most, 3), np.int64)
    closed, members, numbers, arrays = scan_inputs.run(view, words.reshape(-1))
    return FoundArrays(closed, members, numbers, arrays, words[: min(arrays, most)].tolist())


def find_features(view: NDArray[np.uint8], most: int) -> FoundArrays:
    """The arrays of a lookup, the places of so many of them at most."""
    words = np.empty((most, 3), np.int64)
    closed, members, numbers, arrays = scan_features.run(view, words.reshape(-1))
    return FoundArrays(closed, members, numbers, arrays, words[: min(arrays, most)].tolist())
