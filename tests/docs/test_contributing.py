"""The kernel and the task that the documents show pass the contracts of the library's own."""

import re
import sys
from pathlib import Path

import pytest
import torch

from tessera.kernels import KERNELS, kernel_from_config
from tessera.tasks.task import TASKS
from tessera.testing import kernels, tasks
from tests.kernels import oracles
from tests.tolerances import REORDERED_FLOAT64

ROOT = Path(__file__).parents[2]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TUTORIAL = (ROOT / "docs" / "tutorials" / "kernel.md").read_text(encoding="utf-8")


def blocks(language, text):
    return re.findall(rf"^```{re.escape(language)}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def cauchy(tmp_path, monkeypatch):
    """The kernel of the tutorial, written into its file and imported, for one test."""
    (cell,) = (cell for cell in blocks("{code-cell}", TUTORIAL) if cell.startswith("%%writefile cauchy.py\n"))
    (tmp_path / "cauchy.py").write_text(cell.partition("\n")[2])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(KERNELS, "_entries", dict(KERNELS.items()))
    monkeypatch.delitem(sys.modules, "cauchy", raising=False)
    __import__("cauchy")
    yield kernel_from_config("cauchy")
    del sys.modules["cauchy"]


def test_the_kernel_keeps_the_contract(cauchy):
    kernels.check_kernel(cauchy)


def test_the_kernel_equals_the_oracle_that_is_shown(cauchy):
    (line,) = (block for block in blocks("python", CONTRIBUTING) if block.startswith('"cauchy": '))
    oracle = eval(f"{{{line}}}", vars(oracles))["cauchy"]
    scores, visible = kernels.example()
    weights = cauchy.weights(scores, visible)
    for row, mask, row_weights in zip(scores, visible, weights):
        if mask.any():
            expected = torch.stack(oracle(list(row[mask]), cauchy))
            torch.testing.assert_close(row_weights[mask], expected, rtol=0, atol=REORDERED_FLOAT64)


def test_the_kernel_is_what_its_formula_says(cauchy):
    keys = torch.nn.functional.normalize(torch.randn(5, 3, dtype=torch.float64), dim=-1)
    slope, intercept = cauchy.affine(torch.tensor(2.5, dtype=torch.float64))
    weights = cauchy.weights(slope * (keys @ keys[0]) + intercept)
    responses = 1 / (1 + 2.5 * (keys - keys[0]).square().sum(-1))
    torch.testing.assert_close(weights, responses / responses.sum(), rtol=0, atol=REORDERED_FLOAT64)


def test_the_task_keeps_the_contract(monkeypatch):
    monkeypatch.setattr(TASKS, "_entries", dict(TASKS.items()))
    (program,) = (block for block in blocks("python", CONTRIBUTING) if "TASKS.register" in block)
    (case,) = (block for block in blocks("python", CONTRIBUTING) if "TaskCase" in block)
    names = {"__name__": __name__}
    for block in (program, case):
        exec(compile(block, "CONTRIBUTING.md", "exec"), names)
    tasks.check_task(names["FirstTokenCase"](TASKS["first_token"]()))


def test_the_files_that_are_named_exist():
    for name in re.findall(r"`((?:tessera|tests|docs)/[\w./*]+)`", CONTRIBUTING):
        assert list(ROOT.glob(name.rstrip("/"))) or "NAME" in name, name


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_the_python_files_that_it_names_exist(page):
    named = set(re.findall(r"`(?:[\w/]*/)?(\w+\.py)`", (ROOT / page).read_text(encoding="utf-8")))
    known = {path.name for path in ROOT.rglob("*.py") if ".venv" not in path.parts}
    assert named
    assert named <= known
