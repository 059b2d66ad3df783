"""Safetensors bodies, and the query that goes with them."""
