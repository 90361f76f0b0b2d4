"""Small models whose traces fill every view of the page."""

from dataclasses import replace
from functools import cache

import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

import tessera
from tessera.data.tokenizers import byte_tokenizer
from tessera.inspection import Trace, trace, trace_memory

WORDS = ("own_tokens", "own_scores", "after_tokens", "after_scores")
TEXT = "the cat sat on the mat. the cat sat on the hat."


@cache
def mosaic_trace(text: str = TEXT, kernel: str = "triweight") -> Trace:
    """A Memory Mosaic of two layers over bytes."""
    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    config = tessera.MemoryMosaicConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_layers=2, num_heads=2, num_persistent_slots=8, kernel=kernel
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    return trace(model, ids, tokenizer, removals="heads", removed_pairs=[5])


@cache
def armt_trace() -> Trace:
    """An ARMT around a GPT-2, which read the text behind a memory."""
    torch.manual_seed(0)
    base = GPT2LMHeadModel(GPT2Config(vocab_size=258, n_embd=16, n_layer=2, n_head=2, n_positions=64))
    model = tessera.wrap(base, segment_size=8, num_memory_tokens=2, memory_dim=4).eval()
    for memory in model.memories:
        torch.nn.init.normal_(memory.value.weight)
    tokenizer = byte_tokenizer()
    ids = torch.tensor([tokenizer(TEXT)["input_ids"]])
    return trace(model, ids, tokenizer, memory=model(ids[:, :20]).memory_state)


@cache
def memory_trace(make: str = "wrap") -> Trace:
    """A stored memory alone."""
    torch.manual_seed(0)
    base = GPT2LMHeadModel(GPT2Config(vocab_size=258, n_embd=16, n_layer=2, n_head=2, n_positions=64))
    model = getattr(tessera, make)(base, segment_size=8, num_memory_tokens=2).eval()
    for memory in getattr(model, "memories", ()):
        torch.nn.init.normal_(memory.value.weight)
    tokenizer = byte_tokenizer()
    state = model(torch.tensor([tokenizer(TEXT)["input_ids"]])).memory_state
    return trace_memory(model, state, tokenizer)


def long_trace(steps: int, pairs: int, num_memories: int = 1) -> Trace:
    """A trace of random numbers: `steps` tokens and, in each memory of two heads, `pairs` recalled by 2,000 queries."""
    trace, queries = mosaic_trace(), 2000
    generator = torch.Generator().manual_seed(0)
    position = torch.arange(queries) * (steps // queries)
    # Each query recalls as many pairs, all before it, as a text has them: near each other.
    newest = position.repeat_interleave(pairs // queries).clamp(min=pairs // queries)
    age = torch.arange(pairs // queries).repeat(queries)
    memory = replace(
        trace.memories[0],
        rows=torch.arange(0, pairs + 1, pairs // (2 * queries)),
        pairs=(newest - 1 - age).int(),
        weights=torch.rand(pairs, generator=generator),
        share=torch.ones(queries, 2),
        num_pairs=position,
        bandwidth=torch.ones(queries, 2),
        loss_change=torch.randn(steps, generator=generator),
        head_loss_change=None,
        pair_loss_change=None,
        **{name: getattr(trace.memories[0], name)[:1].repeat(queries, 1) for name in WORDS},
    )
    return replace(
        trace,
        tokens=tuple(f"word{index % 977} " for index in range(steps)),
        losses=torch.rand(steps, generator=generator),
        queries=position,
        memories=(memory,) * num_memories,
        removed_pairs=torch.empty(0, dtype=torch.long),
    )
