"""Where the time of v2's training step goes, part by part, beside a Llama of equal size.

    OMP_NUM_THREADS=1 python -m benchmarks.step_parts --out results/bench/v2_step_parts.json

Forward and backward of each part of a layer alone, on inputs of its shapes in the whole step (T = 2,048, the sizes of
`benchmarks.run`), and of the whole models. Processor time, the fastest of --rounds.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize
from transformers import AutoModelForCausalLM

from benchmarks.run import V2
from tessera import MemoryMosaicV2Config, MemoryMosaicV2ForCausalLM, kernel_regression
from tessera.base.files import write_text_atomically
from tessera.evaluation.provenance import provenance
from tessera.memories.pair_memory import completed_pairs
from tessera.models.presets import matching_llama_config
from tessera.ops.kernel_regression import Window
from tessera.papers.tables import markdown

STEPS = 2048
Work = Callable[[], None]


def with_gradients(part: Callable[..., object], *inputs: Tensor) -> Work:
    """Forward of `part`, and backward into its parameters and `inputs` from ones at every tensor that it returns."""
    inputs = tuple(tensor.detach().requires_grad_() for tensor in inputs)

    def work() -> None:
        results = part(*inputs)
        outputs = [x for x in (results if isinstance(results, tuple) else (results,)) if isinstance(x, Tensor)]
        torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])

    return work


def parts() -> dict[str, Work]:
    """What is measured: name -> forward and backward."""
    config = MemoryMosaicV2Config(**V2, tie_word_embeddings=True)
    model = MemoryMosaicV2ForCausalLM(config).train()
    llama = AutoModelForCausalLM.from_config(matching_llama_config(config, equal_parameters=True)).train()
    layer, llama_layer = model.model.layers[0], llama.model.layers[0]
    x, ids = torch.randn(1, STEPS, config.hidden_size), torch.randint(0, config.vocab_size, (1, STEPS))
    angles = llama.model.rotary_emb(x, torch.arange(STEPS)[None])
    heads = (1, config.num_heads, STEPS, config.head_dim)
    keys, values, slope = normalize(torch.randn(heads), dim=-1), torch.randn(heads), torch.full(heads[:3], 7.4)

    def regression(window: Window) -> Work:
        def part(keys: Tensor, values: Tensor, slope: Tensor) -> Tensor:
            pairs = keys[:, :, :-1], values[:, :, :-1]
            return kernel_regression(keys, *pairs, kernel=config.kernel, slope=slope, window=window)

        return with_gradients(part, keys, values, slope)

    def stored(keys: Tensor, now: Tensor, next_: Tensor) -> tuple[Tensor, Tensor]:
        pairs = completed_pairs(keys, now, next_, None, None)
        return pairs.keys, pairs.values

    memory = layer.short_term
    delay = torch.tensor(config.training_long_term_delay[:1])
    return {
        "v2: the whole step": lambda: model(input_ids=ids, labels=ids).loss.backward(),
        "v2: a layer": with_gradients(lambda x: layer(x, long_term_delay=delay)[0], x),
        "v2: short-term memory": with_gradients(lambda x: memory(x)[0], x),
        "v2: long-term memory": with_gradients(lambda x: layer.long_term(x, delay=delay)[0], x),
        "v2: key extractor of one memory": with_gradients(lambda x: memory.key_extractor(x)[0], x),
        "v2: value extractor of one memory": with_gradients(memory.value_extractor, x),
        "v2: values normalised, pairs stored": with_gradients(stored, keys, values, values),
        "v2: short-term regression": regression(Window(span=config.short_term_span)),
        "v2: long-term regression": regression(Window(delay=delay)),
        "v2: output layer of one memory": with_gradients(memory.output, x),
        "v2: persistent memory": with_gradients(layer.persistent, x),
        "v2: a norm": with_gradients(layer.memory_norm, x),
        "Llama: the whole step": lambda: llama(input_ids=ids, labels=ids).loss.backward(),
        "Llama: a layer": with_gradients(lambda x: llama_layer(x, position_embeddings=angles), x),
        "Llama: attention": with_gradients(
            lambda x: llama_layer.self_attn(x, position_embeddings=angles, attention_mask=None)[0], x
        ),
        "Llama: MLP": with_gradients(llama_layer.mlp, x),
        "Llama: a norm": with_gradients(llama_layer.input_layernorm, x),
    }


def main() -> None:
    """Measure, print a table, write --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="(default: 5)")
    parser.add_argument("--out", type=Path, help="a JSON file for what came out")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    works, began = parts(), time.perf_counter()
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(1 + arguments.rounds):
        for name, work in works.items():
            start = time.process_time()
            work()
            seconds[name].append(time.process_time() - start)
    fastest = {name: 1000 * min(times[1:]) for name, times in seconds.items()}
    print(markdown(["part", "ms"], [[name, f"{time:.0f}"] for name, time in fastest.items()]))
    if arguments.out:
        record = {"milliseconds": fastest, "provenance": provenance(wall_seconds=time.perf_counter() - began)}
        write_text_atomically(arguments.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
