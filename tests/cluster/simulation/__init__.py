"""A cluster in one process: the parts of `app/cluster` on a simulated clock, network, disks and record store.

One seed, one schedule: all that is random comes from it, so that a schedule that fails can be run again.
"""
