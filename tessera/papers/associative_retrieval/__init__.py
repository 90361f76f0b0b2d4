"""Associative retrieval (ARMT paper, section 3): remember all pairs, or rewrite values and recall the latest."""
