"""Decides where work runs: the decision by size, the measured rates that it uses, and the thread pool."""
