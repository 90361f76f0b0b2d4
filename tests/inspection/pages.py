"""Small models whose traces fill every view of the page, and what a page holds."""

import base64
import gzip
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import torch

import tessera
from tessera.data.tokenizers import byte_tokenizer
from tessera.inspection import Trace, trace, trace_memory
from tessera.inspection.page import NONE, OCTAVE
from tests.inspection.models import build, gpt2, v1, with_memories

TOKENIZER = byte_tokenizer()
TEXT = "the cat sat on the mat. the cat sat on the hat."


@cache
def mosaic_trace(text: str = TEXT, kernel: str = "triweight") -> Trace:
    """A Memory Mosaic of two layers over bytes."""
    model = build(v1(vocab_size=len(TOKENIZER), num_persistent_slots=8, kernel=kernel))
    return trace(model, ids_of(text), TOKENIZER, removals="heads", removed_pairs=[5])


def ids_of(text: str = TEXT) -> torch.Tensor:
    """Its bytes."""
    return torch.tensor([TOKENIZER(text)["input_ids"]])


@cache
def armt_trace() -> Trace:
    """An ARMT around a GPT-2, which read the text behind a memory."""
    base = build(gpt2(vocab_size=len(TOKENIZER), n_positions=64))
    model = with_memories(tessera.wrap(base, segment_size=8, num_memory_tokens=2, memory_dim=4))
    return trace(model, ids_of(), TOKENIZER, state=model(ids_of()[:, :20]).memory_state)


@cache
def memory_trace(make: str = "wrap") -> Trace:
    """A stored memory alone."""
    base = build(gpt2(vocab_size=len(TOKENIZER), n_positions=64))
    model = with_memories(getattr(tessera, make)(base, segment_size=8, num_memory_tokens=2))
    return trace_memory(model, model(ids_of()).memory_state, TOKENIZER)


def data_of(page: str) -> list[dict]:
    """The JSON that a page holds, one value per trace."""
    return json.loads(_parts_of(page)[0])


def arrays_of(page: str) -> Callable[[list], np.ndarray]:
    """What a page holds under a reference to floats."""
    packed = _parts_of(page)[1]
    return lambda told: np.frombuffer(packed, np.uint8, 4 * told[2], told[1]).reshape(4, -1).T.copy().view("<f4")[:, 0]


def weights_of(page: str) -> Callable[[list], np.ndarray]:
    """What a page holds under a reference to weights."""
    packed = _parts_of(page)[1]

    def read(told: list) -> np.ndarray:
        steps = np.frombuffer(packed, np.uint8, 2 * told[2], told[1]).reshape(2, -1).T.copy().view("<u2")[:, 0]
        return np.where(steps == NONE, 0, 2 ** (steps / -OCTAVE))

    return read


def _parts_of(page: str) -> tuple[bytes, bytes]:
    digits = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1].translate(str.maketrans(",./", "&<>"))
    packed = gzip.decompress(base64.b85decode(digits))
    end = 4 + int.from_bytes(packed[:4], "little")
    return packed[4:end], packed[end:]


def long_trace(steps: int, pairs: int, num_memories: int = 1) -> Trace:
    """A trace of random numbers, which nothing can compress.

    `steps` tokens; in each memory, two heads recall `pairs` pairs in all, for the last 2,000 tokens.
    """
    trace, queries = mosaic_trace(), 2000
    generator = torch.Generator().manual_seed(0)
    position = torch.arange(steps - queries, steps)
    count = pairs // (2 * queries)
    memories = []
    for _ in range(num_memories):
        # Different pairs before each query: one of every run of `stride` tokens, in any order.
        stride = (position.clamp(min=count) // count).repeat_interleave(2)[:, None]
        within = (torch.rand(2 * queries, count, generator=generator) * stride).long()
        recalled = torch.arange(count) * stride + within
        weights = -torch.rand(2 * queries, count, generator=generator).log()
        words = {
            f"{which}_{what}": values
            for which in ("own", "after")
            for what, values in (
                ("tokens", torch.randint(4096, (queries, 5), generator=generator)),
                ("scores", -10 * torch.rand(queries, 5, generator=generator)),
            )
        }
        memories.append(
            replace(
                trace.memories[0],
                rows=torch.arange(0, 2 * queries * count + 1, count),
                pairs=recalled[:, torch.randperm(count, generator=generator)].flatten().int(),
                weights=(weights / weights.sum(1, keepdim=True)).sort(1, descending=True).values.flatten(),
                share=torch.rand(queries, 2, generator=generator),
                num_pairs=position,
                bandwidth=torch.rand(queries, 2, generator=generator),
                loss_change=0.3 * torch.randn(steps, generator=generator),
                head_loss_change=None,
                pair_loss_change=None,
                **words,
            )
        )
    return replace(
        trace,
        tokens=tuple(f"word{index} " for index in torch.randint(4096, (steps,), generator=generator).tolist()),
        losses=5 * torch.rand(steps, generator=generator),
        queries=position,
        memories=tuple(memories),
        vocabulary={token: f"word{token} " for token in range(4096)},
        removed_pairs=torch.empty(0, dtype=torch.long),
    )
