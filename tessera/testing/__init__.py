"""Contracts that models, memories, kernels and tasks of other packages can be held to."""
