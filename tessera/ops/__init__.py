"""Tensor functions with state passed in and returned; one folder per operation."""
