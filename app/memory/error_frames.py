"""Frees what an error's traceback keeps alive."""

from __future__ import annotations

import traceback


def clear_frames(error: BaseException) -> None:
    """Drop the local variables of all functions that `error`, or what led to it, has ended.

    The traceback of a refusal leads to the body and to arrays, and often back to itself: a frame names the future that
    keeps the error. Such a cycle would stay, uncharged, until the garbage collector comes by.
    """
    seen = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        traceback.clear_frames(each.__traceback__)
        each = each.__cause__ or each.__context__
