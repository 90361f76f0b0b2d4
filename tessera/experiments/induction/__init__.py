"""Induction as an experiment."""
