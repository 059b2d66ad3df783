"""The memory budget, and how memory is taken from the system and given back."""
