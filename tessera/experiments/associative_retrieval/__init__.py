"""Associative retrieval: ARMT, RMT, PRMT, Mamba and mosaics on remember and rewrite."""
