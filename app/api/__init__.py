"""HTTP: the data plane in front, FastAPI behind it for everything that is not a gather."""
