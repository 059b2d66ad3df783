"""What a refusal must say: the first broken rule in the order of precedence, its code and the place it points to.

The rules are those of the design and of the operators' texts, stated once more and from nothing in `app`. Each is
judged on its own, also where an earlier one is broken. Where two broken rules are of the same stage, or where the
design leaves their order open, either is a right answer.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from math import prod
from typing import Any

from tests.http.forms import COMPLEX, FLOAT8, INTEGERS, TYPES
from tests.http.rules import BadIndex, representable
from tests.parity.items import Array
from tests.parity.messages import Request

INT32_64 = frozenset({"int32", "int64"})
NO_BFLOAT16 = frozenset(TYPES) - {"bfloat16"}


class Stage(IntEnum):
    """The order of precedence: what stands first is told."""

    FIELDS = 0
    DTYPE = 1
    COUNT = 2
    VALUES = 3
    DATA_TYPE = 4
    INDEX_TYPE = 5
    UPDATES_TYPE = 6
    RANK = 7
    PARAMETER = 8
    BATCH_SHAPE = 9
    DEPTH = 10
    UPDATES_SHAPE = 11
    LIMITS = 12
    DEVICE = 13
    INDEX_VALUES = 14


@dataclass(frozen=True)
class Fault:
    """A broken rule, at the place that `what` and `name` say.

    `what` is a `parameter`, a member of a lookup's `feature`, an `array`, or of an array its `dtype`, `shape`, `values`
    or one `item`.
    """

    stage: Stage
    code: str
    what: str
    name: str
    item: int = 0
    bad: tuple[BadIndex, ...] = field(default=(), compare=False)


def first(faults: Iterator[Fault]) -> list[Fault]:
    """The faults of the earliest stage, each of which is a right answer; none for a valid request."""
    found = list(faults)
    return [fault for fault in found if fault.stage == min(each.stage for each in found)]


def of_fields(request: Request, known: set[str], dialects: Any) -> Iterator[Fault]:
    """Members that the route does not know, and values that are none."""
    given = request.parameters
    for name in given.keys() - known:
        yield Fault(Stage.FIELDS, "invalid_field", "parameter", name)
    if "dialect" in given and given["dialect"] not in dialects:
        yield Fault(Stage.FIELDS, "invalid_field", "parameter", "dialect")
    if given.get("device", "auto") not in ("auto", "cpu", "gpu"):
        yield Fault(Stage.FIELDS, "invalid_field", "parameter", "device")
    if given.get("device") == "gpu":
        yield Fault(Stage.DEVICE, "device_unavailable", "parameter", "device")


def of_arrays(request: Request) -> Iterator[Fault]:
    """Names of types, counts of values, and values that the type cannot hold."""
    for name, array in request.arrays.items():
        dtype = request.dtype(name)
        if dtype not in (*TYPES, *FLOAT8):
            yield Fault(Stage.DTYPE, "unsupported_dtype", "dtype", name)
        if name not in request.values:
            continue
        listed = request.values[name]
        # Of a complex type each item is a pair, and nothing else nests as one.
        pairs = [isinstance(value, list) and len(value) == 2 for value in listed]
        if len(listed) != prod(array.shape) or (dtype in COMPLEX and not all(pairs)):
            yield Fault(Stage.COUNT, "element_count_mismatch", "values", name)
        elif dtype in (*TYPES, *FLOAT8):
            wrong = [item for item, value in enumerate(listed) if not representable(dtype, value)]
            if wrong:
                yield Fault(Stage.VALUES, "value_not_representable", "item", name, wrong[0])


def of_type(request: Request, name: str, taken: frozenset[str], stage: Stage) -> Iterator[Fault]:
    """An array of a type that the dialect does not take."""
    if request.dtype(name) in (*TYPES, *FLOAT8) and request.dtype(name) not in taken:
        yield Fault(stage, "unsupported_dtype", "dtype", name)


def of_elements_shapes(
    request: Request, shape: list[int], index_shape: list[int]
) -> Generator[Fault, None, int | None]:
    """What operators on single elements ask of shapes and axis. Returns the axis, counted from the front, or None."""
    rank, axis = len(shape), request.parameters.get("axis", 0)
    if shape and len(index_shape) != rank:
        yield Fault(Stage.RANK, "rank_mismatch", "shape", "indices")
    if not -rank <= axis < rank:
        yield Fault(Stage.PARAMETER, "axis_out_of_range", "parameter", "axis")
        return None
    axis = int(axis) % rank
    equal = request.parameters.get("dialect") == "openvino-6"
    others = [(index_shape[at], shape[at]) for at in range(rank) if at != axis] if len(index_shape) == rank else []
    if any(given != size if equal else given > size for given, size in others):
        yield Fault(Stage.BATCH_SHAPE, "indices_shape_mismatch", "shape", "indices")
    return axis


def of_index_values(indices: Array, axes: list[tuple[int, int]], lows: list[int]) -> Iterator[Fault]:
    """Components that are out of bounds: component j is of the axis and size `axes[j]`, and lows[j] or more."""
    if indices.dtype.name not in INTEGERS:
        return
    bad = []
    for item, value in enumerate(indices.reshape(-1).tolist()):
        (axis, size), low = axes[item % len(axes)], lows[item % len(axes)]
        if not low <= value < size:
            bad.append(BadIndex(item, value, axis, size, [low, size - 1] if size else None))
    if bad:
        yield Fault(Stage.INDEX_VALUES, "index_out_of_bounds", "item", "indices", bad[0].item, tuple(bad))
