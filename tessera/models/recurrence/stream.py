"""Reading a text that need not fit into memory: tokens come from an iterator, only the memory is kept."""

from collections.abc import Iterable, Iterator
from itertools import islice

import torch
from tqdm import tqdm

from tessera.models.recurrence.modeling import SegmentedForCausalLM
from tessera.models.recurrence.reading import ReadOptions, read_text
from tessera.models.recurrence.segmented_input import SegmentedInput
from tessera.models.recurrence.state import MemoryState


@torch.no_grad()
def read_stream(
    model: SegmentedForCausalLM,
    tokens: Iterable[int],
    memory_state: MemoryState | None = None,
    progress: bool = False,
    total: int | None = None,
) -> MemoryState:
    """The memory (one row) after `model` read all `tokens`, in segments from the first on; the last may be short.

    Same result as one call of the model with alignment "left"; time O(N), memory O(1) in their number N. No logits are
    computed. `memory_state` goes on where an earlier reading ended. `progress` shows a bar of tokens (of `total`).

    >>> from transformers import GPT2Config
    >>> from tessera.models.armt import ARMTConfig, ARMTForCausalLM
    >>> base = GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=32)
    >>> model = ARMTForCausalLM(ARMTConfig(base_config=base, segment_size=8, num_memory_tokens=2, memory_dim=4)).eval()
    >>> read_stream(model, iter(range(50))).segments_read
    tensor([7])
    """
    before = model.empty_memory(1) if memory_state is None else memory_state
    before.expect_fits(model.empty_memory(1), "read_stream")
    state = before if bool(before.segments_read.any()) else None
    embed, runner = model.get_input_embeddings(), model.segment_runner()
    with progress_bar(progress, total) as bar:
        for part in parts_of(tokens, model.config.segment_size):
            text = SegmentedInput(torch.tensor([part], device=embed.weight.device), embed)
            state = read_text(runner, text, state, None, ReadOptions(skip_logits=True)).memory_state
            bar.update(len(part))
    return model.empty_memory(1) if state is None else state


def progress_bar(shown: bool, total: int | None) -> tqdm:
    """A bar of tokens."""
    return tqdm(total=total, unit=" tokens", unit_scale=True, disable=not shown, mininterval=0.5)


def parts_of(tokens: Iterable[int], size: int) -> Iterator[list[int]]:
    """`size` tokens at a time; the last part may be short."""
    iterator = iter(tokens)
    while part := list(islice(iterator, size)):
        yield part
