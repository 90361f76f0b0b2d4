"""The command line as a function."""

from tests.cli.conftest import refused, tessera  # noqa: F401 (fixtures)
