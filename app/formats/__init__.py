"""The body formats: they parse requests from bytes and write responses as bytes.

They are independent of the operators.
"""
