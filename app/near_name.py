"""The name that was probably meant, for the hints of errors."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher
from heapq import nlargest
from itertools import islice
from typing import Final

MOST_NAMES: Final = 1000
"""Names that are looked at; the comparison of one takes a few microseconds."""
MOST_CHARACTERS: Final = 128
"""Characters of a name; a longer one is near none."""
_MOST_COMPARED: Final = 200
_MOST_COMPARED_WELL: Final = 8
_ALIKE: Final = 0.65
"""Twice the characters in common, in their order, over the characters of both, from which on two names are alike."""
_SHORT: Final = 3
_ALIKE_SHORT: Final = 0.75
"""The same for names of up to `_SHORT` characters."""
_LONG: Final = 32
"""Of names with more characters only beginnings and ends are compared: to compare all takes the square of them."""
_SHOWN: Final = 80
_SEPARATORS: Final = str.maketrans("", "", " _-.\t\r\n")


def near_name(given: str, names: Iterable[str]) -> str | None:
    """The one of `names` that is most like `given`, None where none is much like it.

    Upper and lower case, underscores, hyphens, dots and spaces make no difference. Of very many names the first are
    looked at.
    """
    if not given or len(given) > MOST_CHARACTERS:
        return None
    folded = _folded(given)
    characters = set(folded)
    found: dict[str, str] = {}
    for name in islice(names, MOST_NAMES):
        candidate = _folded(name)
        if candidate == folded:
            return name
        # Of thousands of names few are left to be compared: those of about this length with about these characters.
        if (
            len(found) < _MOST_COMPARED
            and abs(len(candidate) - len(folded)) <= len(folded) // 2 + 2
            and 3 * len(characters.intersection(candidate)) >= 2 * (len(characters) - 1)
        ):
            found.setdefault(candidate, name)
    if len(folded) > _LONG:
        best = max(found, key=lambda candidate: _ends_alike(candidate, folded), default="")
        return found[best] if best and _ends_alike(best, folded) >= _ALIKE else None
    matcher = SequenceMatcher(b=folded, autojunk=False)

    def likeness(candidate: str, exact: bool = False) -> float:
        matcher.set_seq1(candidate)
        return matcher.ratio() if exact else matcher.quick_ratio()

    likely = nlargest(_MOST_COMPARED_WELL, found, likeness)
    best = max(likely, key=lambda candidate: likeness(candidate, True), default="")
    return found[best] if best and likeness(best, True) >= (_ALIKE if len(folded) > _SHORT else _ALIKE_SHORT) else None


def _ends_alike(one: str, other: str) -> float:
    """Twice the characters that both begin with, and those that both end with, over the characters of both."""
    most = min(len(one), len(other))
    begin = _common(one, other, most)
    end = _common(one[::-1], other[::-1], most - begin)
    return 2 * (begin + end) / (len(one) + len(other))


def _common(one: str, other: str, most: int) -> int:
    """How many characters, `most` at most, two texts both begin with."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _folded(name: str) -> str:
    return name.lower().translate(_SEPARATORS)


def instead_of(given: str, near: str) -> str:
    """How a hint names what to write in place of what was given; a long text is cut."""
    return f"Write '{near}' in place of {shorten(given)!r}"


def shorten(text: str) -> str:
    """A text of the request for a hint, cut to 80 characters."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
