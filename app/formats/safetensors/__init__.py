"""Safetensors bodies and their queries."""
