"""The process of a service's link to a coordinator on Ray: `python -m app.cluster.ray_link ADDRESS`."""

from __future__ import annotations

import os
import sys
import time
from typing import Final

from app.cluster.placement import ActorLink, connect
from app.cluster.process_link import serve_link

AGAIN_S: Final = 1.0


def main(address: str) -> None:
    """Connect, and carry out what standard input asks until that ends."""
    asked = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    try:
        connect(address)
    except OSError as error:
        sys.stderr.write(f"gathernd: {error}\n")
        time.sleep(AGAIN_S)
        sys.exit(1)
    serve_link(ActorLink(), asked, answers)


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)
