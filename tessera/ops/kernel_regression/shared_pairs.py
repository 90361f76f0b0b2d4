"""Pairs that all sequences of a batch share, such as the slots of a persistent memory."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from tessera.base.devices import device_type, is_imagined
from tessera.kernels import RowKernel
from tessera.ops.kernel_regression import fused
from tessera.ops.kernel_regression.call import Call

SHORT = 16  # steps, up to which kernels without fused attention gain from it too: their blocks hold 128 queries


def is_one_sequence(call: Call) -> bool:
    """Whether sequences share all pairs, and their queries should be asked as those of one.

    That saves the gradients of B copies of the pairs. PyTorch's fused attention goes backward with one thread for each
    sequence and head, and Triton's kernels with one program for each head and block of pairs: so on CPUs alone, and
    with as many heads as threads. All queries must see the same pairs with the same scale: no window, no documents,
    no scale, and no alpha, that differs from step to step.
    """
    query = call.query
    if torch.compiler.is_compiling() or device_type(query) != "cpu" or 1 in (query.shape[0], query.shape[2]):
        return False
    if query.dtype not in (torch.float32, torch.float64):  # narrower ones have an implementation over all sequences
        return False
    if call.key.shape[0] != 1:
        return False
    if fused.unsupported_reason(call) is not None and query.shape[2] > SHORT:
        return False
    if call.window is not None or call.pair_documents is not None:
        return False
    of_rows = call.kernel.row_parameter if isinstance(call.kernel, RowKernel) else None
    each = (call.slope, call.intercept, None if of_rows is None else of_rows[..., 0])
    scales = [scale for scale in each if scale is not None]
    per_head = all(scale.shape[-1:] in ((), (1,)) and (scale.dim() < 3 or scale.shape[0] == 1) for scale in scales)
    # An imagined CPU has the threads of no machine in particular.
    return per_head and (is_imagined() or query.shape[1] >= torch.get_num_threads())


def run(call: Call, answers: Callable[[Call], Tensor]) -> Tensor:
    """`answers` of the queries of all sequences as one: (B, H, T, V)."""
    batch, _, steps, _ = call.query.shape
    query = call.query.transpose(0, 1).flatten(1, 2)[None]
    return answers(replace(call, query=query))[0].unflatten(1, (batch, steps)).transpose(0, 1)


def expanded(call: Call) -> Call:
    """The same call with pairs for each sequence, without a copy."""
    batch = call.query.shape[0]
    if call.key.shape[0] == batch:
        return call
    key, value = (pairs.expand(batch, -1, -1, -1) for pairs in (call.key, call.value))
    return replace(call, key=key, value=value)
