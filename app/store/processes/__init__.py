"""State shared by the processes of a store: the folder's lock, the locks of tensors, counters in shared memory."""
