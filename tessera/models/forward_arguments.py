"""Arguments that transformers' models take in `forward`: checked here, or refused by name with the reason."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from tessera.base.devices import is_exporting, is_readable
from tessera.base.errors import TesseraError, did_you_mean, expect
from tessera.ops.linear_cross_entropy import expect_labels

# Arguments that describe packed documents to attention kernels; `position_ids` contain the same information.
PACKING = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")
_PACKED = "say which steps are of one document by document_ids or position_ids"
REASONS = {
    "output_router_logits": "there are no experts",
    "token_type_ids": "tokens have no types",
    "head_mask": "heads cannot be switched off",
    "encoder_hidden_states": "there is no encoder",
    "encoder_attention_mask": "there is no encoder",
    **dict.fromkeys(PACKING, _PACKED),
}


# What the arguments of `forward` are; states and `logits_to_keep` are checked where they are used.
_INTEGERS = ("input_ids", "labels", "shift_labels", "document_ids", "position_ids", "cache_position")
_DIMENSIONS = dict.fromkeys("input_ids labels shift_labels attention_mask loss_mask document_ids".split(), 2)
_DIMENSIONS["inputs_embeds"] = 3
_FLAGS = "use_cache skip_logits output_attentions output_hidden_states return_dict extend_segment".split()
_FLAGS += ["output_segment_states"]
_TENSORS = frozenset({*_INTEGERS, *_DIMENSIONS})


def checks_types(forward: Callable) -> Callable:
    """Decorate a model's `forward`: it raises `TesseraError` for arguments of another type than their names say."""
    names = tuple(inspect.signature(forward).parameters)[1:]

    @wraps(forward)
    def checked(self: nn.Module, *values: Any, **keywords: Any) -> Any:
        check_types(type(self).__name__, {**dict(zip(names, values)), **keywords})
        return forward(self, *values, **keywords)

    return checked


def check_types(where: str, arguments: Mapping[str, object]) -> None:
    """Raise `TesseraError` for an argument of `forward` that is of another type or dimension than its name says."""
    for name, value in arguments.items():
        if value is None:
            continue
        if name in _TENSORS:
            if isinstance(value, Tensor):
                _check_tensor(where, name, value)
            else:
                expect(False, where, name, "be a tensor", type(value).__name__)
        elif name in _FLAGS:
            expect(isinstance(value, bool), where, name, "be True, False or None", type(value).__name__)
        elif name == "num_items_in_batch":
            is_number = isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)
            got = f"a tensor of {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            expect(is_number, where, name, "be a number", got)


def _check_tensor(where: str, name: str, value: Tensor) -> None:
    kind = value.dtype
    is_integer = not (kind.is_floating_point or kind.is_complex or kind == torch.bool)
    if name == "input_ids":  # what an embedding takes
        expect(kind in (torch.int32, torch.int64), where, name, "be int64 or int32", kind)
    elif name in _INTEGERS:
        expect(is_integer, where, name, "be integers", kind)
    elif name == "inputs_embeds":
        expect(kind.is_floating_point, where, name, "hold floating-point numbers", kind)
    else:
        expect(not kind.is_complex, where, name, "hold zeros and ones", kind)
        if kind != torch.bool and is_readable(value):  # -1e9 for padding, or numbers of documents, would be tokens
            wrong = value[(value != 0) & (value != 1)]
            expect(not wrong.numel(), where, name, "hold zeros and ones", wrong.flatten()[:1].tolist())
    if name in _DIMENSIONS:
        shape = {2: "(B, T)", 3: "(B, T, hidden)"}[_DIMENSIONS[name]]
        expect(value.dim() == _DIMENSIONS[name], where, name, f"be {shape}", tuple(value.shape))


def refuse_keywords(where: str, keywords: Mapping, reasons: Mapping[str, str], forward: Callable) -> None:
    """Raise `TesseraError` for keywords of transformers that `reasons` says must be left out, and for unknown ones."""
    for name, value in keywords.items():
        if name == "is_causal":
            expect(value in (None, True), where, name, "be True", value, "Every token sees those before it alone.")
        elif name == "tokenizer":
            continue  # of `generate`'s stop_strings, which transformers passes on
        elif name not in reasons:
            known = {*inspect.signature(forward).parameters, *reasons} - {"keywords"}
            raise TesseraError(f"{where}: unknown argument {name!r}. {did_you_mean(name, known)}")
        elif value is not None and value is not False:
            raise TesseraError(f"{where}: {name} must be left out: {reasons[name]}.")


def without_packing(keywords: Mapping, document_ids: Tensor | None, position_ids: Tensor | None) -> dict:
    """`keywords` without those of `PACKING`, where either argument contains the same information."""
    is_said = document_ids is not None or position_ids is not None
    return {name: value for name, value in keywords.items() if not (is_said and name in PACKING)}


def demand(condition: Tensor, where: str, argument: str, requirement: str, got: Callable[[], object]) -> None:
    """`expect` for a condition on values, without a wait: a GPU asserts it itself, compiled graphs leave it out."""
    if is_readable(condition):
        if not bool(condition):
            expect(False, where, argument, requirement, got())
    elif condition.is_cuda and not torch.compiler.is_compiling():
        torch._assert_async(condition, f"{where}: {argument} must {requirement}.")


def new_steps(
    where: str, attention_mask: Tensor, shape: tuple[int, int], before: int = 0, read: int | Tensor = 0
) -> Tensor:
    """Of `attention_mask` (B, before + T) the steps read now, as booleans of `shape` (B, T).

    read: of those `before`, how many each row has read as text, all alike or (B, 1): a mask hides none of them later.
    """
    got, needed = tuple(attention_mask.shape), (shape[0], before + shape[1])
    requirement = f"be {needed} of zeros and ones, one per step since the start"
    expect(got == needed, where, "attention_mask", requirement, got)
    if before:  # such as what `generate` puts behind rows that have ended
        shown = attention_mask[:, :before].bool().sum(1, keepdim=True)
        requirement = "be one for steps that were read as text, which a state cannot forget"
        demand((shown >= read).all(), where, "attention_mask", requirement, lambda: "zeros")
    return attention_mask[:, before:].bool()


def expect_exportable(where: str, use_cache: bool, *inputs: Tensor | None) -> None:
    """How often segments are read, and for which rows, is part of an exported program, in which nothing is checked.

    `inputs`: tokens, their embeddings, and what no program is made with: a mask, labels, positions. Nor is one made
    with a cache, which holds the base's own.
    """
    if not is_exporting():
        return
    names = ["attention_mask", "labels", "position_ids"]
    refused = [name for name, tensor in zip(names, inputs[2:], strict=True) if tensor is not None]
    refused += ["use_cache"] if use_cache else []
    texts = [read for read in inputs[:2] if read is not None]
    for axis, name in enumerate(("number of rows", "length")):
        if any(isinstance(text.shape[axis], torch.SymInt) for text in texts):
            refused.append(f"a free {name}")
    needed = "be of the same number of tokens and rows each time, without a mask, labels, positions or a cache"
    expect(not refused, where, "torch.export", needed, ", ".join(refused))


def expect_rows(where: str, rows: int, held: int, name: str = "past_key_values") -> None:
    """Raise `TesseraError` where a state does not have as many rows as the text."""
    expect(held == rows, where, name, f"have {rows} rows, as the text", held)


def expect_counting(
    where: str, position_ids: Tensor, shape: tuple[int, int], real: Tensor | None, goes_on: bool, requirement: str
) -> None:
    """Positions (B or 1, T) say nothing but how far a row is: where they begin again, another document begins.

    real: booleans (B, T), what is no padding, which has no position; None: all. goes_on: whether a text does, of which
    the first step is none with position 0.
    """
    got = tuple(position_ids.shape)
    expect(got[-2:] in (shape, (1, shape[1])), where, "position_ids", f"be {shape} or {(1, shape[1])}", got)
    counts_on = position_ids.diff(dim=-1) == 1
    if real is not None:
        counts_on = counts_on | ~(real[:, 1:] & real[:, :-1])
    if goes_on:
        counts_on = counts_on.all() & (position_ids[..., 0] != 0).all()
    demand(counts_on.all(), where, "position_ids", requirement, lambda: "positions that begin again")


def embedded(where: str, embed: Any, input_ids: Tensor) -> Tensor:
    """The embeddings (B, T, hidden) of `input_ids` (B, T). Raises `TesseraError` for ids that `embed` does not have."""
    try:
        return embed(input_ids)
    except IndexError:
        size = len(embed.weight)
        got = f"values from {int(input_ids.min())} to {int(input_ids.max())}"
        advice = "Does the tokenizer belong to this model?"
        message = f"{where}: input_ids must lie in 0..{size - 1} (vocab_size {size}); got {got}. {advice}"
        raise TesseraError(message) from None


def token_ids(where: str, argument: str, needed: str, tokens: Any) -> Tensor:
    """`tokens` as integers (T,). Raises `TesseraError` for anything else, which says what the first of them is."""
    try:
        ids = torch.as_tensor(tokens)
        is_ids = ids.dim() == 1 and not (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool)
    except (TypeError, ValueError, RuntimeError):
        is_ids = False
    if is_ids:
        return ids.long()
    one = tokens[0] if isinstance(tokens, list) and tokens else tokens
    got = f"{one.dtype} {tuple(one.shape)}" if isinstance(one, Tensor) else type(one).__name__
    raise TesseraError(f"{where}: {argument} must {needed}; got {got}.")


def check_labels(where: str, labels: Tensor, shape: tuple[int, int], vocab_size: int) -> None:
    """Raise `TesseraError` unless labels are (B, T) token indices or -100; on a GPU the loss's kernel asserts that."""
    expect(tuple(labels.shape) == tuple(shape), where, "labels", f"be {tuple(shape)}", tuple(labels.shape))
    expect_labels(where, labels, vocab_size)


def kept_steps(where: str, logits_to_keep: int | Tensor, steps: int = 0) -> slice | Tensor:
    """The index of the `steps` whose logits are computed: the last so many (0: all), or those of a 1-d tensor."""
    if isinstance(logits_to_keep, Tensor):
        is_index = logits_to_keep.dim() == 1
        expect(is_index, where, "logits_to_keep", "be a number or a 1-d tensor", tuple(logits_to_keep.shape))
        is_integer = logits_to_keep.dtype in (torch.int32, torch.int64)
        expect(is_integer, where, "logits_to_keep", "hold integers", logits_to_keep.dtype)
        inside = ((logits_to_keep >= -steps) & (logits_to_keep < steps)).all()
        demand(inside, where, "logits_to_keep", f"lie in 0..{steps - 1}", lambda: logits_to_keep.tolist())
        return logits_to_keep
    is_count = isinstance(logits_to_keep, int) and logits_to_keep >= 0
    expect(is_count, where, "logits_to_keep", "be 0 (all) or positive", logits_to_keep)
    return slice(-logits_to_keep if logits_to_keep else None, None)
