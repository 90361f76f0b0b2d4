"""The command line as a function."""

from tests.cli.conftest import refused, tessera, typed  # noqa: F401 (fixtures)
