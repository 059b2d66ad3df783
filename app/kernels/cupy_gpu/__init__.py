"""The GPU kernel, launched by CuPy. No other package imports CuPy."""
