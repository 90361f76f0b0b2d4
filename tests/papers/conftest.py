"""Experiments read short books where a test asks for them; the command line as a function."""

from tests.cli.conftest import done, refused, tessera  # noqa: F401 (fixtures)
from tests.short_books import beginnings, short_books  # noqa: F401 (fixtures)
