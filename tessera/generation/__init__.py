"""Sampling and prompts."""
