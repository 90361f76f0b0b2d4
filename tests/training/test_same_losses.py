"""The first losses of six recipes are those that earlier commits gave: a change of training that nobody meant is seen.

Exactly where the processor and PyTorch are the same, to 1e-5 elsewhere. A change that is meant is stored by

    STORE_LOSSES=1 python -m pytest -n0 tests/training/test_same_losses.py
"""

import json
import os
import re
from pathlib import Path

import pytest
import torch

from tessera.evaluation.provenance import hardware
from tessera.recipes.recipe import read_recipe
from tessera.training.run import train

FILE = Path(__file__).with_name("stored_losses.json")
STEPS = ("training.steps=10", "training.evaluate_every=100", "training.checkpoint_every=100")
BASE = "base: {type: transformer, hidden_size: 16, num_layers: 1, num_heads: 2}"
MODELS = {
    "v1": "type: memory_mosaic, hidden_size: 32, num_layers: 2, num_heads: 2, num_persistent_slots: 24",
    "v1 with compact kernels and dropout": "type: memory_mosaic, hidden_size: 16, num_layers: 1, num_heads: 2, "
    "num_persistent_slots: 8, kernel: biweight, persistent_kernel: epanechnikov, weight_dropout: 0.1",
    "v2": "type: memory_mosaic_v2, hidden_size: 16, num_layers: 2, num_heads: 2, intermediate_size: 24, "
    "short_term_span: 4, long_term_delay: 2, training_long_term_delay: [2, 8]",
    "transformer": "type: transformer, positions: rope, hidden_size: 16, num_layers: 2, num_heads: 2",
    "armt": f"type: armt, {BASE}, segment_size: 5, num_memory_tokens: 2, memory_dim: 4",
    "rmt": f"type: rmt, {BASE}, segment_size: 6, num_memory_tokens: 2",
}


def kind_of_machine():
    """What decides the last bits of a loss. Virtual machines call many processors by one name: family and model too."""
    kind = f"{hardware()['processor']}, {torch.backends.cpu.get_cpu_capability()}"
    if kind != "AMD EPYC, AVX2":  # stored before the rest was
        cpuinfo = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
        kind += ", " + " ".join(re.findall(r"^(?:cpu family|model)\s*: (\d+)$", cpuinfo, re.MULTILINE)[:2])
    return f"{kind}, torch {torch.__version__.split('+')[0]}"


@pytest.mark.parametrize("name", MODELS)
def test_first_losses_are_those_of_earlier_commits(name, recipe_file, tmp_path, change_losses):
    losses = []

    def note(_, loss):
        losses.append(loss.item())
        return loss

    change_losses(note)
    train(read_recipe(recipe_file, (*STEPS, f"model={{{MODELS[name]}}}")), tmp_path / "run", progress=False)
    stored = json.loads(FILE.read_text()) if FILE.exists() else {}
    kind = kind_of_machine()
    if os.environ.get("STORE_LOSSES"):
        stored.setdefault(kind, {})[name] = losses
        FILE.write_text(json.dumps(stored, indent=1) + "\n")
    assert len(losses) == 10
    if name in stored.get(kind, {}):
        assert losses == stored[kind][name]
    else:
        other = next(iter(stored.values()))[name]
        assert losses == pytest.approx(other, rel=0, abs=1e-5)
