"""Decoding with compiled layers: one program of fixed shapes for each kind of layer, kept between processes."""

from typing import TypeVar

import torch
from torch import nn

from tessera.base.arguments import explains_mistakes
from tessera.base.errors import TesseraError, expect
from tessera.models.decoding.blocks import compile_blocks
from tessera.models.decoding.stack_steps import StackSteps
from tessera.models.decoding.weights import FORMATS
from tessera.models.drafted_generation import DraftedGeneration
from tessera.models.stack import StackForCausalLM

__all__ = ["compile_decoding"]

ModelT = TypeVar("ModelT", bound=nn.Module)
WHERE = "compile_decoding"
STEPS_PER_BLOCK = 4.5  # a step takes half the time, several tokens at once the same


@explains_mistakes
def compile_decoding(model: ModelT, weights: str = "float32") -> ModelT:
    """Make `model`, in evaluation and without gradients, decode by compiled layers from now on; returns it.

    Calls that read one token of each sequence behind a state take them; all others, and sequences with padding, are
    computed as before. A state made by either serves the other, and stays a value. Layers are compiled at the first
    such call (a C++ compiler is needed) and kept for later processes in `~/.cache/tessera` (or `$TESSERA_CACHE`).
    Where a module has a forward hook, or other adapters of PEFT act than at this call, it is asked itself. Changed
    weights are refused. What is written into `weight.data` PyTorch counts nowhere: it is noticed at the next prompt,
    where the number in the middle of a weight is another, so call `compile_decoding` again after it. A copy is not
    compiled.

    Args:
        model: a Memory Mosaic (v1 or v2), a linear transformer, ARMT, RMT or PRMT, or a transformer of the transformers
            library, on a CPU, in float32.
        weights: "float32", or "bf16" or "int8": matrices are read in so many bits, one scale for each output in int8.
            The model's own weights are rounded to the same numbers, once, so that prompts and losses are those of the
            rounded model; train before, not after. Memory use does not shrink.
    Raises:
        TesseraError: another kind of model, type or device; at the first step: no working C++ compiler.
    """
    expect(weights in FORMATS, WHERE, "weights", f"be one of {', '.join(FORMATS)}", weights)
    first = next(model.parameters(), None)
    if first is None or not hasattr(model, "config"):
        raise TesseraError(f"{WHERE}: model must be a language model; got {type(model).__name__}.")
    is_right = first.device.type == "cpu" and first.dtype == torch.float32
    expect(is_right, WHERE, "the model", "be on a CPU, in float32", f"{first.device.type}, {first.dtype}")
    if isinstance(model, DraftedGeneration):
        model.steps_per_block = STEPS_PER_BLOCK
    if not isinstance(model, StackForCausalLM):
        return compile_blocks(model, weights)
    model.forward = StackSteps(model, weights)  # type: ignore[method-assign]
    return model
