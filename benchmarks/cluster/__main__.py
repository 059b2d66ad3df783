"""Tables of several machines, all of whose processes run on this one.

python -m benchmarks.cluster lookups|scatters|uploads|kills [--help]

`scatters`, `uploads` and `kills` need etcd. Stop what else runs: all processes share the processors and the disk.
"""

from benchmarks import common
from benchmarks.cluster import kills, lookups, scatters, uploads

if __name__ == "__main__":
    parts: dict[str, common.Part] = {"lookups": lookups, "scatters": scatters, "uploads": uploads, "kills": kills}
    common.main("cluster", __doc__, parts)
