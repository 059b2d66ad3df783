"""A shell in which the blocks of a document run one after the other."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path


class Shell:
    """A bash that runs block after block; what it has started ends with it."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._errors = folder / "stderr.txt"
        self._folder = folder
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                ["bash", "--norc", "-euo", "pipefail"],
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )

    def run(self, code: str) -> str:
        """What the block prints. A command that fails ends the shell."""
        script = self._folder / "block.sh"
        script.write_text(code)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b". ./block.sh < /dev/null; printf '\\0'\n")
        self._process.stdin.flush()
        printed = bytearray()
        while (byte := self._process.stdout.read(1)) != b"\0":
            assert byte, f"{self._errors.read_text(errors='replace')}\nended within\n{code}"
            printed += byte
        return printed.decode()

    def close(self) -> None:
        """End the shell and the services that it started, which must drain within half a minute."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        self._process.communicate(timeout=60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
