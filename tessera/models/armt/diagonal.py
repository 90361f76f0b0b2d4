"""Diagonal batching: cells (segment s, layer l) with equal s + l do not depend on each other and run as one step.

Layer l of segment s needs layer l - 1 of segment s, and the memory that layer l left after segment s - 1. Reading n
segments with L layers one after the other takes n L steps; along diagonals it takes n + L - 1, each of up to L cells
whose weights are stacked, so that L small products become one batched product (Sivtsov et al. 2025, "Diagonal
Batching"). The sums are the same. It should pay where one segment alone leaves the device idle (small segments, GPUs);
`python -m benchmarks.armt_diagonal` measures where it does.
"""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import fields
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from tessera.base.errors import TesseraError, expect, first_line
from tessera.memories.association import AssociationMemory, AssociationState
from tessera.models.armt.modeling import ARMTForCausalLM, ARMTState
from tessera.models.causality import NOTHING, evaluating
from tessera.models.recurrence.base_model import layer_list
from tessera.models.recurrence.layer_hooks import LayerHooks
from tessera.models.recurrence.segment_runner import Segment
from tessera.models.recurrence.segmented_input import SegmentCut
from tessera.models.recurrence.stream import ids_of, parts_of, read_stream

_ALIKE: WeakSet[ARMTForCausalLM] = WeakSet()  # those that `_expect_alike` has tried


class _Skip(LayerHooks):
    """Skips the layers: the last one returned `output`, or what enters the first, which is kept; so are all arguments.

    `like` is what the first layer returned in another call; None: not known yet.
    """

    def __init__(self, back: int, like: Any = None, output: Tensor | None = None):
        super().__init__(back=back)
        self.like, self.output = like, output
        self.arguments: list[tuple[tuple, dict]] = []  # of each layer

    def run(self, index: int, layer: nn.Module, hidden: Tensor, args: tuple, kwargs: dict) -> Any:
        """See `LayerHooks`."""
        self.arguments.append((args, kwargs))
        if index == 0:
            self.hidden = hidden
            if self.like is None:  # the layer runs once to show its output
                with torch.no_grad():
                    self.like = layer(hidden, *args, **kwargs)
        result = hidden if self.output is None else self.output
        if not isinstance(self.like, (tuple, list)):
            return result
        return type(self.like)((result, *[None] * (len(self.like) - 1)))  # without what else the layer keeps


class _Cell(nn.Module):
    """One layer with its memory: reads, runs, writes. All cells of a model have the same structure."""

    def __init__(self, layer: nn.Module, memory: AssociationMemory, written: int):
        super().__init__()
        self.layer, self.memory, self.written = layer, memory, written

    def forward(self, hidden: Tensor, matrix: Tensor, normaliser: Tensor, empty: Tensor, args: tuple, kwargs: dict):
        """The hidden states after the layer, and the memory's tensors after the segment."""
        state = AssociationState(matrix, normaliser, empty)
        output = self.layer(hidden + self.memory(hidden, state), *args, **kwargs)
        output = output[0] if isinstance(output, (tuple, list)) else output
        new = self.memory.write(output[:, -self.written :], state)
        return output, new.matrix, new.normaliser, new.empty


def read_diagonally(
    model: ARMTForCausalLM, input_ids: Tensor, state: ARMTState | None = None
) -> tuple[Tensor, ARMTState]:
    """Logits (B, T, vocabulary) and memory of `model(input_ids, memory_state=state)`, computed along diagonals.

    T must be a multiple of the segment size, and all layers of the base of one structure; no padding. Differentiable.
    Costs the memory of L cells and one stacked copy of the layers' weights.
    """
    size = _segment_size(model, "read_diagonally")
    is_complete = input_ids.shape[1] > 0 and input_ids.shape[1] % size == 0
    expect(is_complete, "read_diagonally", "input_ids", f"hold whole segments of {size} tokens", input_ids.shape[1])
    hidden, new, like = _read(model, input_ids, state)
    heads = [_Skip(model.config.num_memory_tokens, like, states) for states in hidden]
    outputs = (_call(model, tokens, head, "logits") for tokens, head in zip(input_ids.split(size, 1), heads))
    return torch.cat([output.logits[:, :size] for output in outputs], 1), new


@torch.no_grad()
def read_stream_diagonally(
    model: ARMTForCausalLM, tokens: Iterable[int], memory_state: ARMTState | None = None, segments: int = 64
) -> ARMTState:
    """What `read_stream` returns, computed along diagonals, `segments` segments at a time.

    With L layers these take `segments + L - 1` steps; memory O(segments), constant in the number of tokens.
    """
    size = _segment_size(model, "read_stream_diagonally")
    expect(segments >= 1, "read_stream_diagonally", "segments", "be at least 1", segments)
    state: Any = model.empty_memory(1) if memory_state is None else memory_state
    device = model.get_input_embeddings().weight.device
    for piece in parts_of(tokens, SegmentCut(segments * size)):
        end = len(piece) // size * size
        if end:
            state = _read(model, ids_of(piece[:end])[None].to(device), state)[1]
        if end < len(piece):
            state = read_stream(model, piece[end:], state)
    return state


def _segment_size(model: ARMTForCausalLM, where: str) -> int:
    """Of all segments, which are equally long."""
    expect(isinstance(model, ARMTForCausalLM), where, "model", "be ARMT", type(model).__name__)
    ends = model.config.segment_end_ids
    expect(ends is None, where, "segment_end_ids", "be None, as diagonals need segments of one length", ends)
    return model.config.segment_size


def _read(model: ARMTForCausalLM, input_ids: Tensor, state: Any) -> tuple[list[Tensor], ARMTState, Any]:
    """What the last layer says of each segment, the memory after all of them, and in what form a layer returns it."""
    rows = input_ids.shape[0]
    if state is not None:
        state.expect_fits(model.empty_memory(1), "read_diagonally")
        is_shared = state.batch_size > 0 and rows % state.batch_size == 0
        needed = f"have a number of rows that divides {rows}, the rows of input_ids"
        expect(is_shared, "read_diagonally", "state", needed, state.batch_size)
    state = model.empty_memory(rows) if state is None else state.for_batch(rows)
    first, *others = input_ids.split(model.config.segment_size, 1)
    captured = [_captured(model, first)]
    _expect_alike(model, captured[0])
    captured += [_captured(model, part, captured[0].like) for part in others]
    hidden, layers = _run_diagonals(model, [call.hidden for call in captured], captured[0].arguments[0], state)
    counts = state.tokens_read + input_ids.shape[1], state.segments_read + len(hidden)
    return hidden, ARMTState(tuple(layers), *counts, state.model), captured[0].like


@torch.no_grad()
def _expect_alike(model: ARMTForCausalLM, call: _Skip) -> None:
    """Refuse layers that differ in more than weights: in windows, positions or scales. Tried once, on one segment."""
    if model in _ALIKE:
        return
    layers: Any = [wrapped.layer for wrapped in layer_list(model.base, model.config.layers_path)]
    advice = "Read with model(...) or read_stream."
    with evaluating(model):
        for layer, (args, kwargs) in zip(layers, call.arguments, strict=True):
            weights = {**dict(layer.named_parameters()), **dict(layer.named_buffers())}
            (first_args, first_kwargs), outputs = call.arguments[0], [layer(call.hidden, *args, **kwargs)]
            outputs.append(functional_call(layers[0], weights, (call.hidden, *first_args), first_kwargs))
            own, as_first = (each[0] if isinstance(each, (tuple, list)) else each for each in outputs)
            differ = (own - as_first).abs().max() > NOTHING * own.abs().max()
            needed = "have layers that differ in their weights alone"
            expect(not bool(differ), "read_diagonally", "model", needed, type(model.base).__name__, advice)
    _ALIKE.add(model)


def _run_diagonals(model: ARMTForCausalLM, hidden: list[Tensor], arguments: tuple, state: ARMTState):
    """The last layer's output of every segment, and the states of all layers after the last segment."""
    cells = _cells(model)
    # torch.func.stack_module_state would cut the gradients off.
    parameters = _stacked([dict(cell.named_parameters()) for cell in cells])
    buffers = _stacked([dict(cell.named_buffers()) for cell in cells])
    skeleton = cells[0]
    count, segments = len(cells), len(hidden)
    memory = [tuple(getattr(layer, f.name) for f in fields(layer)) for layer in state.layers]

    def cell(weights: dict, held: dict, *inputs: Tensor):
        return functional_call(skeleton, (weights, held), (*inputs, *arguments))

    for step in range(segments + count - 1):
        first, last = max(0, step - segments + 1), min(count - 1, step)
        active = range(first, last + 1)
        weights, held = ({k: v[first : last + 1] for k, v in stack.items()} for stack in (parameters, buffers))
        inputs = [torch.stack([hidden[step - l] for l in active])]
        inputs += [torch.stack([memory[l][i] for l in active]) for i in range(3)]
        outputs, *written = _batched(cell, weights, held, *inputs)
        for row, l in enumerate(active):
            hidden[step - l] = outputs[row]
            memory[l] = tuple(tensors[row] for tensors in written)
    return hidden, [AssociationState(*tensors) for tensors in memory]


def _batched(cell: Callable, weights: dict, held: dict, *inputs: Tensor) -> tuple[Tensor, ...]:
    """`torch.vmap` of a cell, which not every layer can be: operations of one's own and looks at values cannot."""
    try:
        # On CPUs only the plain implementation of attention can be batched over cells.
        with sdpa_kernel(SDPBackend.MATH) if inputs[0].device.type == "cpu" else nullcontext():
            return torch.vmap(cell, randomness="different")(weights, held, *inputs)
    except RuntimeError as error:
        raise TesseraError(
            "read_diagonally: the layers of the base must be such that torch.vmap can batch them; "
            f"got: {first_line(error)}. Read with model(...) or read_stream."
        ) from error


def _stacked(named: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    same = all({k: v.shape for k, v in cell.items()} == {k: v.shape for k, v in named[0].items()} for cell in named)
    expect(same, "read_diagonally", "model", "have layers of one structure", "different ones")
    return {name: torch.stack([cell[name] for cell in named]) for name in named[0]}


def _cells(model: ARMTForCausalLM) -> list[_Cell]:
    layers: Any = layer_list(model.base, model.config.layers_path)
    pairs, written = zip(layers, model.memories.in_order()), model.config.num_memory_tokens
    return [_Cell(wrapped.layer, memory, written).train(model.training) for wrapped, memory in pairs]


def _captured(model: ARMTForCausalLM, tokens: Tensor, like: Any = None) -> _Skip:
    capture = _Skip(model.config.num_memory_tokens, like)
    _call(model, tokens, capture, "nothing")
    return capture


def _call(model: ARMTForCausalLM, tokens: Tensor, hooks: LayerHooks, needed: str) -> Any:
    """The base model around skipped layers, over one segment with its memory tokens."""
    memory = model.memory_tokens(tokens.shape[0])
    embeddings = model.get_input_embeddings()(tokens)
    segment = Segment(embeddings, needed=needed)
    return model.segment_runner().call_base(torch.cat([embeddings, memory], 1), segment, hooks)
