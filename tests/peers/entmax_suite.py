"""The tests that the wheel of entmax carries, with our functions in place of theirs: `make peers`.

Of projections onto the simplex, with alphas of at least 1; `normmax`, `budget` and losses have no counterpart here.
"""

import importlib.util
from functools import partial
from pathlib import Path
from types import FunctionType
from unittest.mock import patch

import entmax as theirs
from entmax import activations, root_finding
from torch import Tensor

from tessera.kernels import entmax, sparsemax


def _entmax(scores: Tensor, alpha: Tensor | float = 1.5, dim: int = -1) -> Tensor:
    """Ours, whose alpha is at least 1: below it, as far above."""
    return entmax(scores, 1 + abs(alpha - 1), dim)


def _tests_of(name: str) -> dict[str, staticmethod]:
    """Those of a module of theirs, imported while our functions stand in for theirs."""
    spec = importlib.util.spec_from_file_location(f"entmax_{name}", Path(theirs.__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    classes = {
        "Sparsemax": lambda dim=-1, k=None: partial(sparsemax, dim=dim),
        "Entmax15": lambda dim=-1, k=None: partial(entmax, dim=dim),
    }
    ours = {"sparsemax_bisect": sparsemax, "entmax_bisect": _entmax}
    with patch.multiple(activations, **classes), patch.multiple(root_finding, **ours):
        spec.loader.exec_module(module)
    absent = ("normmax", "budget")
    found = {test: value for test, value in vars(module).items() if test.startswith("test_")}
    return {
        test: staticmethod(value)
        for test, value in found.items()
        if isinstance(value, FunctionType) and not any(word in test for word in absent)
    }


TestEntmax = type("TestEntmax", (), _tests_of("test_root_finding") | _tests_of("test_mask"))
