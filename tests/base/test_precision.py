"""Names of precisions."""

from tessera.base.precision import autocast
from tests.refusals import refused


def test_another_name_is_refused():
    """It would be float32 without a word."""
    refused("precision must be auto, bf16 or fp32; got 'bfloat16'", autocast, "bfloat16", "cpu")
