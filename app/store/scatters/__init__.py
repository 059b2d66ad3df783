"""Changes of rows in place: the log, group commit, checkpoints, and what a start does with a log that was left."""
