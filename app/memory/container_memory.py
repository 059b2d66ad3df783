"""The process's memory limit: that of its container or systemd unit (cgroups v1 or v2), or the machine's memory.

The default memory budget is half of this limit (`GATHERND_MEMORY_BUDGET` in `app.settings`).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def memory_limit() -> int:
    """Return how many bytes this process may use: the lowest limit of its cgroups, or the machine's memory."""
    try:
        limits = cgroup_limits(Path("/proc/self/cgroup").read_text(), Path("/sys/fs/cgroup"))
    except OSError:
        limits = []
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *limits])


def cgroup_limits(membership: str, root: Path) -> list[int]:
    """Return the memory limits of the cgroups in `membership` (/proc/self/cgroup) and of all their parents.

    Handles both versions of cgroups. A container may see its own cgroup as the root of the tree, while `membership` has
    the path as seen from outside the container. Folders in the path that do not exist are therefore skipped.
    """
    found = []
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(top):
                with suppress(OSError):
                    text = (folder / name).read_text().strip()
                    found += [int(text)] if text.isdigit() else []
    return found
