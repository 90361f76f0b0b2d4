"""Three short texts, memories that have read them, and whether two states are the same."""

import torch
from torch.utils._pytree import tree_leaves

from tessera.base.state import State
from tessera.data.tokenizers import byte_tokenizer
from tessera.memory_files import Memory
from tessera.models.forking import state_tensors

TEXTS = {
    "kings": "A king lived here. He had two sons. One was tall.\n",
    "queen": "The queen ate a cake. Nobody saw it.",
    "home": "And so they went home, all of them; the end.",
}


def memory(model, *names) -> Memory:
    read = Memory(model, byte_tokenizer())
    for name in names:
        read.read(TEXTS[name], name)
    return read


def same(one, other) -> bool:
    """Whether they hold equal tensors; what room stores of pairs have does not matter."""
    pairs = list(zip(*(_tensors(state) for state in (one, other)), strict=True))
    return bool(pairs) and all(torch.equal(*pair) for pair in pairs)


def _tensors(state) -> list[torch.Tensor]:
    held = tree_leaves(state) if isinstance(state, State) else state_tensors(state)
    return [tensor for tensor in held if isinstance(tensor, torch.Tensor)]
