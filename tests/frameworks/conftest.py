from __future__ import annotations

import pickle
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gathernd import Client
from tests.http.conftest import start
from tests.http.server import Server, serving
from tests.needs import in_environment

__all__ = ["start"]
Ask = Callable[..., Any]
"""Ask a function of `answers` by its name: its answer, or the text of its exception."""


@pytest.fixture(scope="session")
def ask() -> Iterator[Ask]:
    """One process of the environment with the frameworks, which imports each when it is asked first."""
    python = in_environment(".venv-frameworks/bin/python", "frameworks")
    program = Path(__file__).with_name("answers.py")
    with subprocess.Popen([str(python), str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        questions, answers = process.stdin, process.stdout

        def asked(name: str, *arguments: Any) -> Any:
            pickle.dump((name, arguments), questions)
            questions.flush()
            return pickle.load(answers)

        yield asked
        questions.close()
        assert process.wait(60) == 0


@pytest.fixture(scope="session", params=["numba", "numpy"])
def service(request: pytest.FixtureRequest, warmed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a server with each of the kernels in turn."""
    with serving(warmed, tmp_path_factory.mktemp("frameworks"), "--kernel", request.param) as server:
        assert isinstance(server, Server)
        with Client(server.url) as client:
            yield client
