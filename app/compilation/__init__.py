"""Support for code compiled with Numba, and for the plain functions that the compiled code replaces."""
