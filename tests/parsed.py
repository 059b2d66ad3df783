"""Sources as trees, safe from CPython's defect 106905 (mended in 3.11.10 and 3.12.4): a collection of garbage that runs
while a tree is made may itself, or through another thread, make one, and both end in a SystemError.
"""

from __future__ import annotations

import ast
import gc


def parsed(source: str) -> ast.Module:
    """The tree of a source, made while nothing is collected."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        if was_on:
            gc.enable()
