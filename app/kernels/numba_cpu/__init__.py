"""The CPU kernel compiled by Numba."""
