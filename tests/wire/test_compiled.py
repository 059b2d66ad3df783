"""What is compiled at the first start, and that the next start finds it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app import compile_request_functions

pytestmark = pytest.mark.slow
WARM = """
import json, sys
from pathlib import Path
from numba.core.dispatcher import Dispatcher
from app import compile_request_functions

compile_request_functions.configure(Path(sys.argv[1]))
compile_request_functions.warm()
modules = [module for name, module in sys.modules.items() if name.startswith("app.json_text.")]
found = {value for module in modules for value in vars(module).values() if isinstance(value, Dispatcher)}
print(json.dumps({
    "signatures": {one.py_func.__qualname__: list(map(str, one.signatures)) for one in found},
    "hits": sum(sum(each.compiled.stats.cache_hits.values()) for each in compile_request_functions.FUNCTIONS),
}))
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder for compiled code."""
    return tmp_path_factory.mktemp("cache")


def warm(cache: Path) -> Any:
    """What a process says that has compiled all that requests use, or found it in the folder."""
    command = [sys.executable, "-c", WARM, str(cache)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.fixture(scope="module")
def first(cache: Path) -> Any:
    """The process that finds the folder empty."""
    return warm(cache)


def test_compiled_code_is_kept_and_found_again(first: Any, cache: Path) -> None:
    assert first["hits"] == 0
    assert warm(cache)["hits"] == len(compile_request_functions.FUNCTIONS)
    (folder,) = cache.iterdir()
    assert folder.name.startswith("codec-")
