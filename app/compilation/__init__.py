"""Support for code that Numba compiles, and for the plain functions that the compiled code replaces."""
