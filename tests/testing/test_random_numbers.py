"""A check leaves the random numbers of whoever calls it: a test behind it must not depend on it."""

from functools import partial

import numpy as np
import pytest
import torch

from tessera.kernels import Gaussian
from tessera.memories.persistent import PersistentMemory
from tessera.papers.associative_retrieval.task import AssociativeRetrieval
from tessera.testing import check_kernel, check_memory, check_model, check_state, check_task
from tessera.testing.models import LAWS
from tests.models import contract
from tests.tasks.cases import case_of


def memory():
    return PersistentMemory(12, 2, 5, 2, "gaussian")


def wrong_memory():
    return torch.nn.Dropout(torch.rand(()).item())


CHECKS = {
    "kernel": lambda: check_kernel(Gaussian()),
    "memory": lambda: check_memory(memory, 12, grows=False),
    "wrong memory": lambda: check_memory(wrong_memory, 12),
    "model": lambda: check_model(**vars(contract.CASES["lstm"])),
    "wrong model": lambda: check_model(contract.v1, registered=True, state="no_such_state"),
    "any model": partial(check_state, contract.v1()),
    "task": lambda: check_task(case_of(AssociativeRetrieval("remember", 8))),
    "a model's law": lambda: LAWS["the_future_has_no_influence"](contract.CASES["v1 published"]),
    "a model's case": contract.CASES["v1 published"].build,
}


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_leaves_the_random_numbers(name):
    torch.manual_seed(7)
    np.random.seed(7)
    before, drawn = torch.get_rng_state(), np.random.get_state()
    try:
        CHECKS[name]()
    except AssertionError:
        assert "wrong" in name
    assert torch.equal(torch.get_rng_state(), before)
    assert all(np.array_equal(*pair) for pair in zip(np.random.get_state(), drawn))
