"""How long it takes to open a memory of a million tokens, and to use it for the first time.

    OMP_NUM_THREADS=1 python -m benchmarks.memory_files --out results/memory_files/opening.json

Files of what models would keep of a million tokens, in zeros: pairs of a mosaic of one layer (width 32), the key-value
cache of a Llama of two (width 32), and the matrices of an ARMT around the latter. `open` is `Memory.load`, with the
file's pages dropped from the system's cache before it: its description is read. `first use` compares the checksum and
copies the state. Medians of --repeats.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tessera
from tessera.base.files import write_text_atomically
from tessera.data.tokenizers import byte_tokenizer
from tessera.evaluation.provenance import provenance
from tessera.memory_files import Memory
from tessera.memory_files.document import Document
from tessera.models.forking import state_tensors

TOKENS = 1_000_000


def mosaic() -> Any:
    """A tiny model whose state is pairs."""
    sizes: dict[str, Any] = {"hidden_size": 32, "num_layers": 1, "num_heads": 1, "num_persistent_slots": 8}
    return tessera.MemoryMosaicForCausalLM(tessera.MemoryMosaicConfig(vocab_size=258, **sizes))


def llama() -> Any:
    """A tiny model whose state is a key-value cache."""
    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=258, intermediate_size=32, max_position_embeddings=2 * TOKENS, **sizes)
    )


MODELS: dict[str, Callable[[], Any]] = {
    "mosaic": mosaic,
    "llama": llama,
    "armt": lambda: tessera.wrap(llama(), segment_size=16, num_memory_tokens=2, memory_dim=4),
}


def of_a_million_tokens(model: Any) -> Memory:
    """A memory whose state has the sizes of one that read so many."""
    memory = Memory(model, byte_tokenizer()).read(["A king lived here. "], "book")
    state = memory.documents[0].state
    if memory.is_of_pairs:
        pairs, persistent = state.layers[0]
        room = torch.zeros(1, 1, TOKENS - 1, 32)
        store = type(pairs.pairs).of(room, room.clone())
        state = replace(state, layers=((replace(pairs, pairs=store), persistent),), length=TOKENS)
    elif model.config.model_type == "llama":
        for layer in state.layers:
            layer.keys, layer.values = (torch.zeros(1, 2, TOKENS, 16) for _ in range(2))
    tokens, widths = torch.full((TOKENS,), 32, dtype=torch.int32), torch.ones(TOKENS, dtype=torch.uint8)
    memory.documents = (Document("book", TOKENS, tokens, widths, state),)
    return memory


def timed(call: Callable[[], object]) -> float:
    """Seconds that the call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measured(name: str, path: Path, repeats: int) -> dict[str, Any]:
    """Seconds of opening and of the first use."""
    memory = of_a_million_tokens(MODELS[name]().eval())
    memory.save(path)
    openings, uses = [], []
    for _ in range(repeats):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        opened = Memory(memory.model, memory.tokenizer)
        openings.append(timed(lambda opened=opened: opened.load(path)))  # type: ignore[misc]
        uses.append(timed(lambda opened=opened: opened.state))  # type: ignore[misc]
        assert len(opened.documents[0].tokens) == TOKENS
    return {
        "megabytes": round(path.stat().st_size / 1e6, 1),
        "state_megabytes": round(sum(tensor.nbytes for tensor in state_tensors(memory.state)) / 1e6, 1),
        "open_seconds": round(statistics.median(openings), 4),
        "slowest_open_seconds": round(max(openings), 4),
        "first_use_seconds": round(statistics.median(uses), 3),
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True, help="a JSON file for what came out")
    arguments = parser.parse_args()
    record: dict[str, Any] = {"tokens": TOKENS}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            record[name] = measured(name, Path(folder) / name, arguments.repeats)
            print(name, record[name], flush=True)
            written = json.dumps(record | {"provenance": provenance()}, indent=1)
            write_text_atomically(arguments.out, f"{written}\n")


if __name__ == "__main__":
    main()
