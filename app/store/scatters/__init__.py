"""Change rows in place: the redo log, group commit, checkpoints, and recovery from the logs after a crash."""
