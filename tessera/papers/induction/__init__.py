"""Induction (Bietti et al. 2023): what followed a trigger earlier in the sequence follows it again."""
