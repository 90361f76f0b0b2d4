"""Memories as layers on float inputs: seconds of reading, of a training step, and of one more step behind a state.

    OMP_NUM_THREADS=1 python -m benchmarks.layers --out results/layers/cpu.json

One sequence (1, T, width) of normal inputs through one layer: contextual memories (Gaussian and biweight), linear
attention, RetNet and gated linear attention, Mamba's mixer, and an association matrix written by the delta rule, which
is read and then written segment by segment. Medians; --out is gone on from.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MambaConfig
from transformers.cache_utils import DynamicCache

from tessera.base.files import write_text_atomically
from tessera.evaluation.provenance import provenance
from tessera.memories.association import AssociationMemory
from tessera.memories.contextual import ContextualMemory
from tessera.memories.linear_attention import VARIANTS, LinearAttentionMemory
from tessera.models.mamba import ScanMixer

HEADS, SEGMENT, FEATURES = 4, 64, 64
Reading = tuple[Tensor, Any]


class Segments(nn.Module):
    """An association matrix as a layer: each segment is answered from those before it, then written."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.memory = AssociationMemory(width, FEATURES)
        nn.init.normal_(self.memory.value.weight, 0, width**-0.5)

    def forward(self, x: Tensor, state: Any = None, keep_state: bool = False) -> Reading:
        """Answers (1, T, width), and the state behind them."""
        state, answers = state or self.memory.empty_state(len(x)), []
        for segment in x.split(SEGMENT, 1):
            answers.append(self.memory(segment, state))
            state = self.memory.write(segment, state)
        return torch.cat(answers, 1), state


class Mixer(nn.Module):
    """Mamba's, with a cache for a state."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.config = MambaConfig(hidden_size=width, num_hidden_layers=1)
        self.mixer = ScanMixer(self.config, layer_idx=0)

    def forward(self, x: Tensor, state: Any = None, keep_state: bool = False) -> Reading:
        """Answers (1, T, width), and the cache, which changes in place."""
        state = DynamicCache(config=self.config) if keep_state and state is None else state
        return self.mixer(x, cache_params=state), state


LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "contextual, gaussian": lambda width: ContextualMemory(width, HEADS, "gaussian"),
    "contextual, biweight": lambda width: ContextualMemory(width, HEADS, "biweight"),
    **{name: lambda width, name=name: LinearAttentionMemory(width, HEADS, name) for name in VARIANTS},
    "mamba": Mixer,
    f"delta rule, segments of {SEGMENT}": Segments,
}


def median_seconds(call: Callable[[], object], repeats: int) -> float:
    """Of `repeats` calls, after one that is not counted."""
    call()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def measured(layer: nn.Module, length: int, width: int, repeats: int) -> dict[str, float]:
    """Reading, a training step, and one step behind all."""
    x = torch.randn(1, length, width)

    def train() -> None:
        layer.zero_grad()
        layer(x)[0].square().mean().backward()

    training = median_seconds(train, repeats)
    with torch.inference_mode():
        reading = median_seconds(lambda: layer(x), repeats)
        _, state = layer(x, keep_state=True)
        step = median_seconds(lambda: layer(x[:, :1], state, keep_state=True), 10 * repeats)
    return {"reading": reading, "training_step": training, "one_more_step": step}


def main() -> None:
    """Measure what is not in --out yet; print a line for each layer and length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True, help="a JSON file for what came out")
    arguments = parser.parse_args()
    began = time.perf_counter()
    record = (
        json.loads(arguments.out.read_text()) if arguments.out.exists() else {"width": arguments.width, "cases": {}}
    )
    if record["width"] != arguments.width:
        parser.error(f"{arguments.out} has layers of width {record['width']}")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    for name, make in LAYERS.items():
        for length in arguments.lengths:
            label = f"{name}, {length} steps"
            if label not in record["cases"]:
                torch.manual_seed(0)
                record["cases"][label] = measured(make(arguments.width), length, arguments.width, arguments.repeats)
                record["provenance"] = provenance(wall_seconds=time.perf_counter() - began)
                write_text_atomically(arguments.out, json.dumps(record, indent=1) + "\n")
            times = ", ".join(
                f"{what.replace('_', ' ')} {1000 * s:.2f} ms" for what, s in record["cases"][label].items()
            )
            print(f"{label:<40} {times}", flush=True)


if __name__ == "__main__":
    main()
