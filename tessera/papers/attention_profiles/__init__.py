"""Attention profiles as an experiment."""
