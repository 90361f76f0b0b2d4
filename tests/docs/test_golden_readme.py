"""tests/golden/README.md names every family, and files that exist."""

import re

from tests.golden_files import FOLDER

ROWS = [line for line in (FOLDER / "README.md").read_text().splitlines() if re.match(r"\| `[A-Z]_", line)]


def test_every_family_has_a_row_and_its_tests_exist():
    assert [row.split("`")[1] for row in ROWS] == sorted(path.name for path in FOLDER.iterdir() if path.is_dir())
    files = [name for row in ROWS for name in re.findall(r"`([a-z_/]+/test_\w+\.py)`", row)]
    assert files
    assert all((FOLDER.parent / name).is_file() for name in files)
