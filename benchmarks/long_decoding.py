"""One more token of a Memory Mosaic v2 behind a few thousand pairs and behind a million.

    python -m benchmarks.long_decoding RUN TEXT... [--pairs 4096 1000000] [--out results/recall/v2_token.json]

RUN is a folder of a trained v2 with a compact kernel (`tessera train mosaic-v2-10m model.kernel=sparsemax`). The texts
are read in pieces of `--context` tokens, each by itself: what they store are the pairs of a reading of all of them but
for what a deep layer would have taken from earlier pieces. Behind so many of these the last text is read on, token by
token: through the index, as the model does by itself, and by scanning all pairs; and `--context` tokens at once
(through the index). Wall time of one thread.
"""

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from tessera.base.files import write_text_atomically
from tessera.data.text_files import text_of_file
from tessera.evaluation.provenance import provenance
from tessera.models.saving.loading import load_model, load_tokenizer
from tessera.recall import long_memories
from tessera.recall.pair_store import PairStore

Pairs = list[tuple[Tensor, Tensor]]  # of the long-term memory of each layer: keys and values (1, H, N, W)
TOKENS = 32


@torch.inference_mode()
def long_term_pairs(model: Any, ids: Tensor, context: int) -> Pairs:
    """What the long-term memories store of a text."""
    pieces = [piece for piece in ids.split(context) if len(piece) == context]
    stored = []
    for piece in tqdm(pieces, desc="reading", mininterval=5):
        layers = model(piece[None], use_cache=True, logits_to_keep=1).past_key_values.layers
        stored.append([(long.pairs.keys.clone(), long.pairs.values.clone()) for _, long in layers])
    return [tuple(torch.cat(parts, 2) for parts in zip(*of_layer)) for of_layer in zip(*stored)]


@torch.inference_mode()
def state_behind(model: Any, pairs: Pairs, count: int, recent: Tensor) -> Any:
    """A state whose long-term memories hold the first `count` pairs; the short-term ones have read `recent`."""
    state = model(recent[None], use_cache=True, logits_to_keep=1).past_key_values
    layers = []
    for (short, long), (keys, values) in zip(state.layers, pairs, strict=True):
        exact = PairStore.of(keys[:, :, : count - 1], values[:, :, : count - 1])
        # Appending makes room, as it happens now and then in the course of a long text; not in the measured steps.
        store = exact.append(keys[:, :, count - 1 : count], values[:, :, count - 1 : count])
        position = torch.full((1,), count + 1)
        layers.append((replace(short, position=position), replace(long, pairs=store, position=position)))
    return replace(state, layers=tuple(layers), length=count + 1)


@torch.inference_mode()
def read_on(model: Any, state: Any, ids: Tensor, together: int) -> tuple[list[float], Any]:
    """Milliseconds a token of each `together` tokens, and the state behind all."""
    times = []
    for piece in ids.split(together):
        began = time.perf_counter()
        state = model(piece[None], past_key_values=state, use_cache=True, logits_to_keep=1).past_key_values
        times.append(1000 * (time.perf_counter() - began) / len(piece))
    return times, state


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="folder of a trained Memory Mosaic v2")
    parser.add_argument(
        "texts",
        nargs="+",
        help="texts to store (text or .gz); the last one is read on",
    )
    parser.add_argument("--pairs", nargs="+", type=int, default=[4096, 1_000_000], help="of each head")
    parser.add_argument("--context", type=int, default=2048, help="tokens that are read together (default: 2048)")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = load_model(arguments.run).eval(), load_tokenizer(arguments.run)
    read = [torch.tensor(tokenizer("".join(text_of_file(Path(file))))["input_ids"]) for file in arguments.texts]
    ids, continuation = torch.cat(read[:-1]), read[-1][: 2 * (arguments.context + TOKENS)]
    began = time.perf_counter()
    pairs = long_term_pairs(model, ids, arguments.context)
    stored, most = pairs[0][0].shape[2], max(arguments.pairs)
    assert stored >= most, f"the texts give {stored:,} pairs and should give {most:,}"
    rows = []
    for count in arguments.pairs:
        start, one_by_one, at_once, scanned = continuation.split((arguments.context, TOKENS, arguments.context, TOKENS))
        # Always on from the newest state: a second continuation of one would copy its pairs.
        (first, *single), state = read_on(model, state_behind(model, pairs, count, start), one_by_one, 1)
        reading, state = read_on(model, state, at_once, arguments.context)
        shortest, long_memories.SHORTEST = long_memories.SHORTEST, 1 << 62
        scanning, _ = read_on(model, state, scanned, 1)
        long_memories.SHORTEST = shortest
        milliseconds = {"first": first, "token": statistics.median(single), "scanning": statistics.median(scanning)}
        rows.append({"pairs": count, "milliseconds": milliseconds | {"of_a_piece": reading[0]}})
        print(rows[-1], flush=True)
    if arguments.out:
        record = provenance(configuration=vars(arguments) | {"out": None}, wall_seconds=time.perf_counter() - began)
        record["configuration"]["texts"] = [Path(file).name for file in arguments.texts]
        write_text_atomically(arguments.out, json.dumps({"provenance": record, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
