"""The container's entry point: brings the image's compiled kernels into reach, then becomes `gathernd`.

Numba's cache is keyed on the CPU, and it insists on a directory that it can write to. The image therefore carries code
for two levels of CPU (see the Dockerfile), and this script, before Numba is imported anywhere, names the level that
the host has and copies the image's cache into GATHERND_CACHE_DIR, where a mounted volume may be empty.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

SEED = Path("/opt/gathernd/cache")
CPUINFO = Path("/proc/cpuinfo")
# What x86-64-v3 adds to the levels below it, as the kernel spells it (lzcnt is called abm).
X86_64_V3 = {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"}


def cpu_level(machine: str, cpuinfo: str) -> str:
    """The best level that the image has code for: "x86-64-v3", or "generic", which every CPU runs."""
    flags: set[str] = set()
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            flags = set(value.split())
            break
    return "x86-64-v3" if machine == "x86_64" and flags >= X86_64_V3 else "generic"


def numba_target(environ: Mapping[str, str], level: str) -> dict[str, str]:
    """The variables that make Numba compile for `level` and look for that in its cache; a name that is set is kept."""
    if "NUMBA_CPU_NAME" in environ:
        return {}
    return {"NUMBA_CPU_NAME": level, "NUMBA_CPU_FEATURES": ""}


def seed_cache(seed: Path, cache: Path) -> list[str]:
    """Copy the folders of `seed` that `cache` lacks, each whole or not at all; returns their names."""
    copied = []
    for folder in sorted(seed.iterdir()):
        target = cache / folder.name
        if not folder.is_dir() or target.exists():
            continue
        # A name of its own: in containers process ids repeat, and one that was killed may have left a part of a copy.
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=cache))
        try:
            shutil.copytree(folder, aside, dirs_exist_ok=True)
            aside.rename(target)
        except OSError:
            shutil.rmtree(aside)
            # another container on the same volume may have been faster
            if not target.exists():
                raise
        else:
            copied.append(folder.name)
    return copied


def main() -> None:
    """Prepare the cache and run `gathernd` with this process's arguments in this process's place."""
    cache = Path(os.environ["GATHERND_CACHE_DIR"])
    try:
        cache.mkdir(parents=True, exist_ok=True)
        seed_cache(SEED, cache)
    except OSError as error:
        sys.exit(
            f"GATHERND_CACHE_DIR must be a folder that user {os.getuid()} can write to (a volume or tmpfs): {error}"
        )
    os.environ.update(numba_target(os.environ, cpu_level(platform.machine(), CPUINFO.read_text())))
    os.execvp("gathernd", ["gathernd", *sys.argv[1:]])  # noqa: S606, S607  (no shell; found on the image's PATH)


if __name__ == "__main__":
    main()
