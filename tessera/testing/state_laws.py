"""The laws of a state, for any causal language model of transformers.

A state (a key-value cache, the state of a recurrence, a memory) is right when reading on from it gives what reading
everything at once gives, however the text is cut, padded, batched, copied or reordered. `check_state(model)` tries each
law on random tokens and says by how much it is missed. It needs no network and no tokenizer, and runs on models of any
size, but takes some sixty forward passes.

>>> from transformers import GPT2Config, GPT2LMHeadModel
>>> model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=64)).eval()
>>> all(finding.holds for finding in check_state(model))
True
"""

import inspect
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from tessera.base.errors import first_line
from tessera.base.random_numbers import random_numbers_kept
from tessera.base.state import State
from tessera.models.causality import evaluating, learned_positions
from tessera.models.forking import apart

STATES = ("past_key_values", "memory_state", "cache_params", "state")  # what models call it
LENGTH = 24
# Of the second trial, see `check_state`: tokens, numbers, seconds, and parts of the names of spans in configurations.
HALF, LONGEST_SPAN, MOST_LOGITS, SECONDS = 150, 2048, 2**28, 120
SPANS = ("window", "span", "delay", "chunk")


@dataclass(frozen=True)
class Finding:
    """What came of one law: the largest difference of a logit in units of the largest logit, or why there is none.

    Attributes:
        error: None where the law could not be tried; then `note` says why. allowed: the largest that rounding explains.
        tokens: of the longest text that it was tried on.
    """

    law: str
    error: float | None
    allowed: float
    note: str = ""
    tokens: int = 0

    @property
    def holds(self) -> bool:
        """Whether the law was tried and holds."""
        return self.error is not None and self.error <= self.allowed


class Subject:
    """A model, and how its state goes in and out."""

    def __init__(self, model: PreTrainedModel, half: int | None = None) -> None:
        self.model = model
        config = model.config.get_text_config()
        generator = torch.Generator().manual_seed(0)
        low = min(4, config.vocab_size - 2)  # the first tokens are often special
        # Models that read segments hand a state on where a segment ends.
        self.cut = half or getattr(config, "segment_size", None) or LENGTH // 2
        self.short = self.cut + 1 if half else self.cut // 2 + 1  # tokens of the row that is padded
        length = 2 * half if half else max(LENGTH, self.cut + LENGTH // 2)
        ids = torch.randint(low, config.vocab_size, (2, length), generator=generator)
        if ends := getattr(config, "segment_end_ids", None):  # here segments end when they are full
            other = min(set(range(low, config.vocab_size)) - set(ends), default=0)
            ids[torch.isin(ids, torch.tensor(ends))] = other
        self.ids = ids.to(model.device)
        self.is_segmented = hasattr(config, "segment_size")
        self.takes_positions = "position_ids" in inspect.signature(model.forward).parameters

    def read(self, ids: Tensor, state: tuple[str, Any] | None = None, **options: Any) -> tuple[Tensor, Any]:
        """(logits, state) of tokens that follow `state`."""
        if state is not None:
            options[state[0]] = state[1]
        if not self.is_segmented:
            options["use_cache"] = True
        mask = options.get("attention_mask")
        if mask is not None and self.takes_positions:  # padding takes no position, as in `generate`
            options["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        output = self.model(input_ids=ids, **options)
        states = [(name, output[name]) for name in STATES if output.get(name) is not None]
        if not states:
            raise LookupError("the model returns no state")
        return output.logits, states[0]

    def fork(self, state: tuple[str, Any]) -> tuple[str, Any]:
        """What reading does not change."""
        return state[0], apart(state[1])


def _difference(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).abs().max() / expected.abs().max().clamp_min(1e-30))


def _later_tokens_change_nothing(subject: Subject) -> float:
    changed, lowest = subject.ids.clone(), subject.ids.min()
    changed[:, subject.cut] += 1 - 2 * (changed[:, subject.cut] > lowest).long()
    before, after = (subject.read(ids)[0][:, : subject.cut] for ids in (subject.ids, changed))
    return _difference(after, before)


def _chunks(subject: Subject) -> float:
    first, state = subject.read(subject.ids[:, : subject.cut])
    second, _ = subject.read(subject.ids[:, subject.cut :], state)
    return _difference(torch.cat([first, second], 1), subject.read(subject.ids)[0])


def _one_by_one(subject: Subject) -> float:
    if subject.is_segmented:
        raise LookupError("it reads segments")
    _, state = subject.read(subject.ids[:, : subject.cut])
    several, _ = subject.read(subject.ids[:, subject.cut : subject.cut + 4], subject.fork(state))
    single = []
    for step in range(subject.cut, subject.cut + 4):
        logits, state = subject.read(subject.ids[:, step : step + 1], state)
        single.append(logits)
    return _difference(torch.cat(single, 1), several)


def _padded(subject: Subject, side: str) -> float:
    ids, mask = subject.ids.clone(), torch.ones_like(subject.ids)
    short, length = subject.short, ids.shape[1]
    real = slice(length - short, length) if side == "left" else slice(0, short)
    padding = slice(0, length - short) if side == "left" else slice(short, length)
    ids[1, padding], mask[1, padding] = ids[0, 0], 0
    alone, _ = subject.read(ids[1:, real])
    padded, _ = subject.read(ids, attention_mask=mask)
    return _difference(padded[1:, real], alone)


def _padded_then_on(subject: Subject) -> float:
    """A row that was padded on the left, and then one more token: the state must not hold the padding."""
    if subject.is_segmented:
        raise LookupError("it reads segments")
    ids, mask = subject.ids.clone(), torch.ones_like(subject.ids)
    ids[1, :5], mask[1, :5] = ids[0, 0], 0
    _, state = subject.read(ids[:, :-1], attention_mask=mask[:, :-1])
    padded, _ = subject.read(ids[:, -1:], state, attention_mask=mask)
    _, alone = subject.read(ids[1:, 5:-1])
    return _difference(padded[1:], subject.read(ids[1:, -1:], alone)[0])


def _padded_between(subject: Subject) -> float:
    """A row whose first part was padded on the right, as turns of a conversation are, and then the rest."""
    if subject.is_segmented:
        raise LookupError("it reads segments")
    ids, mask, cut = subject.ids.clone(), torch.ones_like(subject.ids), subject.cut
    ids[1, cut - 4 : cut], mask[1, cut - 4 : cut] = ids[0, 0], 0
    _, state = subject.read(ids[:, :cut], attention_mask=mask[:, :cut])
    rest, _ = subject.read(ids[:, cut:], state, attention_mask=mask)
    alone, _ = subject.read(ids[1:, mask[1].bool()])
    return _difference(rest[1:], alone[:, cut - 4 :])


def _batch(subject: Subject) -> float:
    alone = torch.cat([subject.read(row[None])[0] for row in subject.ids])
    return _difference(subject.read(subject.ids)[0], alone)


def _fork(subject: Subject) -> float:
    first, second = subject.ids[:, subject.cut :], subject.ids[:, subject.cut :].flip(1)
    _, state = subject.read(subject.ids[:, : subject.cut])
    subject.read(first, subject.fork(state))
    forked, _ = subject.read(second, subject.fork(state))
    at_once, _ = subject.read(torch.cat([subject.ids[:, : subject.cut], second], 1))
    return _difference(forked, at_once[:, subject.cut :])


def _reorder(subject: Subject) -> float:
    order = torch.tensor([1, 0], device=subject.ids.device)
    _, (name, state) = subject.read(subject.ids[:, : subject.cut])
    if isinstance(state, State):
        state = state.select_batch(order)
    elif hasattr(state, "reorder_cache"):
        state = state.reorder_cache(order) or state
    elif hasattr(subject.model, "_reorder_cache"):
        state = subject.model._reorder_cache(state, order)
    else:
        raise LookupError("its state cannot be reordered")
    swapped, _ = subject.read(subject.ids[order, subject.cut :], (name, state))
    return _difference(swapped, subject.read(subject.ids[order])[0][:, subject.cut :])


def _gradient(subject: Subject) -> float:
    """Of the second half's logits by the token embeddings, through the state."""
    embeddings = subject.model.get_input_embeddings().weight
    with torch.enable_grad():
        _, state = subject.read(subject.ids[:, : subject.cut])
        second, _ = subject.read(subject.ids[:, subject.cut :], state)
        through = torch.autograd.grad(second.square().mean(), embeddings)[0]
        at_once = subject.read(subject.ids)[0][:, subject.cut :]
        expected = torch.autograd.grad(at_once.square().mean(), embeddings)[0]
    return _difference(through, expected)


def _saved(subject: Subject) -> float:
    with tempfile.TemporaryDirectory() as folder:
        subject.model.save_pretrained(folder)
        loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=subject.model.dtype).to(subject.model.device)
    return _difference(Subject(loaded.eval()).read(subject.ids)[0], subject.read(subject.ids)[0])


LAWS: dict[str, Callable[[Subject], float]] = {
    "a later token changes no earlier logit": _later_tokens_change_nothing,
    "two chunks are the whole": _chunks,
    "several tokens behind a state are one by one": _one_by_one,
    "padding on the left changes nothing": lambda subject: _padded(subject, "left"),
    "padding on the right changes nothing": lambda subject: _padded(subject, "right"),
    "a padded row goes on as alone": _padded_then_on,
    "padding between two parts changes nothing": _padded_between,
    "a batch is its rows alone": _batch,
    "a copied state goes two ways": _fork,
    "rows of a state can be reordered": _reorder,
    "gradients flow through the state": _gradient,
    "saved and loaded is the same": _saved,
}


def _longer_half(model: PreTrainedModel) -> int:
    """Tokens of each half of the second trial; 0: the model has no room for more than the first one read."""
    config = model.config.get_text_config()
    logits = MOST_LOGITS // (4 * config.vocab_size)
    if segment := getattr(config, "segment_size", None):  # whose base sees a segment at a time
        return min(2, logits // segment) * segment
    settings = config.to_dict().items()
    counts = [value for name, value in settings if any(part in name for part in SPANS) and isinstance(value, int)]
    half = max(HALF, max((n for n in counts if n <= LONGEST_SPAN), default=0) + LENGTH // 2)
    positions = (learned_positions(model), getattr(config, "max_position_embeddings", None))
    half = min(half, logits, *(limit // 2 for limit in positions if limit))
    return half if 2 * half > LENGTH else 0


@random_numbers_kept()
def check_state(model: PreTrainedModel, allowed: float | None = None) -> list[Finding]:
    """Try every law on `model`, in evaluation mode and without dropout; the model is left as it was.

    Each is tried on 24 tokens (or a segment and 12). What holds is tried again, in the first two minutes, on halves of
    two segments, or of 150 tokens, or 12 more than the longest window, span, delay or chunk of up to 2,048 that the
    configuration has; shorter ones where positions end or logits would take a gigabyte.

    `allowed` is the largest difference of a logit, in units of the largest logit: by default 1e-4, in float64 1e-9.
    """
    if allowed is None:
        allowed = 1e-9 if model.dtype == torch.float64 else 1e-4
    findings, began, half = [], time.perf_counter(), _longer_half(model)
    with evaluating(model), torch.no_grad():
        subjects = [Subject(model), *([Subject(model, half)] if half else [])]
        for law, difference in LAWS.items():
            finding = Finding(law, 0.0, allowed)
            for subject in subjects:
                if subject is subjects[0] or (finding.holds and time.perf_counter() - began < SECONDS):
                    finding = _tried(finding, difference, subject)
            findings.append(finding)
    return findings


def _tried(before: Finding, difference: Callable[[Subject], float], subject: Subject) -> Finding:
    finding, error = replace(before, tokens=subject.ids.shape[1]), before.error or 0.0
    try:
        return replace(finding, error=max(difference(subject), error))
    except Exception as reason:  # a model of anybody's: what it raises is what is to be known
        kind = "not tried" if type(reason) is LookupError else type(reason).__name__
        return replace(finding, error=None, note=f"{kind}: {first_line(reason)}")
