"""Experiments read short books where a test asks for them."""

from tests.short_books import beginnings, short_books  # noqa: F401 (fixtures)
