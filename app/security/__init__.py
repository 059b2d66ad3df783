"""API keys, authorization, and the checks of Host and Origin."""
