"""The command line as a function, and short books where a test asks for them."""

from tests.cli.conftest import done, refused, tessera  # noqa: F401 (fixtures)
from tests.short_books import beginnings, short_books  # noqa: F401 (fixtures)
