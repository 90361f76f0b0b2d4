"""The facts of a base model that a segmented model needs: layers, activations and positions."""

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.activations import GELUTanh, NewGELUActivation
from transformers.modeling_outputs import BaseModelOutput

from tessera.base.errors import TesseraError, expect
from tessera.models.causality import (
    NOTHING,
    can_be_tried,
    evaluating,
    expect_causal,
    first_position,
    learned_positions,
    trial_tokens,
    tried,
)
from tessera.models.recurrence.layer_hooks import MemoryLayer

# Where the layers of a family have the network that works on each position alone.
FEED_FORWARD = {
    **dict.fromkeys(("gpt2", "gpt_neo", "gpt_neox", "llama", "mistral", "qwen2", "qwen3"), "mlp"),
    "memory_mosaic_v2": "persistent",
}
ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}  # of the types of layers in transformers
WINDOWS = ("sliding_window", "window_size", "attention_chunk_size")  # names of their widths in configurations
INITIALIZED = "_is_hf_initialized"  # the attribute of what transformers must not draw anew


def layer_list(base: PreTrainedModel, path: str | None) -> nn.ModuleList:
    """The base's list of decoder layers: the one at `path`, else the only list as long as `num_hidden_layers`."""
    if path is not None:
        layers = base
        for name in path.split("."):
            layers = getattr(layers, name, None)
        is_list = isinstance(layers, nn.ModuleList)
        expect(is_list, "layers_path", repr(path), "name a ModuleList of the base", type(layers))
        return layers
    count = base.config.get_text_config().num_hidden_layers
    named = {name: m for name, m in base.named_modules() if isinstance(m, nn.ModuleList) and len(m) == count}
    outer = {name for name in named if not any(name.startswith(f"{other}.") for other in named)}
    if len(outer) != 1:
        raise TesseraError(
            f"{type(base).__name__}: cannot tell its list of decoder layers; found {sorted(outer) or 'none'} of length "
            f"{count}. Pass layers_path, such as 'transformer.h'."
        )
    return named[outer.pop()]


def fuse_activations(base: PreTrainedModel) -> None:
    """Replace GPT-2's GELU, written out as eight passes over the widest activation, by the same formula in one."""
    for module in base.modules():
        for name, child in module.named_children():
            if type(child) is NewGELUActivation:
                setattr(module, name, GELUTanh())


def computes_twice(model: nn.Module) -> bool:
    """Whether layers are computed again in the backward pass: gradient checkpointing, in training alone."""
    return model.training and any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


def takes_positions(base: PreTrainedModel) -> bool:
    """Whether the base can be told positions, so that rows of different lengths can be one batch."""
    return "position_ids" in inspect.signature(base.forward).parameters


def skips_padding(base: PreTrainedModel, positions: int) -> bool:
    """Whether padding between the tokens and the memory tokens of `positions` positions changes nothing.

    Attention does not see it. But a window counts it, and recurrent states and convolutions go on through it.
    """
    config = base.config.get_text_config()
    windows = [getattr(config, name, None) or positions for name in WINDOWS]
    return {*(getattr(config, "layer_types", None) or ())} <= ATTENTION and min(windows) >= positions


def position_table(base: PreTrainedModel) -> nn.Embedding | None:
    """The base's learned table of absolute positions that can grow (`wpe`), if it has one."""
    return getattr(base.base_model, "wpe", None)


def expect_positions(base: PreTrainedModel, segment: int, front: int, back: int, own: bool) -> None:
    """Raise `TesseraError` where a segment with its memory tokens does not fit into learned positions."""
    name, table = type(base).__name__, position_table(base)
    rows, needed = learned_positions(base), front + segment + back
    if own:
        expect(table is not None, name, "own_memory_positions", "be False without a learned table of positions", True)
        assert table is not None
        old = base.config.max_position_embeddings
        is_known = table.num_embeddings in (old, old + front + back)
        expect(is_known, name, "position table", f"have {old} rows", table.num_embeddings)
        rows = old + front + back
    rows = needed if rows is None else rows
    fit = f"with its memory tokens fit into the base's {rows} positions"
    expect(needed <= rows, name, "segment_size", fit, f"{needed} positions", "Use shorter segments.")


def expect_as_many_calls(base: PreTrainedModel, count: int) -> None:
    """Refuse what would never end: a base that FSDP spreads over processes waits in each call for those of all."""
    if torch.compiler.is_compiling() or not (dist.is_available() and dist.is_initialized()):
        return
    sharded = next((weight for weight in base.parameters() if isinstance(weight, DTensor)), None)
    if sharded is None:
        return
    mesh = sharded.device_mesh
    counts = torch.tensor([count, -count], device=mesh.device_type)
    dist.all_reduce(counts, dist.ReduceOp.MAX, mesh.get_group(mesh.ndim - 1))
    most, fewest = counts[0].item(), -counts[1].item()
    needed, advice = "have as many segments on every process", "Fill rows up with tokens whose labels are -100."
    expect(most == fewest, "forward under FSDP", "the longest row", needed, f"{fewest} to {most}", advice)


def widen_positions(base: PreTrainedModel, front: int, back: int) -> None:
    """Give memory tokens rows of their own in the table of positions: `front` before and `back` behind the old ones.

    New rows are drawn with the spread of the old. Does nothing where the table already has its new size.
    """
    table, old = position_table(base), base.config.max_position_embeddings
    assert table is not None, "expect_positions asks for it"
    if table.num_embeddings == old + front + back:
        return
    weight = table.weight
    new = nn.Embedding(old + front + back, table.embedding_dim, device=weight.device, dtype=weight.dtype)
    if not weight.is_meta:
        with torch.no_grad():
            new.weight.normal_(0.0, float(weight.std()))
            new.weight[front : front + old] = weight
    new.weight.requires_grad_(weight.requires_grad)
    for initialized in (new, new.weight):
        setattr(initialized, INITIALIZED, True)
    base.base_model.wpe = new


def expect_unwrapped(base: PreTrainedModel, where: str) -> None:
    """Raise `TesseraError` where there is a memory around layers of `base` already."""
    is_fresh = not any(isinstance(module, MemoryLayer) for module in base.modules())
    expect(is_fresh, where, "the model", "not be wrapped already", type(base).__name__)


def expect_base(base: PreTrainedModel, layers: nn.ModuleList, where: str) -> None:
    """Raise `TesseraError`, with nothing changed, unless a memory can be put around `layers` of `base`.

    Tried on a few tokens: that it has a head, takes embeddings and counts their positions from 0, calls its layers once
    each, in order, with hidden states, and is causal.
    """
    kind = type(base).__name__
    is_headed = base.get_output_embeddings() is not None and base.base_model is not base
    expect(is_headed, where, "the model", "make logits, as AutoModelForCausalLM loads it", kind)
    if not can_be_tried(base):
        return
    tokens = trial_tokens(base)
    called: list = []
    with ExitStack() as stack, evaluating(base), torch.no_grad():
        for index, layer in enumerate(layers):
            hook = _record(called, index, (1, tokens.shape[1]))
            stack.enter_context(layer.register_forward_pre_hook(hook, with_kwargs=True))
        positions = first_position(base) + torch.arange(tokens.shape[1], device=tokens.device)[None]
        said = {"position_ids": positions} if takes_positions(base) else {}
        expected = tried(where, base, input_ids=tokens).logits.float()
        called.clear()
        logits = tried(where, base, inputs_embeds=base.get_input_embeddings()(tokens), **said).logits.float()
    in_order = called == [(index, True) for index in range(len(layers))]
    expect(in_order, where, "the model", "call its layers one after the other with hidden states (B, T, hidden)", kind)
    scale = NOTHING * max(1e-3, float(expected.abs().max()))
    is_same = expected.shape == logits.shape and float((logits - expected).abs().max()) <= scale
    expect(is_same, where, "the model", "give the same logits for embeddings and positions as for tokens", kind)
    expect_causal(base, where)


def _record(called: list, index: int, shape: tuple[int, int]) -> Callable:
    def hook(layer: nn.Module, args: tuple, kwargs: dict) -> None:
        hidden = args[0] if args else kwargs.get("hidden_states")
        called.append((index, torch.is_tensor(hidden) and hidden.dim() == 3 and tuple(hidden.shape[:2]) == shape))

    return hook


class SegmentedBackbone:
    """Called as `model.base_model(input_ids, ...)`: the hidden states that the head makes logits of, (B, T, hidden).

    Tools that compute the loss themselves (TRL's SFTTrainer) call it in place of `forward`. The base alone would read
    without the memory, over all positions at once. Other attributes are the base's.
    """

    def __init__(self, base: PreTrainedModel, read: Callable[..., Any]) -> None:
        self._base, self._read = base, read

    def __call__(self, *arguments: Any, **keywords: Any) -> BaseModelOutput:
        """Arguments as those of the model's `forward`, without labels."""
        keywords |= {"output_hidden_states": True, "skip_logits": True, "return_dict": True}
        output = self._read(*arguments, **keywords)
        return BaseModelOutput(last_hidden_state=output.hidden_states[-1])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base, name)
