"""What a model of others does not say: whether it is a causal language model, tried on a few tokens; its positions.

A model with a learned table of absolute positions reads no further than its last row.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from transformers import PreTrainedModel

from tessera.base.errors import TesseraError, expect, first_line

STEPS = 8  # tokens of the trial
NOTHING = 1e-3  # of the largest logit: what a sum in another order may leave of a difference
NO_INFLUENCE = 1e-5  # of that of earlier tokens; with small first weights attention is a thousandth of it


def expect_causal(model: PreTrainedModel, where: str) -> None:
    """Raise `TesseraError` unless no later token has an influence on the logits of an earlier one.

    One forward and one backward pass over `STEPS` tokens, in evaluation mode. A model without numbers (on the meta
    device), without gradients, or that takes no embeddings is not tried.
    """
    if getattr(model.config, "segment_end_ids", None):  # which takes no embeddings; what reads its segments does
        model = model.base
    if not can_be_tried(model) or "inputs_embeds" not in inspect.signature(model.forward).parameters:
        return
    with evaluating(model), torch.enable_grad():
        embeddings = model.get_input_embeddings()(trial_tokens(model)).detach().requires_grad_()
        logits = tried(where, model, inputs_embeds=embeddings).logits
        middle = logits.shape[1] // 2
        if not logits.requires_grad:
            return
        weights = torch.arange(logits.shape[-1], device=logits.device).cos()
        (gradient,) = torch.autograd.grad((logits[0, middle].float() * weights).sum(), [embeddings])
    influence = gradient[0].float().abs().amax(-1)
    is_causal = bool(influence[middle + 1 :].max() <= NO_INFLUENCE * influence[: middle + 1].max())
    advice = "A BERT must be a decoder (is_decoder: true)." if "Bert" in type(model).__name__ else ""
    kind = type(model).__name__
    expect(is_causal, where, "the model", "see no later token when it predicts one", f"{kind}, which does", advice)


@torch.no_grad()
def expect_next_token(model: PreTrainedModel, where: str, trains: bool = False) -> None:
    """`expect_causal` by two readings; with `trains`, that its loss is of the next token (BART: of the one read)."""
    if not can_be_tried(model):
        return
    ids = trial_tokens(model)
    labels, changed = ids.clone(), ids.clone()
    labels[:, 0], changed[:, -1] = -100, ids[:, 0]  # which nothing predicts; which nothing sees
    needed = "have a loss of the next token" if trains else "see no later token when it predicts one"
    with evaluating(model):
        if trains:
            first, second = (model(ids, labels=each, use_cache=False).loss for each in (ids, labels))
        else:
            first, second = (model(each, use_cache=False).logits[:, :-1] for each in (ids, changed))
    # More than rounding, which another token may change where experts read theirs together; not where it is NaN.
    rounding = max(1e-5, 4 * torch.finfo(first.dtype).eps)
    differ = (first.float() - second.float()).abs().max() > rounding * first.float().abs().max()
    expect(not bool(differ), where, "the model", needed, type(model).__name__)


def can_be_tried(model: PreTrainedModel) -> bool:
    """Whether all parameters hold numbers."""
    return not any(parameter.is_meta or isinstance(parameter, FakeTensor) for parameter in model.parameters())


def trial_tokens(model: PreTrainedModel) -> Tensor:
    """(1, n) tokens that are all different, none of them special."""
    config = model.config.get_text_config()
    special = {getattr(config, f"{name}_token_id", None) for name in ("pad", "bos", "eos")}
    steps = min(STEPS, learned_positions(model) or STEPS)
    ordinary = [token for token in range(min(config.vocab_size, steps + 8)) if token not in special]
    tokens = (ordinary or [0]) * steps
    return torch.tensor([tokens[:steps]], device=model.device)


def tried(where: str, model: PreTrainedModel, **arguments: Any) -> Any:
    """The model's output; whatever else it raises becomes a `TesseraError`."""
    try:
        return model(**arguments, use_cache=False, return_dict=True)
    except TesseraError:
        raise
    except Exception as error:
        kind = type(model).__name__
        names = " and ".join(arguments)
        raise TesseraError(
            f"{where}: the model must take {names} as a decoder does; got {kind}, which says: {first_line(error)}."
        ) from error


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In evaluation mode; every module is left in the mode that it had."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def position_tables(model: nn.Module) -> dict[str, nn.Embedding]:
    """The learned tables of positions of `model`, by name."""
    names = ("wpe", "embed_positions", "position_embeddings", "positions_embed")
    modules = model.named_modules()
    return {name: m for name, m in modules if isinstance(m, nn.Embedding) and name.rpartition(".")[2] in names}


def learned_positions(model: nn.Module) -> int | None:
    """How many positions `model` has learned; None: no limit, or none of its own."""
    rows = [table.num_embeddings - _unused_rows(table) for table in position_tables(model).values()]
    return min(rows) if rows else None


def first_position(model: nn.Module) -> int:
    """What `position_ids` call the first position: 0, or in RoBERTa the row behind that of padding."""
    tables = [table for table in position_tables(model).values() if not getattr(table, "offset", 0)]
    return max((_unused_rows(table) for table in tables), default=0)


def _unused_rows(table: nn.Embedding) -> int:
    """Rows before the first position: `offset` in OPT and BART, up to the row of padding in RoBERTa."""
    if isinstance(offset := getattr(table, "offset", 0), int) and offset:
        return offset
    return 0 if table.padding_idx is None else table.padding_idx + 1
