"""The CPU's kernels beside other libraries, without a server.

python -m benchmarks.kernels gather|scatter|backward|bags|keys [--help]

It runs under any interpreter that has the service's dependencies, and takes along the peers that it can import.
"""

from benchmarks import common
from benchmarks.kernels import backward, bags, gather, keys, scatter

if __name__ == "__main__":
    parts: dict[str, common.Part] = {
        "gather": gather, "scatter": scatter, "backward": backward, "bags": bags, "keys": keys,
    }  # fmt: skip
    common.main("kernels", __doc__, parts)
