"""Sampling, prompts, and memories that were read before."""
