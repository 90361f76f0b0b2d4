"""How good next-symbol distributions are, against what an automaton allows."""

import torch
from torch import Tensor


def language_scores(logits: Tensor, allowed: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Accuracy and total variation distance of each example; see `RegBench`.

    `logits` (B, T, V) at position t are about token t + 1, `allowed` (B, T, V) says what that may be, and `labels`
    (B, T) which tokens are scored.
    """
    logits, allowed = logits[:, :-1], allowed[:, :-1]
    scored = labels[:, 1:] >= 0
    is_allowed = allowed.gather(-1, logits.argmax(-1, keepdim=True)).squeeze(-1)
    uniform = allowed / allowed.sum(-1, keepdim=True).clamp_min(1).double()
    probabilities = torch.where(scored[..., None], logits, 0.0).double().softmax(-1)
    distance = (probabilities - uniform).abs().sum(-1) / 2
    last = scored & (scored.flip(1).cumsum(1).flip(1) == 1)
    return {
        "accuracy": _mean(is_allowed, scored),
        "tvd": _mean(distance, scored),
        "last_accuracy": _mean(is_allowed, last),
        "last_tvd": _mean(distance, last),
    }


def _mean(values: Tensor, where: Tensor) -> Tensor:
    return (values.double() * where).sum(1) / where.sum(1)
