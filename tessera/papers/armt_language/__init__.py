"""ARMT on language: bits per byte of each segment, with a memory, without one, and with the whole context."""
