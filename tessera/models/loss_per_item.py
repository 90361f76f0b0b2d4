"""A summed loss as a mean: of one batch, or as its share of a mean over batches whose gradients are added."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tessera.ops.linear_cross_entropy import IGNORED


def summed_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of `logits` (..., V), in float32 at least, summed over the `targets` (...) that are not -100."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="sum")


def count_of_labels(labels: Tensor, are_shifted: bool) -> Tensor:
    """How many labels (B, T) are not -100; of those that are yet to be shifted, the first of a row is none."""
    return ((labels if are_shifted else labels[:, 1:]).long() != IGNORED).sum()


def loss_per_item(total: Tensor, num_counted: Tensor, num_labels: Tensor, num_items: Tensor | float | None) -> Tensor:
    """The summed loss of `num_counted` targets as a mean; `num_labels` without -100 were there before masks.

    `num_items` is what transformers' Trainer counts in all batches whose gradients are added: labels, also those that
    only padding or another document would predict. Then the result is this batch's share of its mean, by its labels, as
    nobody says how many count elsewhere: parts are one batch exactly where such labels are -100. A number below
    `num_labels` is no such count, and divides the sum as it is. A batch without labels has loss 0, though none has any.
    """
    if num_items is None:
        return total / num_counted
    items = divisor(num_labels, num_items)
    are_left_out = (num_counted < num_labels) & (num_labels <= items)
    return torch.where(are_left_out, share_of(total / num_counted.clamp(min=1), num_labels, items), total / items)


def share_of(mean: Tensor, num_labels: Tensor, num_items: Tensor | float | None) -> Tensor:
    """What a batch with `num_labels` adds to a mean over all batches of `loss_per_item`."""
    if num_items is None:
        return mean
    items = divisor(num_labels, num_items)
    return torch.where(num_labels <= items, mean * (num_labels.to(mean.dtype) / items), mean)


def divisor(num_labels: Tensor, num_items: Tensor | float) -> Tensor:
    """`num_items`; 1 for a batch without labels, whose loss of 0 it divides: no other batch may have any."""
    return torch.where(num_labels > 0, torch.as_tensor(num_items, device=num_labels.device), 1)
