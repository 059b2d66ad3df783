"""Support for code that Numba compiles, and for the plain functions that it takes over from."""
