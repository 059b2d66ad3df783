"""The service over HTTP.

python -m benchmarks.http requests|start|overload [--help]
"""

from benchmarks import common
from benchmarks.http import overload, requests, start

if __name__ == "__main__":
    common.main("http", __doc__, {"requests": requests, "start": start, "overload": overload})
