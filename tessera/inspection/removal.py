"""What a memory, a head or a stored pair is worth: the loss without it, measured by running without it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tessera.base.errors import expect
from tessera.inspection.attention_weights import attend_without, intercepted_attention
from tessera.inspection.recall import CurrentSite, Site, own_residual, running_sites
from tessera.inspection.text import Reading
from tessera.models.recurrence import MemoryState
from tessera.models.stack_state import StackState
from tessera.ops.kernel_regression import Call, intercepted
from tessera.ops.kernel_regression.interception import Run, of_this_thread


@dataclass(frozen=True)
class Removal:
    """What is left out: a memory; or one of its heads; or the stored pair number `pair`, for one head or for all."""

    site: Site
    head: int | None = None
    pair: int | None = None


def loss_of(
    model: PreTrainedModel,
    input_ids: Tensor,
    removal: Removal | None = None,
    state: StackState | MemoryState | None = None,
    **inputs: Tensor,
) -> Tensor:
    """Nats of each token of `input_ids` (1, T) given those before it, (T,); NaN for the first. One forward pass.

    With `removal` the model runs without that part: a memory adds 0 to the residual stream, a head answers 0, a pair
    is not stored. What later layers make of that is in the loss, so the values of two parts do not add up to the value
    of both. `state`: what was read before, see `recall_weights`.
    Raises `TesseraError`: a head or pair that is not there.
    """
    reading = Reading(model, input_ids, state, **inputs)
    with without(reading, removal):
        return reading.losses()


@contextmanager
def without(reading: Reading, removal: Removal | None) -> Iterator[None]:
    """While it lasts, the model of `reading` runs without that part."""
    if removal is None:
        yield
    elif removal.head is None and removal.pair is None:
        with removal.site.module.register_forward_hook(of_this_thread(_add_nothing)):
            yield
    else:
        expect(removal.site.recalls, "loss_of", "removal", "be a memory with heads", removal.site.name)
        with running_sites([removal.site]) as current, ExitStack() as stack:
            remover = _Remover(current, reading, removal)
            if removal.site.kind == "attention":
                stack.enter_context(intercepted_attention(reading.base, remover.attention))
            else:
                stack.enter_context(intercepted(remover.regression))
            yield
            requirement = f"be stored by {removal.site.kind} of layer {removal.site.layer}"
            expect(remover.is_present, "loss_of", "pair", requirement, removal.pair)


def _add_nothing(module: nn.Module, arguments: tuple, output: Tensor | tuple) -> Tensor | tuple:
    """What a memory gives to the residual stream, as zeros; what it keeps, as it is."""
    first = output[0] if isinstance(output, tuple) else output
    stream = own_residual(module, arguments)
    nothing = torch.zeros_like(first) if stream is None else stream
    return (nothing, *output[1:]) if isinstance(output, tuple) else nothing


class _Remover:
    """Changes the answers of one memory.

    Attributes:
        is_present: whether the pair to be removed was there in any part of the text.
    """

    def __init__(self, current: CurrentSite, reading: Reading, removal: Removal) -> None:
        self.current, self.reading, self.removal = current, reading, removal
        self.is_present = removal.pair is None
        self.num_calls = 0  # of a persistent memory: one for each of its banks, text after text

    def regression(self, call: Call, run: Run) -> Tensor:
        """The answers of a kernel regression without the part."""
        answers, place = run(call), self._place(call.query.shape[1], call.key.shape[2], call.query_offset)
        if place is None:
            return answers
        heads, column = place
        changed = answers.clone()
        changed[:, heads] = 0.0 if column is None else run(_without_pair(call, column))[:, heads]
        return changed

    def attention(self, module, query, key, value, mask, scale, answers, kernel):
        """See `intercepted_attention`."""
        place = self._place(query.shape[1], key.shape[2], 0)
        if place is None:
            return answers
        heads, column = place
        changed = answers.clone()
        if column is None:
            changed[:, :, heads] = 0.0
        else:
            changed[:, :, heads] = attend_without(query, key, value, mask, scale, column, kernel)[:, :, heads]
        return changed

    def _place(self, num_heads: int, count: int, query_offset: int) -> tuple[slice, int | None] | None:
        """The heads that a call is changed for, and the column of the pair to be removed (None: the heads answer 0).

        None where the call is another memory's, or does not hold the pair.
        """
        head, pair = self.removal.head, self.removal.pair
        if self.current.site is None:
            return None
        expect(head is None or 0 <= head < num_heads, "loss_of", "head", f"lie in 0..{num_heads - 1}", head)
        heads = slice(None) if head is None else slice(head, head + 1)
        if pair is None:
            return heads, None
        if self.removal.site.kind == "persistent":
            bank, slot = divmod(pair, count)
            num_banks = len(self.removal.site.module.get_parameter("slot_keys"))
            column = slot if bank == self.num_calls % num_banks else None
            self.num_calls += 1
        else:
            column = self.reading.part.column(pair, count, query_offset)
        self.is_present |= column is not None
        return None if column is None else (heads, column)


def _without_pair(call: Call, pair: int) -> Call:
    """The call with the document of one stored pair made negative: not stored."""
    batch, _, steps, _ = call.query.shape
    zeros = torch.zeros(batch, max(steps, call.key.shape[2]), dtype=torch.long, device=call.query.device)
    queries = zeros[:, :steps] if call.query_documents is None else call.query_documents
    pairs = zeros[:, : call.key.shape[2]] if call.pair_documents is None else call.pair_documents
    pairs = pairs.clone()
    pairs[:, pair] = -1
    return replace(call, query_documents=queries, pair_documents=pairs)
