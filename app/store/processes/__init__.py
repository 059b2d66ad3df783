"""State shared by a store's processes: the lock on the folder, the locks on tensors, and counters in shared memory."""
