"""The memory budget, and the allocation of memory and its return to the system."""
