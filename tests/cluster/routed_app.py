"""A router whose coordinator is at a Unix socket: `python -m tests.cluster.routed_app SOCKET FLAGS`."""

from __future__ import annotations

import sys

from app.cluster.process_link import ProcessLink
from app.main import create_app
from app.server_from_settings import serve
from app.settings import Settings

RELAY = """
import os, socket, sys, threading
link = socket.socket(socket.AF_UNIX)
link.connect(sys.argv[1])
def answer():
    while piece := link.recv(65536):
        os.write(1, piece)
    os._exit(0)
threading.Thread(target=answer, daemon=True).start()
while piece := os.read(0, 65536):
    link.sendall(piece)
"""

if __name__ == "__main__":
    chosen = Settings(_cli_parse_args=sys.argv[2:])
    serve(chosen, create_app(chosen, coordinator=ProcessLink([sys.executable, "-c", RELAY, sys.argv[1]])))
