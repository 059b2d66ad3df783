"""Frees the arrays and bodies that an error's traceback keeps alive."""

from __future__ import annotations


def drop_tracebacks(error: BaseException) -> None:
    """Drop the tracebacks of `error` and of its causes, once it is handled.

    A traceback refers to the frames of a request, and so to its body and arrays; often a frame refers back to the
    error. Such a cycle would stay in memory, uncharged, until a garbage collection. The frames themselves are not
    cleared: several requests may meet one error, and some of them may still be answering.
    """
    seen = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        each.__traceback__ = None
        each = each.__cause__ or each.__context__
