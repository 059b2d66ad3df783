"""Frees what an error's traceback keeps alive."""

from __future__ import annotations


def drop_tracebacks(error: BaseException) -> None:
    """Let go of the tracebacks of `error` and of what led to it, once it is handled.

    The traceback of a refusal leads to the body and to arrays, and often back to itself: a frame names the future that
    keeps the error. Such a cycle would stay, uncharged, until the garbage collector comes by. The frames themselves are
    left alone: several requests may meet one error, and some of them may still be answering.
    """
    seen = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        each.__traceback__ = None
        each = each.__cause__ or each.__context__
