"""One token through the blocks of a transformer of the transformers library by compiled ones, alone or inside ARMT.

The library's `DynamicCache` stays what it is: its keys and values become the used parts of buffers with room.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_unflatten
from transformers.cache_utils import DynamicCache, DynamicLayer

from tessera.base.errors import expect
from tessera.models.decoding.programs import STEP, first_rows, load, open_room, rows_to_read
from tessera.models.decoding.weights import StoredWeights, Watch, flat, unsized
from tessera.models.recurrence.base_model import layer_list
from tessera.models.recurrence.layer_hooks import MemoryLayer

FAMILIES = ("gpt2", "gpt_neox", "llama")  # all blocks alike, attention over all that was read
SOFTMAX = ("eager", "sdpa", "flex_attention")  # what programs compute: other implementations may be kernels
ROOM = "_tessera_room"  # the attribute of a layer of a cache
# Fields of a configuration that a block does not depend on.
UNRELATED = "_name_or_path transformers_version dtype architectures use_cache vocab_size n_positions n_ctx".split()
UNRELATED += ["max_position_embeddings"]


def compile_blocks(model: Any, form: str) -> Any:
    """Make the blocks of `model`, or of the base that it is wrapped around, read one token by a program."""
    base = getattr(model, "base", model)
    config = base.config
    is_known = config.model_type in FAMILIES and not getattr(config, "scale_attn_by_inverse_layer_idx", False)
    names = ", ".join(FAMILIES)
    expect(is_known, "compile_decoding", "the model", f"be a mosaic, or one of, or around, {names}", config.model_type)
    chosen = config._attn_implementation
    expect(chosen in SOFTMAX, "compile_decoding", "attn_implementation", f"be one of {', '.join(SOFTMAX)}", chosen)
    layers = layer_list(base, getattr(model.config, "layers_path", None))
    blocks = [layer.layer if isinstance(layer, MemoryLayer) else layer for layer in layers]
    shared = _Shared(base, blocks[0], form)
    for index, block in enumerate(blocks):
        block.forward = _CompiledBlock(shared, block, index)
    return model


class _Shared:
    """What the blocks of one model have in common: how weights are stored, and the programs."""

    def __init__(self, base: Any, block: nn.Module, form: str):
        self.how, self.block, self.name = StoredWeights(block, form), block, type(base).__name__
        self.plain = type(block).forward.__get__(block)
        self.config = base.config
        settings = base.config.to_dict()
        self.settings = str(sorted((k, str(v)) for k, v in settings.items() if k not in UNRELATED)) + form
        self.programs: dict[Any, Callable[[list[Tensor]], list[Tensor]]] = {}

    def program(self, weights: list, hidden: Tensor, cache: list[Tensor], cache_name: str, others: dict[str, Any]):
        """The compiled block for further arguments like `others`."""
        leaves, spec = tree_flatten(others)
        shapes = tuple(tuple(leaf.shape) if torch.is_tensor(leaf) else repr(leaf) for leaf in leaves)
        key = (len(hidden), cache_name, str(spec), shapes)
        if key in self.programs:
            return self.programs[key]

        def block(tensors: Any, hidden: Tensor, room: Any, extra_tensors: list[Tensor]) -> Tensor:
            rest = iter(extra_tensors)
            filled = [next(rest) if torch.is_tensor(leaf) else leaf for leaf in leaves]
            opened = _OpenCache(*room)
            options = {**tree_unflatten(filled, spec), cache_name: opened, "attention_mask": opened.mask(hidden.dtype)}
            return functional_call(self.block, self.how.read(tensors, hidden), (hidden,), options)

        extra_tensors = [leaf for leaf in leaves if torch.is_tensor(leaf)]
        room, room_sizes = open_room(cache[0], cache[1], 0)
        sizes = (unsized(weights), None, room_sizes, unsized(extra_tensors))
        compiled, chosen = self.block.forward, self.config._attn_implementation
        self.block.forward, self.config._attn_implementation = self.plain, "eager"  # products, which RowProducts sees
        try:
            name = f"one decoding step of a {self.name}: its blocks"
            run = load(name, (self.settings, *key), block, (weights, hidden, room, extra_tensors), sizes)
        finally:
            self.block.forward, self.config._attn_implementation = compiled, chosen
        return self.programs.setdefault(key, run)


class _CompiledBlock:
    """`forward` of a block."""

    def __init__(self, shared: _Shared, block: nn.Module, index: int):
        self.shared, self.block, self.index = shared, block, index
        self.weights = shared.how.of(block)
        self.watch = Watch(*block.children())
        self.dtype = next(block.parameters()).dtype
        self.plain = type(block).forward.__get__(block)
        self.__signature__ = signature = inspect.signature(self.plain)
        self.cache_name = next(name for name in ("past_key_values", "layer_past") if name in signature.parameters)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy of the model is not compiled."""
        block = memo[id(self.block)]
        return type(block).forward.__get__(block)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One token behind a `DynamicCache` by the program, anything else by the block itself."""
        bound = self.__signature__.bind(*args, **kwargs).arguments
        arguments = {**bound, **bound.pop("kwargs", {})}
        arguments.pop("kwargs", None)
        hidden, cache = arguments.pop("hidden_states"), arguments.pop(self.cache_name, None)
        layers = cache.layers if isinstance(cache, DynamicCache) else []
        layer: Any = layers[self.index] if self.index < len(layers) else None
        is_behind = type(layer) is DynamicLayer and layer.is_initialized and layer.get_seq_length() > 0
        is_step = hidden.shape[1] == 1 and not (self.block.training or torch.is_grad_enabled())
        may_run = is_behind and is_step and arguments.pop("attention_mask", None) is None
        # A program reads whatever lies there as rows and numbers of its own.
        may_run = may_run and len(layer.keys) == len(hidden) and hidden.dtype == layer.keys.dtype == self.dtype
        may_run = may_run and self.shared.config._attn_implementation in SOFTMAX and self.watch.may_run()
        if not may_run:
            self.watch.look()
            return self.plain(*args, **kwargs)
        keys, values = _with_room(layer)
        length = layer.get_seq_length()
        room = [keys, values, rows_to_read(length, keys.shape[2]), torch.tensor([length])]
        run = self.shared.program(self.weights, hidden, room, self.cache_name, arguments)
        extra_tensors = [leaf.contiguous() for leaf in tree_flatten(arguments)[0] if torch.is_tensor(leaf)]
        output = run([*flat(self.weights), hidden.contiguous(), *room, *extra_tensors])[0]
        layer.keys, layer.values = keys[:, :, : length + 1], values[:, :, : length + 1]
        return output


class _OpenCache:
    """Of one block, in buffers of which the program does not know how much is in use: what `update` asks of a cache."""

    def __init__(self, keys: Tensor, values: Tensor, window: Tensor, place: Tensor):
        self.keys, self.values, self.window, self.place = keys, values, window, place

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """All that is to be read, with one more position; written into the whole buffers, so that nothing is copied."""
        for buffer, new in ((self.keys, keys), (self.values, values)):
            buffer.index_copy_(2, self.place, new)
        return first_rows(self.keys, self.window), first_rows(self.values, self.window)

    def mask(self, dtype: torch.dtype) -> Tensor:
        """What is added to scores: -inf where nothing was read yet."""
        is_read = torch.arange(self.window.shape[0]) <= self.place
        return torch.where(is_read, 0.0, -torch.inf).to(dtype)[None, None, None]


def _with_room(layer: Any) -> Any:
    """Buffers that begin with the keys and values of a layer of a cache, and have room for one more."""
    buffers = getattr(layer, ROOM, None)
    is_ours = buffers is not None and all(
        used.data_ptr() == buffer.data_ptr() and len(used) == len(buffer) and used.shape[2] < buffer.shape[2]
        for used, buffer in zip((layer.keys, layer.values), buffers, strict=True)
    )
    if not is_ours:
        more = max(STEP, layer.keys.shape[2])
        buffers = tuple(torch.nn.functional.pad(used, (0, 0, 0, more)) for used in (layer.keys, layer.values))
        setattr(layer, ROOM, buffers)
    return buffers
