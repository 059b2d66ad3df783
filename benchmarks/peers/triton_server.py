"""Triton with its Python backend, as the package nvidia-pytriton of another environment has it.

The models are in `triton/`: `gathernd` (inline data), `items` (a resident table) and `bags` (26 tables, with torch).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import common

_MODELS = Path(__file__).parent / "triton"
MISSING = "Triton is left out: --triton names the Python of an environment with nvidia-pytriton"


@contextmanager
def triton_server(
    python: str, *models: str, environ: dict[str, str] | None = None, grpc_port: int | None = None
) -> Iterator[int]:
    """Serve `models` from the environment of the interpreter `python`; yields the port of HTTP."""
    home = Path(python).parent.parent
    (server,) = home.glob("lib/python3*/site-packages/pytriton/tritonserver")
    wanted = {
        **(environ or {}),
        "LD_LIBRARY_PATH": f"{sys.base_prefix}/lib:{os.environ.get('LD_LIBRARY_PATH', '')}",
        "PYTHONPATH": str(server.parent.parent),
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
    }

    def command(port: int) -> list[str]:
        return [
            str(server / "bin/tritonserver"),
            f"--model-repository={_MODELS}",
            f"--backend-directory={server / 'backends'}",
            "--model-control-mode=explicit",
            *(f"--load-model={model}" for model in models),
            f"--http-port={port}",
            *(["--allow-grpc=false"] if grpc_port is None else [f"--grpc-port={grpc_port}"]),
            "--allow-metrics=false",
        ]

    with common.serving(command, environ=wanted, ready="/v2/health/ready", limit=180) as port:
        yield port
