"""State shared by the processes of a store: the folder's lock, the tensors' locks, and counters in shared memory."""
