"""The profile of a model's attention: the weight of the last token on each earlier one, averaged over texts."""

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tessera.data.windows import ValidationWindows
from tessera.inspection import recall_weights

# The older half of the tokens says what a head gives whatever the age.
OLDER_HALF = 0.5


def mean_profile(
    model: PreTrainedModel, texts: ValidationWindows, report: Callable[[int], None] = lambda done: None
) -> Tensor:
    """(H, T): the mean weight of the last of T tokens on the token at each position, of a model of one block.

    Memory Mosaics, figures 14 and 15. A memory's pair i has the key of token i; the last token's own pair has no value
    yet, so that a mosaic gives it 0. `report` hears how many texts are done.
    """
    total = torch.zeros(())
    for number in range(len(texts)):
        ids = texts[number]["input_ids"][None].to(model.device)
        recalls = recall_weights(model, ids)
        weights = next(recall.weights[:, 0] for recall in recalls if recall.site.kind in ("attention", "contextual"))
        total = total + torch.nn.functional.pad(weights.double(), (0, ids.shape[1] - weights.shape[1]))
        report(number + 1)
    return total / len(texts)


def by_distance(profile: Tensor) -> Tensor:
    """(..., T - 1): weight by distance 1, 2, ... from the last token, of a profile (..., T) by position."""
    return profile[..., :-1].flip(-1)


def recent_peak_width(profile: Tensor) -> float:
    """Tokens from the query until a head's recent peak has fallen halfway to the level of the older tokens.

    `profile` (T,) by position. The level is the median weight of the older half of the tokens; the peak is the largest
    weight among the newer half. Linear between whole distances. NaN where the peak is less than twice the level: such a
    head has none.
    """
    weights = by_distance(profile)
    newer = max(1, int(len(weights) * (1 - OLDER_HALF)))
    level = weights[newer:].median() if newer < len(weights) else weights.new_zeros(())
    top = int(weights[:newer].argmax())
    if weights[top] < 2 * level or weights[top] <= 0:
        return float("nan")
    half = (weights[top] + level) / 2
    for place in range(top, len(weights)):
        if weights[place] < half:
            before, after = weights[place - 1], weights[place]
            return place + float((before - half) / (before - after))
    return float(len(weights))


def describe(profile: Tensor, context: int) -> dict[str, float]:
    """What a mean profile (T,) over heads is like, for a model trained on `context` tokens.

    - first: weight of the first token, as a multiple of the mean weight of all tokens (an attention sink).
    - newest: share of the weight on the newest eighth of a context.
    - beyond: share of the weight on tokens farther than a context; NaN where there are none. even: the share that equal
      weights would give them.
    - unevenness: standard deviation over mean of the weights between the first token and the newest eighth.
    """
    length, recent = len(profile), max(1, context // 8)
    middle = profile[1 : length - recent]
    beyond = profile[: max(0, length - context)]
    return {
        "first": float(profile[0] / profile.mean()),
        "newest": float(profile[length - recent :].sum() / profile.sum()),
        "beyond": float(beyond.sum() / profile.sum()) if len(beyond) else float("nan"),
        "even": len(beyond) / length if len(beyond) else float("nan"),
        "unevenness": float(middle.std() / middle.mean()),
    }
