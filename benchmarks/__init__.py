"""Benchmarks: scripts to run by hand, one for each question, on what benchmarks.common gives them."""
