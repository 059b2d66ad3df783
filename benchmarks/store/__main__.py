"""The store of one machine: uploads, imports, and changes of rows.

python -m benchmarks.store uploads|imports|changes [--help]
"""

from benchmarks import common
from benchmarks.store import changes, imports, uploads

if __name__ == "__main__":
    common.main("store", __doc__, {"uploads": uploads, "imports": imports, "changes": changes})
