"""The facts of a base model that a segmented model needs: layers, activations and positions."""

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.activations import GELUTanh, NewGELUActivation

from tessera.base.errors import TesseraError, expect

# Where the layers of a family have the network that works on each position alone.
FEED_FORWARD = {
    **dict.fromkeys(("gpt2", "gpt_neo", "gpt_neox", "llama", "mistral", "qwen2", "qwen3"), "mlp"),
    "memory_mosaic_v2": "persistent",
}
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


def feed_forward(base: PreTrainedModel, layer: nn.Module) -> nn.Module | None:
    """The position-wise network of a layer of `base`; None for families that are not known to have one."""
    name = FEED_FORWARD.get(base.config.model_type)
    return None if name is None else getattr(layer, name)


def fuse_activations(base: PreTrainedModel) -> None:
    """Replace GPT-2's GELU, written out as eight passes over the widest activation, by the same formula in one."""
    for module in base.modules():
        for name, child in module.named_children():
            if type(child) is NewGELUActivation:
                setattr(module, name, GELUTanh())


def position_table(base: PreTrainedModel) -> nn.Embedding | None:
    """The base's learned table of absolute positions (`wpe`), if it has one."""
    return getattr(base.base_model, "wpe", None)


def widen_positions(base: PreTrainedModel, front: int, back: int) -> None:
    """Give memory tokens rows of their own in the table of positions: `front` before and `back` behind the old ones.

    New rows are drawn with the spread of the old. Does nothing where the table already has its new size.
    """
    table = position_table(base)
    name = type(base).__name__
    expect(table is not None, name, "own_memory_positions", "be False without a learned table of positions", True)
    assert table is not None
    old = base.config.max_position_embeddings
    if table.num_embeddings == old + front + back:
        return
    expect(table.num_embeddings == old, name, "position table", f"have {old} rows", table.num_embeddings)
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


def expect_positions(base: PreTrainedModel, needed: int) -> None:
    """Raise `TesseraError` when a segment with its memory tokens does not fit into a learned table of positions."""
    table = position_table(base)
    rows = needed if table is None else table.num_embeddings
    needed_rows = f"with its memory tokens fit into the base's {rows} positions"
    expect(
        needed <= rows, type(base).__name__, "segment_size", needed_rows, f"{needed} positions", "Use shorter segments."
    )
