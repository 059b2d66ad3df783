"""What the processes on one store share: the folder's lock, locks of tensors, counters in shared memory."""
