"""The operators' specifications: pure functions from types and shapes to a plan, or an error that cites its clause."""
