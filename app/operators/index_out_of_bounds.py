"""The error for indices that are out of bounds. It lists the components, their positions and the allowed ranges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.errors import REPORTED_PLACES, GatherError, Place, Rule
from app.operators.dialects import Dialect
from app.tensors.tensor import Tensor, coordinates

_ROWS_PER_BLOCK = 1 << 18
"""Number of tuples that are checked at a time. It bounds the memory."""


def index_error(
    dialect: Dialect, data_shape: Sequence[int], indices: Tensor, first_axis: int, depth: int
) -> GatherError:
    """Return the full error for indices in which a kernel found an invalid component (GatherND clause 5).

    Component j of a tuple of length `depth` belongs to data axis first_axis + j.
    """
    sizes = data_shape[first_axis : first_axis + depth]
    places, total = places_out_of_bounds(indices, sizes, dialect.wrap, first_axis)
    hint = _hint_for_scatter(places[0]) if dialect.reductions else None
    return error_at(places, total, f"data axis {places[0].axis}", dialect.rules["index_out_of_bounds"], hint)


def places_out_of_bounds(
    indices: Tensor, sizes: Sequence[int], wrap: bool, first_axis: int = 0
) -> tuple[list[Place], int]:
    """Return the first ten components out of bounds, in row-major order, and the total number of such components.

    `sizes` are the sizes of the axes to which the components of a tuple belong. The check works in blocks, so that the
    memory it uses is bounded.
    """
    depth = len(sizes)
    lows = [-size if wrap else 0 for size in sizes]
    rows = indices.array.reshape(-1, depth)
    total = 0
    found: list[int] = []
    for start in range(0, len(rows), _ROWS_PER_BLOCK):
        block = rows[start : start + _ROWS_PER_BLOCK]
        bad = np.empty(block.shape, dtype=bool)
        for j, (low, size) in enumerate(zip(lows, sizes, strict=True)):
            bad[:, j] = (block[:, j] < low) | (block[:, j] >= size)
        total += int(np.count_nonzero(bad))
        if len(found) < REPORTED_PLACES:
            items = np.flatnonzero(bad)[: REPORTED_PLACES - len(found)]
            found.extend((items + start * depth).tolist())
    places = []
    for item in found:
        j = item % depth
        size = sizes[j]
        places.append(
            Place(
                pointer=indices.locate(item),
                position=coordinates(item, indices.shape),
                value=int(indices.array[item]),
                axis=first_axis + j,
                size=size,
                allowed=(lows[j], size - 1) if size else None,
            )
        )
    return places, total


def error_at(places: Sequence[Place], total: int, axis: str, rule: Rule, hint: str | None) -> GatherError:
    """Return the error for `total` components out of bounds. `axis` is the name of the axis of the first one."""
    first = places[0]
    name = f"indices[{','.join(map(str, first.position or ()))}]"
    bounds = f"outside [{first.allowed[0]}, {first.allowed[1]}]" if first.allowed else "no valid index"
    more = f", and {total - 1} more" if total > 1 else ""
    return GatherError(
        "index_out_of_bounds",
        f"{name} = {first.value} is {bounds} on {axis} (size {first.size}){more}",
        places=places,
        total=total,
        rule=rule,
        hint=hint,
    )


def _hint_for_scatter(place: Place) -> str:
    """Return the hint for a scatter, which has no `out_of_bounds` field.

    Gathers use the hint of the error catalogue.
    """
    if place.allowed is None:
        return f"Send no index for axis {place.axis}: it has size {place.size}, so no index is valid."
    low, high = place.allowed
    size = f"since axis {place.axis} of data has size {place.size}"
    return f"Use an index from {low} to {high} at {place.pointer}, {size}."
