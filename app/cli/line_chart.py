"""Line charts with logarithmic axes, as SVG or as text: what the crossovers of backends need, without a library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import pairwise
from math import ceil, floor, log10
from typing import Final

Point = tuple[float, float]
Series = Mapping[str, Sequence[Point]]
"""Points by the name of their line; coordinates are above 0."""

_COLOURS: Final = ("#1b6ca8", "#d1495b", "#2e933c", "#8a4fbf")
_WIDTH, _HEIGHT = 760, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 24, 48, 56


def svg(title: str, x_label: str, y_label: str, lines: Series, dots: Series | None = None) -> str:
    """An SVG document with a chart of `lines`; `dots` are single points in the colour of the line of the same name."""
    dots = dots or {}
    x_low, x_high = _decades([x for line in (*lines.values(), *dots.values()) for x, _ in line])
    y_low, y_high = _decades([y for line in (*lines.values(), *dots.values()) for _, y in line])

    def x_of(x: float) -> float:
        return _LEFT + (log10(x) - x_low) / (x_high - x_low) * (_WIDTH - _LEFT - _RIGHT)

    def y_of(y: float) -> float:
        return _HEIGHT - _BOTTOM - (log10(y) - y_low) / (y_high - y_low) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="13">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="15">{escape(title)}</text>',
    ]
    for power in range(x_low, x_high + 1):
        x = x_of(10.0**power)
        parts.append(f'<path d="M{x:.1f} {_TOP}V{_HEIGHT - _BOTTOM}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{_number(power)}</text>')
    for power in range(y_low, y_high + 1):
        y = y_of(10.0**power)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_number(power)}</text>')
    parts.append(f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 12}" text-anchor="middle">{escape(x_label)}</text>')
    parts.append(
        f'<text transform="translate(18 {_HEIGHT / 2}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>'
    )
    for number, (name, line) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = "L".join(f"{x_of(x):.1f} {y_of(y):.1f}" for x, y in line)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3.5" fill="{colour}"/>' for x, y in dots.get(name, ())
        ]
        at = _TOP + 14 + 18 * number
        parts.append(f'<path d="M{_LEFT + 12} {at}h20" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{_LEFT + 38}" y="{at + 4}">{escape(name)}</text>')
    parts.append("</svg>\n")
    return "\n".join(parts)


def text(lines: Series, width: int = 72, height: int = 18) -> str:
    """A chart for a terminal: a line is drawn with the first letter of its name, and covers the lines before it."""
    x_low, x_high = _decades([x for line in lines.values() for x, _ in line])
    y_low, y_high = _decades([y for line in lines.values() for _, y in line])
    rows = [[" "] * width for _ in range(height)]
    for name, line in lines.items():
        height_of = _interpolation([(log10(x), log10(y)) for x, y in line])
        for column in range(width):
            y = height_of(x_low + (x_high - x_low) * column / (width - 1))
            if y is not None:
                rows[round((y_high - y) / (y_high - y_low) * (height - 1))][column] = name[0]
    labels = {
        round((y_high - power) / (y_high - y_low) * (height - 1)): _number(power) for power in range(y_low, y_high + 1)
    }
    drawn = [f"{labels.get(at, ''):>8} |{''.join(row)}" for at, row in enumerate(rows)]
    axis = [" "] * (width + 8)
    for power in range(x_low, x_high + 1):
        column, label = round((power - x_low) / (x_high - x_low) * (width - 1)), _number(power)
        axis[column : column + len(label)] = label
    legend = ", ".join(f"{name[0]} {name}" for name in lines)
    return "\n".join([*drawn, f"{'':>8} +{'-' * width}", f"{'':>10}{''.join(axis).rstrip()}", f"{'':>10}{legend}"])


def _interpolation(line: Sequence[Point]) -> Callable[[float], float | None]:
    """The function that gives y at x between the points of `line`, and None beside them."""

    def at(x: float) -> float | None:
        for (x_0, y_0), (x_1, y_1) in pairwise(line):
            if x_0 <= x <= x_1:
                return y_0 + (y_1 - y_0) * ((x - x_0) / (x_1 - x_0) if x_1 > x_0 else 0)
        return None

    return at


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """The exponents of the powers of ten below and above all `values`; they differ."""
    low = floor(log10(min(values)) + 1e-9)
    return low, max(ceil(log10(max(values)) - 1e-9), low + 1)


def _number(power: int) -> str:
    if 0 <= power < 4:
        return str(10**power)
    return f"0.{'0' * (-power - 1)}1" if -4 < power < 0 else f"1e{power}"
