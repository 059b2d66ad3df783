"""The GPU kernel, launched by CuPy; the only package that imports CuPy."""
