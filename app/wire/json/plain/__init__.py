"""The JSON codec in Python: what requests use until the compiled one is ready, and where nothing is compiled."""
