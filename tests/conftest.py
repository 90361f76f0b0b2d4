"""Settings of every test: one thread per worker, no hub, a fresh seed, shapes checked."""

import contextlib
import gc
import logging
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

from tests import shape_checks

shape_checks.install()  # before the library is first imported
# Processes that tests start read what this one has compiled.
sys.dont_write_bytecode = False
os.environ["PYTHONDONTWRITEBYTECODE"] = ""

if not torch.cuda.is_available():
    # Triton's kernels are tested in its interpreter, which must be chosen before triton is first imported. The choice
    # is taken back at once: tensors on the CPU go to Triton only where a test asks for it (tests/ops/conftest.py).
    os.environ["TRITON_INTERPRET"] = "1"
    with contextlib.suppress(ImportError):
        import triton  # noqa: F401
    del os.environ["TRITON_INTERPRET"]


def pytest_collection_finish():
    """Keep what imports have made from the garbage collections: every training ends with one, 0.3 s over all of it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


if not torch.cuda.is_available():
    # Each seed would wait for a GPU, with a copy of the stack: two milliseconds and ever more memory, at every call.
    for accelerator in ("cuda", "xpu", "mtia"):
        if hasattr(torch, accelerator):
            getattr(torch, accelerator).manual_seed_all = lambda seed: None


class Heard(logging.Handler):
    """The records of all loggers, and their text."""

    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)

    @property
    def text(self):
        return "".join(f"{self.format(record)}\n" for record in self.records)


@pytest.fixture
def heard():
    """In place of pytest's `caplog`, which costs every test five milliseconds and is switched off in pyproject.toml."""
    handler = Heard()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


@pytest.fixture(autouse=True)
def _seeded():
    torch.set_num_threads(1)
    torch.manual_seed(0)
