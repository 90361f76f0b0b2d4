"""Generators of examples with scores and oracles."""
