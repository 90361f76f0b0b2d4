"""What no default of PyTorch may change."""

import torch


def expect_the_same_with_other_defaults(results):
    """`results()`, some tensors on the CPU: as beside `torch.set_default_device("cuda")`, and another default dtype."""
    expected = results()
    with torch.device("meta"):
        assert all(map(torch.equal, results(), expected))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert all(map(torch.equal, results(), expected))
    finally:
        torch.set_default_dtype(before)
