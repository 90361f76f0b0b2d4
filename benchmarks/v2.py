"""Memory Mosaics v2 against the Llama of the same configuration: a training step, and decoding behind a long context.

    OMP_NUM_THREADS=2 python -m benchmarks.v2 --out results/v2/speed.json

Both models run in this process, in turns, and the fastest of several rounds counts for each: on a shared machine the
slower rounds measure the others. Before anything is timed, decoding is compared with the whole forward pass.
Decoding starts from memories of the right length filled with random pairs (unit keys), which costs what real ones do.
Llama decodes with transformers' DynamicCache (what `generate` uses) and with its StaticCache.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch.nn.functional import normalize
from transformers import AutoModelForCausalLM, DynamicCache, StaticCache

from tessera import MemoryMosaicV2Config, MemoryMosaicV2ForCausalLM
from tessera.base.files import write_text_atomically
from tessera.evaluation.provenance import provenance
from tessera.models.presets import matching_llama_config
from tessera.models.sizes import count_parameters
from tessera.recall.pair_store import PairStore

SIZES = {"vocab_size": 8192, "hidden_size": 512, "num_layers": 4, "num_heads": 8, "intermediate_size": 1408}
TARGETS = {"training": 0.7, "decoding": 1.0}  # times as fast as Llama
TOLERANCE = 1e-4  # logits of order one, float32


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/v2/speed.json"))
    parser.add_argument("--steps", type=int, default=2048, help="tokens of a training sequence")
    parser.add_argument("--context", type=int, default=16384, help="tokens in memory when decoding begins")
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    began = time.time()
    torch.manual_seed(0)
    config = MemoryMosaicV2Config(**SIZES, tie_word_embeddings=True)
    ours = MemoryMosaicV2ForCausalLM(config)
    peer = AutoModelForCausalLM.from_config(matching_llama_config(config))
    error = decoding_error(ours.eval())
    result = {
        "decoding_error": error,
        "parameters": {"v2": count_parameters(config), "llama": count_parameters(peer.config)},
        "training": training(ours, peer, arguments.steps, arguments.rounds),
        "decoding": decoding(ours, peer, arguments.context, arguments.rounds),
        "targets": TARGETS,
        "provenance": provenance(configuration=config.to_diff_dict(), seed=0, wall_seconds=time.time() - began),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(arguments.out, json.dumps(result, indent=1) + "\n")
    for name, target in TARGETS.items():
        speed = result[name]["speed_relative_to_llama"]
        print(f"{name}: {speed:.2f} times as fast as the Llama of the same configuration (target {target})")


@torch.no_grad()
def decoding_error(model: MemoryMosaicV2ForCausalLM) -> float:
    """Largest difference of logits between 400 steps at once and the last 100 one by one; refuses to go on if large."""
    ids = torch.randint(0, model.config.vocab_size, (1, 400))
    expected = model(ids).logits[:, 300:]
    output, stepwise = model(ids[:, :300], use_cache=True), []
    for step in range(300, 400):
        output = model(ids[:, step : step + 1], past_key_values=output.past_key_values, use_cache=True)
        stepwise.append(output.logits)
    error = float((torch.cat(stepwise, dim=1) - expected).abs().max())
    assert error < TOLERANCE, f"decoding differs from the whole forward pass by {error}"
    return error


def in_turns(rounds: int, **work: Callable[[], Callable[[], None]]) -> dict[str, list[float]]:
    """Seconds of each round of each piece of work, prepared outside the clock; one unmeasured round first."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for index in range(rounds + 1):
        for name, prepare in work.items():
            function = prepare()
            began = time.perf_counter()
            function()
            if index:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def training(ours, peer, steps: int, rounds: int) -> dict:
    """Forward and backward of one sequence, float32; delays drawn as in training."""
    ids = torch.randint(0, ours.config.vocab_size, (1, steps))

    def step(model) -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        model.zero_grad()

    seconds = in_turns(rounds, v2=lambda: partial(step, ours.train()), llama=lambda: partial(step, peer.train()))
    best = {name: min(times) for name, times in seconds.items()}
    return {"steps": steps, "seconds": seconds, "speed_relative_to_llama": best["llama"] / best["v2"]}


@torch.no_grad()
def decoding(ours, peer, context: int, rounds: int, tokens: int = 16) -> dict:
    """`tokens` steps, one by one, behind `context` tokens; each round starts from memories of its own."""
    token = torch.zeros(1, 1, dtype=torch.long)
    heads, width = peer.config.num_attention_heads, peer.config.head_dim

    def decode_ours(past) -> None:
        for _ in range(tokens):
            past = ours(token, past_key_values=past, use_cache=True).past_key_values

    def decode_peer(cache) -> None:
        for step in range(context, context + tokens):
            peer(token, past_key_values=cache, use_cache=True, position_ids=torch.tensor([[step]]))

    def filled(cache):
        for layer in range(peer.config.num_hidden_layers):
            cache.update(torch.randn(1, heads, context, width), torch.randn(1, heads, context, width), layer)
        assert cache.get_seq_length() == context
        return partial(decode_peer, cache)

    ours.eval(), peer.eval()
    seconds = in_turns(
        rounds,
        v2=lambda: partial(decode_ours, filled_state(ours, context)),
        llama_dynamic=lambda: filled(DynamicCache(config=peer.config)),
        llama_static=lambda: filled(StaticCache(config=peer.config, max_cache_len=context + tokens)),
    )
    best = {name: min(times) / tokens for name, times in seconds.items()}
    return {
        "context": context,
        "tokens": tokens,
        "seconds": seconds,
        "milliseconds_per_token": {name: 1000 * value for name, value in best.items()},
        "speed_relative_to_llama": best["llama_dynamic"] / best["v2"],
        "speed_relative_to_llama_static": best["llama_static"] / best["v2"],
    }


def filled_state(model: MemoryMosaicV2ForCausalLM, context: int):
    """The state after `context` steps, with random pairs in place of computed ones."""
    state = model(torch.zeros(1, 1, dtype=torch.long), use_cache=True).past_key_values
    heads, width = model.config.num_heads, model.config.head_dim

    def fill(memory, pairs: int):
        keys, values = (normalize(torch.randn(1, heads, pairs, width), dim=-1) for _ in range(2))
        exact = PairStore.of(keys[:, :, :-1], values[:, :, :-1])
        # Appending makes room, as it happens now and then in the course of a long text; not in the measured steps.
        store = exact.append(keys[:, :, -1:], values[:, :, -1:])
        return replace(memory, pairs=store, position=torch.full((1,), context))

    span = model.config.short_term_span
    layers = tuple((fill(short, span), fill(long, context - 1)) for short, long in state.layers)
    return replace(state, layers=layers, length=context)


if __name__ == "__main__":
    main()
