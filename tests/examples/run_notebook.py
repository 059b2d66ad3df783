"""Run a notebook in its folder and write it, with its outputs: `run_notebook.py NOTEBOOK OUTPUT`.

Runs in the environment .venv-docs, which has nbclient.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

source, target = map(Path, sys.argv[1:])
notebook = nbformat.read(source, as_version=4)
with TemporaryDirectory() as folder:
    # The kernel is spoken to by sockets of the file system, which nobody else on the machine may open.
    config = Config({"KernelManager": {"transport": "ipc", "ip": f"{folder}/kernel"}})
    place = {"metadata": {"path": str(source.parent)}}
    client = NotebookClient(
        notebook, config=config, kernel_name="python3", timeout=60, resources=place, record_timing=False
    )
    client.execute()
nbformat.write(notebook, target)
