"""One token through a stack of memories by compiled layers: the state is taken apart into tensors, and put together."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers.modeling_outputs import CausalLMOutputWithPast

from tessera.base.state import State
from tessera.memories.pair_memory import PairMemory
from tessera.models.decoding.programs import STEP, first_rows, load, open_room, rows_to_read
from tessera.models.decoding.weights import StoredWeights, Watch, flat, unsized
from tessera.models.forward_arguments import embedded
from tessera.models.stack import StackForCausalLM
from tessera.models.stack_state import StackState
from tessera.recall.long_memories import SHORTEST
from tessera.recall.pair_store import PairStore

KNOWN = {"input_ids", "attention_mask", "past_key_values", "use_cache", "logits_to_keep", "return_dict"}


@dataclass(frozen=True)
class OpenStore(PairStore):
    """Pairs in buffers of which a program does not know how many are in use: `length` is a tensor (1,).

    A pair is written into the whole buffer, and what is read is cut out afterwards: of a part that is written to, a
    program would make a copy and copy that back. `window` has as many rows as are read.
    """

    window: Tensor

    @property
    def keys(self) -> Tensor:
        """As many as the program reads."""
        return first_rows(self.key_buffer, self.window)

    @property
    def values(self) -> Tensor:
        """As many as the program reads."""
        return first_rows(self.value_buffer, self.window)

    @property
    def documents(self) -> None:
        """None: all pairs are of one document."""
        return None

    def append(self, keys: Tensor, values: Tensor, documents: Tensor | None = None) -> "OpenStore":
        """Written into the buffer."""
        self.key_buffer.index_copy_(2, torch.as_tensor(self.length), keys)
        self.value_buffer.index_copy_(2, torch.as_tensor(self.length), values)
        return replace(self, length=self.length + 1)

    def newest(self, count: int) -> "OpenStore":
        """All of them: who calls the program forgets the others."""
        return self


Run = Callable[[list[Tensor]], list[Tensor]]


class StackSteps:
    """`forward` of `model`, whose steps of one token are done by programs, with weights of a format."""

    def __init__(self, model: StackForCausalLM, form: str):
        self.model = model
        self.plain = type(model).forward.__get__(model)
        self.__signature__ = inspect.signature(self.plain)
        layers = list(model.model.layers)
        self.how = StoredWeights(layers[0], form)
        self.weights = [self.how.of(layer) for layer in layers]
        self.flat_weights = [list(flat(weights)) for weights in self.weights]
        self.head = _Head(model)
        self.head_how = StoredWeights(self.head, form)
        self.head_weights = self.head_how.of(self.head)
        self.watch = Watch(model)
        self.flat_head_weights = list(flat(self.head_weights))
        self.spans = [memory.window.span for memory in layers[0].modules() if isinstance(memory, PairMemory)]
        self.programs: dict[Any, tuple[Run, Run]] = {}  # of a layer and of the head, for each kind of state

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """One token behind a state by programs, anything else by the model itself."""
        said = {**dict(zip(("input_ids",), arguments, strict=False)), **keywords}
        output = self.try_step(**said) if len(arguments) < 2 else None
        if output is not None:
            return output
        self.watch.look()
        return self.plain(*arguments, **keywords)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy of the model is not compiled."""
        model = memo[id(self.model)]
        return type(model).forward.__get__(model)

    def try_step(self, **keywords: Any) -> CausalLMOutputWithPast | None:
        """What the model says to one more token of each sequence; None: the call is of another kind."""
        past: Any = keywords.get("past_key_values")
        ids: Any = keywords.get("input_ids")
        is_step = self._is_step(past, ids, keywords) and self.watch.may_run()
        if not is_step:
            return None
        stack = self.model.model
        model = stack._fingerprint.of(stack, False)
        hidden, states = embedded(type(stack).__name__, stack.embed_tokens, ids), []
        past = past.fitting(type(stack).__name__, model, hidden)
        stored = next((leaf for leaf in leaves_of(past.layers[0]) if isinstance(leaf, PairStore)), None)
        if stored is not None and stored.key_buffer.dtype != hidden.dtype:
            past = past.to(hidden.dtype)  # a program writes into the buffers that it is given
        ends: dict[tuple[int, int], list[Tensor]] = {}  # mostly the same in all layers
        layers = [layer.goes_on_from(state) for layer, state in zip(stack.layers, past.layers, strict=True)]
        run_layer, run_head = self._programs(hidden, layers[0], model)
        for weights, before in zip(self.flat_weights, layers, strict=True):
            stores: list[PairStore] = []
            others: list[Tensor] = []
            for leaf in leaves_of(before):
                if isinstance(leaf, PairStore):
                    stores.append(_with_room(leaf, self.spans[len(stores)]))
                else:
                    others.append(leaf.contiguous())
            arguments = [*weights, hidden]
            for store in stores:
                key = (store.length, store.key_buffer.shape[2])
                if key not in ends:
                    ends[key] = [rows_to_read(*key), torch.tensor([store.length])]
                arguments += [store.key_buffer, store.value_buffer, *ends[key]]
            hidden, *others = run_layer([*arguments, *others])
            states.append(put_together(before, map(_appended, stores), iter(others)))
        logits = run_head([*self.flat_head_weights, hidden])[0]
        state = StackState(tuple(states), past.length + 1, None, model)
        return CausalLMOutputWithPast(logits=logits, past_key_values=state)

    def _is_step(self, past: Any, ids: Any, keywords: dict[str, Any]) -> bool:
        is_one = isinstance(past, StackState) and past.document is None and ids is not None and ids.shape[1:] == (1,)
        if not is_one or self.model.training or torch.is_grad_enabled() or not keywords.keys() <= KNOWN:
            return False
        if past.length >= SHORTEST:  # where an index may read less than a program
            return False
        mask = keywords.get("attention_mask")
        has_padding = mask is not None and (mask.shape != (len(ids), past.length + 1) or not bool(mask[:, -1].all()))
        config, chosen = self.model.config, {name: said for name, said in keywords.items() if said is not None}
        is_usual = all(chosen.get(name, getattr(config, name)) for name in ("use_cache", "return_dict"))
        is_usual = is_usual and not (config.output_hidden_states or config.output_attentions)
        return is_usual and not has_padding and keywords.get("logits_to_keep", 0) in (0, 1)

    def _programs(self, hidden: Tensor, state: Any, model: str) -> tuple[Run, Run]:
        config, stack = self.model.config, self.model.model
        kinds = tuple(type(leaf).__name__ for leaf in leaves_of(state))
        extra = stack.layer_arguments(hidden)
        adjusted = tuple(getattr(config, name) for name in sorted(config.adjustable))  # a fingerprint leaves them out
        key = (len(hidden), kinds, tuple(extra.items()), adjusted)
        buffers = (leaf.key_buffer if isinstance(leaf, PairStore) else leaf for leaf in leaves_of(state))
        known = (key, tuple(buffer.dtype for buffer in buffers))  # a program reads whatever lies there as its own dtype
        if known in self.programs:
            return self.programs[known]
        settings = (type(self.model).__name__, model.split(":")[0], self.how.form, config.logit_scale, *key)
        name = f"one decoding step of a {type(self.model).__name__}"

        def layer(tensors: Any, hidden: Tensor, stores: Any, others: Any) -> list[Tensor]:
            tip: Any = None  # whoever calls the program counts what it appends
            opened = (OpenStore(k, v, None, place, tip, window) for k, v, window, place in stores)
            before = put_together(state, opened, iter(others))
            options = {"state": before, "keep_state": True, **extra}
            weights = self.how.read(tensors, hidden)
            hidden, after = functional_call(stack.layers[0], weights, (hidden,), options)
            return [hidden, *(leaf for leaf in leaves_of(after) if not isinstance(leaf, PairStore))]

        def head(tensors: Any, hidden: Tensor) -> Tensor:
            return functional_call(self.head, self.head_how.read(tensors, hidden), (hidden,))

        leaves = list(leaves_of(state))
        stores = [leaf for leaf in leaves if isinstance(leaf, PairStore)]
        rooms = [open_room(store.key_buffer, store.value_buffer, index) for index, store in enumerate(stores)]
        others = [leaf.contiguous() for leaf in leaves if not isinstance(leaf, PairStore)]
        arguments = (self.weights[0], hidden, [room for room, _ in rooms], others)
        sizes = (unsized(self.weights[0]), None, [sizes for _, sizes in rooms], unsized(others))
        run_layer = load(f"{name}: its layers", settings, layer, arguments, sizes)
        no_sizes = (unsized(self.head_weights), None)
        run_head = load(f"{name}: its head", settings, head, (self.head_weights, hidden), no_sizes)
        return self.programs.setdefault(known, (run_layer, run_head))


class _Head(nn.Module):
    """From the last layer's output to logits."""

    def __init__(self, model: StackForCausalLM):
        super().__init__()
        self.norm, self.lm_head, self.scale = model.model.norm, model.lm_head, model.config.logit_scale

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits (B, 1, V)."""
        return self.lm_head(self.norm(hidden)) * self.scale


def leaves_of(state: Any) -> Iterator[Any]:
    """The tensors and stores of pairs that a layer's state is made of."""
    if isinstance(state, Tensor | PairStore):
        yield state
    elif state is not None:
        for part in state if isinstance(state, tuple) else state.parts().values():
            yield from leaves_of(part)


def put_together(like: Any, stores: Iterator[Any], others: Iterator[Tensor]) -> Any:
    """A state like `like`, of other stores and tensors."""
    if isinstance(like, PairStore):
        return next(stores)
    if isinstance(like, Tensor):
        return next(others)
    if isinstance(like, tuple):
        return tuple(put_together(part, stores, others) for part in like)
    if isinstance(like, State):
        return type(like)(**{name: put_together(part, stores, others) for name, part in like.parts().items()})
    return like


def _with_room(store: PairStore, span: int | None) -> PairStore:
    """The same pairs, those that no query will see left out now and then, with room for one more."""
    if span is not None and store.length >= span - 1 + STEP:
        first = store.length - span + 1
        store = PairStore.of(store.keys[:, :, first:], store.values[:, :, first:])
    return store.with_room(store.length + 1)


def _appended(store: PairStore) -> PairStore:
    """The store with the pair that a program wrote into its buffers."""
    return replace(store, length=store.length + 1)
