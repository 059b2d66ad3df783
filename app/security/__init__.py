"""API keys, who may do what, and which pages of other origins may ask."""
