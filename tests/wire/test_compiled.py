"""What is compiled at the first start, and what only compiled code does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

COUNT = """
import json, sys
from pathlib import Path
from numba.core.dispatcher import Dispatcher
from app import compile_request_functions

compile_request_functions.configure(Path(sys.argv[1]))
compile_request_functions.warm()
modules = [module for name, module in sys.modules.items() if name.startswith("app.json_text.")]
found = {value for module in modules for value in vars(module).values() if isinstance(value, Dispatcher)}
print(json.dumps({one.py_func.__qualname__: list(map(str, one.signatures)) for one in found}))
"""


@pytest.mark.slow
def test_each_function_of_the_json_codec_is_compiled_for_one_signature(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COUNT, str(tmp_path)]
    compiled = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert len(compiled) > 30
    assert any(compiled.values())
    assert {name: signatures for name, signatures in compiled.items() if len(signatures) > 1} == {}
