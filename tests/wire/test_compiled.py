"""What is compiled at the first start, and what only compiled code does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from app.json_text.write_elements import write_singles

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


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e-5, "1e-5"),
        (1.5e-5, "1.5e-5"),
        (0.0001, "0.0001"),
        (0.00012345, "0.00012345"),
        (16777216, "16777216.0"),
        (123456.75, "123456.75"),
        (1e15, "1000000000000000.0"),
        (1e16, "1e16"),
        (1.25e20, "1.25e20"),
        (3.4028235e38, "3.4028235e38"),
        (1e-45, "1e-45"),
        (1.1754944e-38, "1.1754944e-38"),
        (9.999999e8, "999999900.0"),
        (99999999, "100000000.0"),
        (0.3, "0.3"),
        (-7.25, "-7.25"),
    ],
)
def test_compiled_code_writes_float32_in_these_forms(value: float, text: str, compiled: Path) -> None:
    """Those of the sibling in Python may differ, and read back as the same."""
    written = np.empty(100, np.uint8)
    size = write_singles.run(np.array([value], np.float32).view(np.uint8), False, written)
    assert written[:size].tobytes().decode() == f"[{text}]"
