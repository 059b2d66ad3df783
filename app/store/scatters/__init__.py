"""Changes to rows in place: the redo log, group commit, checkpoints, and recovery from the logs that a crash has
left.
"""
