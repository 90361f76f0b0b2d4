"""What an ARMT writes into its memory of books, and of facts."""

from random import Random
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from tessera.models.armt.modeling import ARMTForCausalLM, ARMTState
from tessera.papers.babilong.sample import RESERVED, Borders, hide
from tessera.papers.babilong.task import BABILong


@torch.no_grad()
def written_noise(
    model: ARMTForCausalLM, task: BABILong, seed: int, *, texts: int = 4, segments: int = 1024
) -> dict[str, Any]:
    """The shares of segments of the test's books that change an association matrix.

    Returns:
        `in_text`: read after the text in front of them. `alone`: the same segments, each read with an empty memory. If
        that is far more, gates stay shut because of what the memory holds, and open when it is overwritten.
        `normaliser`: the mean of |z| over layers, features and texts after 1, 2, 4, ... segments.
    """
    segment, random = model.config.segment_size, Random(f"noise {seed}")
    books = task.books("test")
    contexts = [hide((), books, segments * segment + RESERVED, random).tokens() for _ in range(texts)]
    tokens = torch.from_numpy(np.stack(contexts).astype(np.int64)).to(model.device)
    empty = memory = cast("ARMTState", model.empty_memory(texts))
    in_text = alone = 0.0
    normaliser: dict[str, float] = {}
    for number, segment_tokens in enumerate(tokens.split(segment, 1), 1):
        before, memory = memory, model(input_ids=segment_tokens, memory_state=memory, skip_logits=True).memory_state
        in_text += _changed(before, memory).sum().item()
        if number.bit_count() == 1:
            normaliser[str(number)] = memory.z.abs().mean().item()
        alone += _changed(empty, model(input_ids=segment_tokens, skip_logits=True).memory_state).sum().item()
    shares = {"in_text": in_text / (texts * segments), "alone": alone / (texts * segments)}
    return {**shares, "normaliser": normaliser}


@torch.no_grad()
def written_facts(model: ARMTForCausalLM, task: BABILong, seed: int, *, texts: int = 1024) -> dict[str, float]:
    """The shares of facts for which an association matrix changes: one fact in two segments of the test's books each.

    Returns:
        `whole`: of the facts that lie in one segment. Of those that lie across the border, `first_part`: in the first
        segment, and `second_part`: in the second. A kind of which there was none is left out.
    """
    segment, random = model.config.segment_size, Random(f"facts {seed}")
    books = task.books("test")
    facts = task.possible_facts()
    written: dict[str, list[bool]] = {"whole": [], "first_part": [], "second_part": []}
    for share in (0.0, 1.0):  # by chance too few facts lie across the border
        contexts = [
            hide((random.choice(facts),), books, 2 * segment + RESERVED, random, borders=Borders(segment, share))
            for _ in range(texts // 2)
        ]
        tokens = torch.from_numpy(np.stack([context.tokens() for context in contexts]).astype(np.int64)).to(
            model.device
        )
        memory = cast("ARMTState", model.empty_memory(len(contexts)))
        changes = []
        for half in tokens.split(segment, 1):
            before, memory = memory, model(input_ids=half, memory_state=memory, skip_logits=True).memory_state
            changes.append(_changed(before, memory).tolist())
        for context, first, second in zip(contexts, *changes):
            in_first, in_second = (part.any() for part in np.split(context.is_fact(), 2))
            if in_first and in_second:
                written["first_part"].append(first)
                written["second_part"].append(second)
            else:
                written["whole"].append(first if in_first else second)
    return {part: float(np.mean(changed)) for part, changed in written.items() if changed}


def _changed(before: ARMTState, after: ARMTState) -> Tensor:
    """Booleans (B,): whether any layer's association matrix is another one."""
    return (before.A != after.A).flatten(2).any(2).any(0)
