"""Find the name that was probably meant, for hints in errors."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher
from heapq import nlargest
from itertools import islice
from typing import Final

MOST_NAMES: Final = 1000
"""Maximum number of names considered. Comparing one takes a few microseconds."""
MOST_CHARACTERS: Final = 128
"""Names with more characters than this get no suggestion."""
_MOST_COMPARED: Final = 200
_MOST_COMPARED_WELL: Final = 8
_ALIKE: Final = 0.65
"""Lowest similarity of a suggestion: twice the number of common characters, in order, over the total length of both
names.
"""
_SHORT: Final = 3
_ALIKE_SHORT: Final = 0.75
"""The same bound for names of up to `_SHORT` characters."""
_LONG: Final = 32
"""For names with more characters, only beginnings and ends are compared, because a full comparison takes quadratic
time.
"""
_SHOWN: Final = 80
_SEPARATORS: Final = str.maketrans("", "", " _-.\t\r\n")


def near_name(given: str, names: Iterable[str]) -> str | None:
    """Return the entry of `names` that is most similar to `given`, or None if none is similar enough.

    Case, underscores, hyphens, dots and spaces are ignored. Only the first MOST_NAMES names are considered.
    """
    if not given or len(given) > MOST_CHARACTERS:
        return None
    folded = _normalize(given)
    characters = set(folded)
    found: dict[str, str] = {}
    for name in islice(names, MOST_NAMES):
        candidate = _normalize(name)
        if candidate == folded:
            return name
        # Skip most names cheaply: compare only those with a similar length and similar characters.
        if (
            len(found) < _MOST_COMPARED
            and abs(len(candidate) - len(folded)) <= len(folded) // 2 + 2
            and 3 * len(characters.intersection(candidate)) >= 2 * (len(characters) - 1)
        ):
            found.setdefault(candidate, name)
    if len(folded) > _LONG:
        best = max(found, key=lambda candidate: _similarity_of_ends(candidate, folded), default="")
        return found[best] if best and _similarity_of_ends(best, folded) >= _ALIKE else None
    matcher = SequenceMatcher(b=folded, autojunk=False)

    def likeness(candidate: str, exact: bool = False) -> float:
        matcher.set_seq1(candidate)
        return matcher.ratio() if exact else matcher.quick_ratio()

    likely = nlargest(_MOST_COMPARED_WELL, found, likeness)
    best = max(likely, key=lambda candidate: likeness(candidate, True), default="")
    return found[best] if best and likeness(best, True) >= (_ALIKE if len(folded) > _SHORT else _ALIKE_SHORT) else None


def _similarity_of_ends(one: str, other: str) -> float:
    """Return twice the length of the common prefix and suffix, over the total length of both texts."""
    most = min(len(one), len(other))
    begin = _common_prefix(one, other, most)
    end = _common_prefix(one[::-1], other[::-1], most - begin)
    return 2 * (begin + end) / (len(one) + len(other))


def _common_prefix(one: str, other: str, most: int) -> int:
    """Return the length of the common prefix of two texts, at most `most`."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _normalize(name: str) -> str:
    return name.lower().translate(_SEPARATORS)


def replacement_text(given: str, near: str) -> str:
    """Return the part of a hint that says what to write instead of `given`, which is shortened."""
    return f"Write '{near}' in place of {shorten(given)!r}"


def shorten(text: str) -> str:
    """Shorten a text from the request to 80 characters for a hint."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
