"""What a memory, a head or a stored pair is worth: the loss without it, measured by running without it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from tessera.errors import expect
from tessera.inspection.attention import attend_without, intercepted_attention
from tessera.inspection.recall import CurrentSite, running_sites
from tessera.inspection.sites import Site
from tessera.ops.kernel_regression import Call, intercepted
from tessera.ops.kernel_regression.interception import Run


@dataclass(frozen=True)
class Removal:
    """What is left out: a memory; or one of its heads; or the stored pair number `pair`, for one head or for all."""

    site: Site
    head: int | None = None
    pair: int | None = None


@torch.no_grad()
def loss_of(model: PreTrainedModel, input_ids: Tensor, removal: Removal | None = None, **inputs: Tensor) -> Tensor:
    """Nats of each token of `input_ids` (1, T) given those before it, (T,); NaN for the first. One forward pass.

    With `removal` the model runs without that part: a memory adds 0 to the residual stream, a head answers 0, a pair
    is not stored. What later layers make of that is in the loss, so the values of two parts do not add up to the value
    of both.

    Raises:
        TesseraError: a head or pair that is not there.
    """
    was_training = model.training
    model.eval()
    try:
        with _without(model, removal):
            logits = model(input_ids=input_ids, use_cache=False, **inputs).logits
    finally:
        model.train(was_training)
    losses = cross_entropy(logits[0, :-1].float(), input_ids[0, 1:], reduction="none")
    return torch.cat([torch.full((1,), torch.nan), losses.cpu()])


@contextmanager
def _without(model: PreTrainedModel, removal: Removal | None) -> Iterator[None]:
    with ExitStack() as stack:
        if removal is None:
            pass
        elif removal.head is None and removal.pair is None:
            handle = removal.site.module.register_forward_hook(_add_nothing)
            stack.callback(handle.remove)
        else:
            expect(removal.site.recalls, "loss_of", "removal", "be a memory with heads", removal.site.name)
            current = stack.enter_context(running_sites([removal.site]))
            if removal.site.kind == "attention":
                stack.enter_context(intercepted_attention(model, _attention_without(current, removal)))
            else:
                stack.enter_context(intercepted(lambda call, run: _regress_without(current, removal, call, run)))
        yield


def _add_nothing(module: nn.Module, arguments: tuple, output: object) -> object:
    """What a memory gives to the residual stream, as zeros; what it keeps, as it is."""
    if isinstance(output, tuple):
        return (torch.zeros_like(output[0]), *output[1:])
    return torch.zeros_like(output)


def _regress_without(current: CurrentSite, removal: Removal, call: Call, run: Run) -> Tensor:
    answers = run(call)
    if current.site is None:
        return answers
    _expect_present(removal, call.query.shape[1], call.key.shape[2])
    heads = slice(None) if removal.head is None else slice(removal.head, removal.head + 1)
    changed = answers.clone()
    changed[:, heads] = 0.0 if removal.pair is None else run(_without_pair(call, removal.pair))[:, heads]
    return changed


def _without_pair(call: Call, pair: int) -> Call:
    """The call with the document of one stored pair made negative: not stored."""
    batch, _, steps, _ = call.query.shape
    zeros = torch.zeros(batch, max(steps, call.key.shape[2]), dtype=torch.long, device=call.query.device)
    queries = zeros[:, :steps] if call.query_documents is None else call.query_documents
    pairs = zeros[:, : call.key.shape[2]] if call.pair_documents is None else call.pair_documents
    pairs = pairs.clone()
    pairs[:, pair] = -1
    return replace(call, query_documents=queries, pair_documents=pairs)


def _attention_without(current: CurrentSite, removal: Removal):
    def change(module, query, key, value, mask, scale, answers):
        if current.site is None:
            return answers
        _expect_present(removal, query.shape[1], key.shape[2])
        heads = slice(None) if removal.head is None else slice(removal.head, removal.head + 1)
        changed = answers.clone()
        if removal.pair is None:
            changed[:, :, heads] = 0.0
        else:
            parts = (part[:, heads] for part in (query, key, value))
            changed[:, :, heads] = attend_without(*parts, mask, scale, removal.pair)
        return changed

    return change


def _expect_present(removal: Removal, num_heads: int, num_pairs: int) -> None:
    for name, count in (("head", num_heads), ("pair", num_pairs)):
        number = getattr(removal, name)
        expect(number is None or 0 <= number < count, "loss_of", name, f"lie in 0..{count - 1}", number)
