"""Where the work runs: the prediction of each route's cost, its calibration, and the pool of threads."""
