"""What a router holds of a large answer: its rows once, charged once, whatever number of shards they come from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from tests.cluster.running import Placed, routing, shards
from tests.http.conftest import Start
from tests.http.server import Server

MIB = 1 << 20
BUDGET = 160 * MIB
TABLE = np.random.default_rng(1).integers(0, 256, (4096, 1024), np.uint8)
ROWS = np.random.default_rng(2).integers(0, len(TABLE), 110 * MIB // TABLE.shape[1])
"""Their answer fits in the budget once, and not twice."""
BINARY = "application/x-safetensors"


def memory(server: Server, what: str) -> int:
    """Bytes of VmRSS, or of VmHWM: the most that there were since that was set back."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    (found,) = [line for line in lines if line.startswith(what)]
    return int(found.split()[1]) << 10


@pytest.mark.slow
def test_an_answer_is_held_and_charged_once(start: Start, tmp_path: Path) -> None:
    flags = "--memory-budget", str(BUDGET), "--kernel", "numpy"
    with shards(start, 2, "--kernel", "numpy") as running:
        placed = Placed(running)
        placed.add("t", TABLE, ranges=4)
        placed.write(tmp_path / "map.json")
        with routing(start, tmp_path / "map.json", *flags) as router, router.client() as client:
            headers = {"content-type": BINARY, "accept": BINARY}

            def ask(rows: np.ndarray) -> bytes:
                body = save({"indices": rows.reshape(-1, 1)})
                answer = client.post("/gathernd", params={"tensor": "t"}, content=body, headers=headers)
                assert answer.status_code == 200, answer.text
                return answer.content

            assert ask(ROWS[:10])
            Path(f"/proc/{router.process.pid}/clear_refs").write_text("5")
            before = memory(router, "VmRSS")
            content = ask(ROWS)
            size = ROWS.size * TABLE.shape[1]
            assert content[-size:] == TABLE[ROWS].tobytes()
            assert memory(router, "VmHWM") - before < size + 24 * MIB
