"""The memory budget, and how memory is allocated and returned to the system."""
