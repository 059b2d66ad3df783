"""Changes to rows in place: the redo log, group commit, checkpoints, and recovery from logs left by a crash."""
