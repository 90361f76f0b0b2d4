"""Passwords hidden in books: the task, and the demo that trains a mosaic on it and asks it about two novels."""
