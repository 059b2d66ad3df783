"""Scatters and gathers while a cluster's processes are killed, stopped and cut off from each other.

Every process has a network namespace of its own; `python -m tests.cluster.chaos` runs all of it.
"""
