"""The association matrix on GPUs: a reading in one launch and a writing in one, where PyTorch needs four and fifteen.

The sums are small (tens of pairs, hundreds of features), so launches and passes over A cost more than the products.
The backward pass is PyTorch's products (`gradients`), from recomputed values.
"""

import torch
from torch import Tensor

from tessera.ops.association_matrix.call import ReadCall, WriteCall
from tessera.ops.association_matrix.triton_op import read_op, write_op
from tessera.ops.triton_device import unsupported_device

MOST_PAIRS = 128


def unsupported_reason(call: ReadCall | WriteCall) -> str | None:
    """Why this call cannot run here, or None."""
    tensors = (call.key, call.value, call.strength) if isinstance(call, WriteCall) else (call.query,)
    memory_dtypes, dtypes = {call.matrix.dtype, call.normaliser.dtype}, {x.dtype for x in tensors}
    alike = len(memory_dtypes) == len(dtypes) == 1 and dtypes <= {torch.float32, torch.float16, torch.bfloat16}
    if not alike or not memory_dtypes <= dtypes | {torch.float32}:
        names = ", ".join(sorted(map(str, memory_dtypes | dtypes)))
        return (
            "what meets the memory must be of one dtype of float32, float16, bfloat16, and the memory of this or "
            f"float32; got {names}"
        )
    if isinstance(call, WriteCall) and call.order != "parallel":
        return "a sequential writing has nothing to do at once"
    if isinstance(call, WriteCall) and call.key.shape[1] > MOST_PAIRS:
        return f"at most {MOST_PAIRS} pairs fit in registers; got {call.key.shape[1]}"
    if 0 in call.matrix.shape or 0 in tensors[0].shape:
        return "an empty tensor has nothing to compute"
    return unsupported_device(call.matrix)


def run(call: ReadCall | WriteCall) -> Tensor | tuple[Tensor, Tensor]:
    """What a reading answers, or the memory that a writing of all pairs at once leaves."""
    if isinstance(call, ReadCall):
        return read_op(call.matrix, call.normaliser, call.query, call.eps)
    pairs = (call.key, call.value, call.strength)
    return write_op(call.matrix, call.normaliser, *pairs, call.empty, call.correction, call.eps, call.gate_normaliser)
