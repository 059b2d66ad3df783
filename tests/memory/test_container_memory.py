"""The memory limit that the process has by its cgroups."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.memory.container_memory import cgroup_limits

V1 = "9:name=systemd:/\n8:pids:/\n4:cpu,memory:/outer/inner\n0::/\n"


@pytest.mark.parametrize(
    ("membership", "files", "limits"),
    [
        ("0::/\n", {"memory.max": "max"}, []),
        ("0::/\n", {"memory.max": "1000"}, [1000]),
        ("0::/system.slice/x.service\n", {"system.slice/x.service/memory.max": "500", "memory.max": "max"}, [500]),
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "300"}, [300]),
        ("0::/told/from/outside\n", {"memory.max": "700"}, [700]),
        (V1, {"memory/memory.limit_in_bytes": "900", "memory/outer/inner/memory.limit_in_bytes": "800"}, [800, 900]),
        ("0::/../outside\n", {}, []),
        ("", {"memory.max": "1000"}, []),
    ],
)
def test_the_memory_limit_is_that_of_the_group_and_those_above(
    tmp_path: Path, membership: str, files: dict[str, str], limits: list[int]
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert cgroup_limits(membership, tmp_path) == limits
