"""Settings of every test: one thread per worker, no hub, a fresh seed, shapes checked."""

import argparse
import contextlib
import gc
import logging
import os
import sys
from functools import cache

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest

from tests import covering

# Processes that tests start read what this one has compiled.
sys.dont_write_bytecode = False
os.environ["PYTHONDONTWRITEBYTECODE"] = ""
gc.disable()  # until all tests are collected: what is made by then stays


def pytest_configure(config):
    covering.without_grid = "not grid" in config.option.markexpr
    hands_tests_out = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    if not hands_tests_out:  # that process runs no test
        prepare()


@cache
def prepare():
    """Before the library and what it needs are first imported."""
    import torch

    from tests import shape_checks

    shape_checks.install()
    torch.set_num_threads(1)  # fixtures of a module come before `_seeded`, and threads round otherwise
    os.fsync = os.fstat  # no test cuts the power, and each would wait for the disk
    if torch.cuda.is_available():
        return
    # Triton's kernels are tested in its interpreter, which must be chosen before triton is first imported. The choice
    # is taken back at once: tensors on the CPU go to Triton only where a test asks for it (tests/ops/conftest.py).
    os.environ["TRITON_INTERPRET"] = "1"
    with contextlib.suppress(ImportError):
        import triton  # noqa: F401
    del os.environ["TRITON_INTERPRET"]
    # Each seed would wait for a GPU, with a copy of the stack: two milliseconds and ever more memory, at every call.
    for accelerator in ("cuda", "xpu", "mtia"):
        if hasattr(torch, accelerator):
            getattr(torch, accelerator).manual_seed_all = lambda seed: None


# The conftest files of folders that are named on the command line are imported before `pytest_configure`.
command_line = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
command_line.add_argument("-n", "--numprocesses", default="0")
if "PYTEST_XDIST_WORKER" in os.environ or command_line.parse_known_args()[0].numprocesses == "0":
    prepare()


def pytest_collection_finish():
    """Keep what imports have made from the garbage collections: every training ends with one, 0.3 s over all of it."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(10_000, 20, 20)


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
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
