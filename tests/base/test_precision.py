"""Names of precisions."""

import pytest

from tessera.base.errors import TesseraError
from tessera.base.precision import autocast


def test_another_name_is_refused():
    """It would be float32 without a word."""
    with pytest.raises(TesseraError, match="precision must be auto, bf16 or fp32; got 'bfloat16'"):
        autocast("bfloat16", "cpu")
