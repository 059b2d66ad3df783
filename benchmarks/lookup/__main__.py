"""Lookups in resident tables over HTTP: bags of many tables, and rows by key.

python -m benchmarks.lookup bags|keys [--help]
"""

from benchmarks import common
from benchmarks.lookup import bags, keys

if __name__ == "__main__":
    common.main("lookup", __doc__, {"bags": bags, "keys": keys})
