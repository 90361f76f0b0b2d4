"""The training loop, run folders that survive a kill; `fit` and curricula for experiments."""
