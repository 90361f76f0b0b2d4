"""Modules that store and recall."""
