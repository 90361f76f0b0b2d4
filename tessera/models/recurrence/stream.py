"""Reading texts that need not fit into memory: tokens come from iterators, only the memory is kept."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from tessera.base.errors import expect
from tessera.base.precision import autocast
from tessera.models.forward_arguments import token_ids
from tessera.models.recurrence.collector import Collector
from tessera.models.recurrence.modeling import SegmentedForCausalLM
from tessera.models.recurrence.segmented_input import SegmentCut, SegmentedInput
from tessera.models.recurrence.state import MemoryState, RowMemories


def read_stream(
    model: SegmentedForCausalLM,
    tokens: Iterable[int],
    memory_state: MemoryState | None = None,
    progress: bool = False,
    total: int | None = None,
    precision: str | None = None,
) -> MemoryState:
    """The memory (one row) after `model` read all `tokens`, in segments from the first on; the last may be short.

    Same result as one call of the model with alignment "left"; time O(N), memory O(1) in their number N. No logits are
    computed. `memory_state` goes on where an earlier reading ended. `progress` shows a bar of tokens (of `total`).
    `precision`: see `read_streams`.

    >>> from transformers import GPT2Config
    >>> from tessera.models.armt import ARMTConfig, ARMTForCausalLM
    >>> base = GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=32)
    >>> model = ARMTForCausalLM(ARMTConfig(base_config=base, segment_size=8, num_memory_tokens=2, memory_dim=4)).eval()
    >>> read_stream(model, iter(range(50))).segments_read
    tensor([7])
    """
    return read_streams(model, [tokens], memory_state, progress, total, precision)


@torch.no_grad()
def read_streams(
    model: SegmentedForCausalLM,
    texts: Sequence[Iterable[int]],
    memory_state: MemoryState | None = None,
    progress: bool = False,
    total: int | None = None,
    precision: str | None = None,
) -> MemoryState:
    """The memories (a row for each of `texts`) after each was read as `read_stream` reads it, side by side.

    The texts' segments are one batch, and a text that has ended leaves it: B short texts take as many calls of the
    model as the longest of them.

    Args:
        memory_state: B rows that earlier readings ended with. progress, total: a bar of the tokens of all texts.
        precision: "bf16" (autocast), "fp32", "auto" (bf16 where the hardware multiplies it), or None: as the
            surroundings say.
    Raises:
        TesseraError: no text, tokens that are no whole numbers, or a memory of other rows or of another model.
    """
    expect(len(texts) > 0, "read_streams", "texts", "hold at least one", "none")
    state = model.empty_memory(len(texts)) if memory_state is None else memory_state
    state.expect_fits(model.empty_memory(1), "read_streams")
    needed = f"hold {len(texts)} rows"
    expect(state.batch_size == len(texts), "read_streams", "memory_state", needed, state.batch_size)
    embed = model.get_input_embeddings()
    device = embed.weight.device
    runner = model.segment_runner()
    memories = RowMemories(range(len(texts)), state if bool(state.segments_read.any()) else None)
    cut = SegmentCut.of(model.config)
    reading = {row: parts_of(tokens, cut) for row, tokens in enumerate(texts)}
    with progress_bar(progress, total) as bar, autocast(precision, device.type):
        while parts := {row: part for row, rest in reading.items() if (part := next(rest, None))}:
            rows, lengths = tuple(parts), tuple(map(len, parts.values()))
            tokens = pad_sequence([ids_of(part) for part in parts.values()], batch_first=True).to(device)
            text = SegmentedInput(tokens, embed, (0,) * len(rows), lengths)
            memories.put(rows, runner.read(text, Collector(text, None), memories.take(rows)).memory)
            bar.update(sum(lengths))
    return memories.all(model.unread) or state


def progress_bar(shown: bool, total: int | None) -> tqdm:
    """A bar of tokens."""
    return tqdm(total=total, unit=" tokens", unit_scale=True, disable=not shown, mininterval=0.5)


def parts_of(tokens: Iterable[int], cut: SegmentCut) -> Iterator[list[int]]:
    """The tokens of one segment after the other; the last may be short."""
    iterator = iter(tokens)
    rest: list[int] = []
    while part := rest + list(islice(iterator, cut.size - len(rest))):
        end = cut.end(0, cut.ends_in(ids_of(part))) if cut.end_ids else cut.size
        part, rest = part[:end], part[end:]
        yield part


def ids_of(part: list[int]) -> Tensor:
    """A part as integers (T,). Raises `TesseraError`: the row of a tensor (1, T), or a text, in place of a token."""
    return token_ids("read_streams", "tokens", "be whole numbers, one by one (of a tensor (1, T) its row)", part)
