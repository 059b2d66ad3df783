"""Draw a gather of a matrix as SVG: data, indices and output as grids, with one color per selected place."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

CELL = 44
GAP = 90
COLOURS = ("#8dd3c7", "#fdb462", "#bebada", "#fb8072", "#80b1d3", "#b3de69", "#fccde5", "#ffed6f")
"""Light enough for black text. They repeat from the ninth place on."""


def draw(data: NDArray[Any], indices: NDArray[Any], output: NDArray[Any]) -> str:
    """Return an SVG of the GatherND of a matrix `data`. `indices` has shape [n, 1] for rows or [n, 2] for items."""
    tuples = [tuple(int(index) % size for index, size in zip(row, data.shape, strict=False)) for row in indices]
    colours = {place: COLOURS[count % len(COLOURS)] for count, place in enumerate(dict.fromkeys(tuples))}

    def of_data(row: int, column: int) -> str:
        return colours.get((row,)) or colours.get((row, column)) or "white"

    def of_tuple(row: int, _: int) -> str:
        return colours[tuples[row]]

    parts, left = [], 10
    for title, values, colour_of in (
        ("data", data, of_data),
        ("indices", indices, of_tuple),
        ("output", output, of_tuple),
    ):
        grid = values.reshape(len(values), -1)
        parts.append(f'<text x="{left}" y="20" font-weight="bold">{title} {escape(str(list(values.shape)))}</text>')
        parts += _cells(grid, left, colour_of)
        left += CELL * grid.shape[1] + GAP
    height = 40 + CELL * max(len(data), len(indices))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left}" height="{height}" font-family="sans-serif" '
        f'font-size="14"><rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>'
    )


def _cells(grid: NDArray[Any], left: int, colour_of: Callable[[int, int], str]) -> list[str]:
    cells = []
    for (row, column), value in np.ndenumerate(grid):
        x, y = left + CELL * column, 30 + CELL * row
        fill = colour_of(row, column)
        cells.append(f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="{fill}" stroke="#555"/>')
        cells.append(f'<text x="{x + CELL / 2:g}" y="{y + CELL / 2 + 5:g}" text-anchor="middle">{value:g}</text>')
    return cells
