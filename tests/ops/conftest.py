"""Where the Triton kernels run in tests: on the GPU if there is one, else in Triton's interpreter."""

import pytest
import torch


@pytest.fixture
def triton_device(monkeypatch, request):
    """The device for Triton tests. Memory that a kernel leaves unwritten is NaN, so that it shows."""
    pytest.importorskip("triton")
    cuda = torch.cuda.is_available()
    if not cuda:
        if request.node.get_closest_marker("gpu"):
            pytest.skip("needs a CUDA device")
        # The process imported triton with the interpreter chosen (tests/conftest.py); this admits tensors on the CPU.
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    # Only the filling of new memory is wanted; PyTorch ties it to this switch.
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield torch.device("cuda" if cuda else "cpu")
    torch.use_deterministic_algorithms(False)
