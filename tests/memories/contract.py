"""What every memory must satisfy, as laws that raise AssertionError; run on right and on wrong memories."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tessera.base.errors import TesseraError
from tessera.base.state import State
from tessera.memories.contextual import ContextualMemory
from tessera.memories.linear_attention import VARIANTS, LinearAttentionMemory
from tessera.memories.linear_contextual import LinearContextualMemory
from tessera.memories.long_term import LongTermMemory
from tessera.memories.persistent import PersistentMemory
from tessera.memories.short_term import ShortTermMemory
from tests.tolerances import REORDERED_FLOAT64

BATCH, STEPS, HIDDEN, HEADS = 3, 23, 12, 2
CHANGED = 14  # the step whose change no earlier answer may show
CUTS = ([STEPS], [1] * STEPS, [7, 1, 13, 2], [2, 21])
BORDERS = (0, 5, 6, 17, STEPS)


@dataclass(frozen=True)
class Case:
    """A memory to test.

    Attributes:
        build: the memory in float64, in evaluation mode, always the same weights.
        has_documents: whether `forward` takes documents.
        bfloat16: how far bfloat16 may be from float64, relative to the largest answer; None: not tested (a choice of
            neighbours may change).
    """

    build: Callable[[], nn.Module]
    has_documents: bool = True
    bfloat16: float | None = 0.05


def built(make: Callable[[], nn.Module]) -> nn.Module:
    """The memory with weights of a size at which it matters what is recalled."""
    torch.manual_seed(1)
    memory = make()
    with torch.no_grad():
        for parameter in memory.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return memory.double().eval()


class Delayed(LongTermMemory):
    """A long-term memory whose delay is 4."""

    def forward(self, x, state=None, documents=None, keep_state=False):
        return super().forward(x, state, documents, keep_state, delay=4)


KERNELS = {"gaussian": "gaussian", "compact": "biweight", "anchored": "relumax"}
NEIGHBOURS = {"name": "knn", "base": "gaussian", "k": 3}


def contextual(kernel="gaussian", **options) -> nn.Module:
    """A contextual memory."""
    return ContextualMemory(HIDDEN, HEADS, kernel, **options)


CASES = {
    **{f"contextual {name}": Case(partial(built, partial(contextual, kernel))) for name, kernel in KERNELS.items()},
    "contextual neighbours": Case(partial(built, partial(contextual, NEIGHBOURS)), bfloat16=None),
    "contextual, convolution": Case(partial(built, partial(contextual, value_extractor="convolution", bias=True))),
    "contextual, delay 2": Case(partial(built, partial(contextual, delay=2, mean_keys=True, norm_eps=0.1))),
    "persistent": Case(partial(built, lambda: PersistentMemory(HIDDEN, HEADS, 5, 2, "gaussian"))),
    **{
        f"short-term {name}": Case(partial(built, partial(ShortTermMemory, HIDDEN, HEADS, kernel, 6)))
        for name, kernel in KERNELS.items()
    },
    **{
        f"long-term {name}": Case(partial(built, partial(Delayed, HIDDEN, HEADS, kernel)))
        for name, kernel in KERNELS.items()
    },
    "linear contextual": Case(
        partial(built, lambda: LinearContextualMemory(HIDDEN, HEADS, 6, inverse_bandwidth=2.0, dtype=torch.float64)),
        has_documents=False,
        bfloat16=None,
    ),
    **{variant: Case(partial(built, partial(LinearAttentionMemory, HIDDEN, HEADS, variant))) for variant in VARIANTS},
}


def inputs() -> Tensor:
    """x (BATCH, STEPS, HIDDEN) in float64."""
    return torch.randn(BATCH, STEPS, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def close(one: Tensor, other: Tensor, tolerance: float = REORDERED_FLOAT64) -> bool:
    """Equal but for the order of sums."""
    return one.shape == other.shape and bool(((one - other).abs() <= tolerance).all())


def read(memory: nn.Module, x: Tensor, sizes: list[int], state: State | None = None) -> tuple[Tensor, State]:
    """The answers to `x` read in pieces of these sizes, and the last state."""
    answers = []
    for piece in x.split(sizes, dim=1):
        answer, state = memory(piece, state, keep_state=True)
        answers.append(answer)
    return torch.cat(answers, 1), state


@torch.no_grad()
def check_any_cut(case: Case) -> None:
    """Reading in any pieces, down to single steps, is reading the whole; the answers are not all zero."""
    memory, x = case.build(), inputs()
    expected, none = memory(x)
    assert none is None, "a state comes back unasked"
    assert expected.shape == x.shape, "answers have another shape than the input"
    assert expected.abs().max() > 1e-3, "the memory answers nothing"
    for sizes in CUTS:
        answers, _ = read(memory, x, sizes)
        assert close(answers, expected), f"reading in pieces of {sizes} differs from the whole"


@torch.no_grad()
def check_causality(case: Case) -> None:
    """A change of one step changes no answer before it, and some answer at it or after it."""
    memory, x = case.build(), inputs()
    changed = x.clone()
    changed[:, CHANGED] += 1.0
    before, after = memory(x)[0], memory(changed)[0]
    assert close(before[:, :CHANGED], after[:, :CHANGED]), "an answer owes something to a later step"
    assert not close(before[:, CHANGED:], after[:, CHANGED:]), "a step changes nothing"


@torch.no_grad()
def check_packing(case: Case) -> None:
    """Documents packed into one sequence, cut anywhere, are answered as if each were alone."""
    if not case.has_documents:
        return
    memory, x = case.build(), inputs()
    lengths = [stop - start for start, stop in pairwise(BORDERS)]
    alone = torch.cat([memory(x[:, start:stop])[0] for start, stop in pairwise(BORDERS)], 1)
    documents = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)).expand(BATCH, -1)
    assert close(memory(x, documents=documents)[0], alone), "packed documents see each other"
    state, answers = None, []
    for piece, ids in zip(x.split([4, 1, 9, 9], 1), documents.split([4, 1, 9, 9], 1)):
        answer, state = memory(piece, state, ids, keep_state=True)
        answers.append(answer)
    assert close(torch.cat(answers, 1), alone), "documents that a state continues see each other"


@torch.no_grad()
def check_padding(case: Case) -> None:
    """Padding on either side, of another width in each sequence, changes no answer; a state behind it goes on."""
    if not case.has_documents:
        return
    memory, x = case.build(), inputs()
    for side in ("left", "right"):
        documents = torch.zeros(BATCH, STEPS, dtype=torch.long)
        for row, width in enumerate((0, 3, 9)):
            documents[row, slice(0, width) if side == "left" else slice(STEPS - width, STEPS)] = -1
        answers, state = memory(x, documents=documents, keep_state=True)
        more = memory(x[:, :2], state, torch.zeros(BATCH, 2, dtype=torch.long))[0]
        for row in range(BATCH):
            real = documents[row] == 0
            text = x[row : row + 1, real]
            expected, alone = memory(text, keep_state=True)
            assert close(answers[row : row + 1, real], expected), f"padding on the {side} changes answers"
            if side == "left":
                continued = memory(x[row : row + 1, :2], alone)[0]
                assert close(more[row : row + 1], continued), "a state behind padding does not go on"


@torch.no_grad()
def check_state_is_a_value(case: Case) -> None:
    """A state may be continued twice, in either order, and stays what it was."""
    memory, x = case.build(), inputs()
    expected = memory(x)[0]
    _, state = read(memory, x[:, :10], [9, 1])
    copy = tensors_of(state.map(torch.clone))
    first = memory(x[:, 10:], state)[0]
    memory(-x[:, 10:], state, keep_state=True)
    assert close(memory(x[:, 10:], state)[0], first), "a second continuation differs from the first"
    assert close(first, expected[:, 10:]), "a continued state differs from the whole"
    now = tensors_of(state.map(torch.clone))
    assert all(torch.equal(now[name], tensor) for name, tensor in copy.items()), "continuing a state changes it"


@torch.no_grad()
def check_saving(case: Case) -> None:
    """A state saved as safetensors and loaded again goes on as if it had not been away."""
    memory, x = case.build(), inputs()
    _, state = read(memory, x[:, :10], [10])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "state.safetensors"
        save_file({name: tensor.contiguous().clone() for name, tensor in tensors_of(state).items()}, file)
        stored = iter(load_file(file)[name] for name in tensors_of(state))
        loaded = state.map(lambda _: next(stored))
    assert close(memory(x[:, 10:], loaded)[0], memory(x[:, 10:], state)[0]), "a loaded state is another"


@torch.no_grad()
def check_batch_selection(case: Case) -> None:
    """Sequences of a state may be reordered, repeated and left out."""
    memory, x = case.build(), inputs()
    _, state = read(memory, x[:, :10], [10])
    chosen = torch.tensor([2, 0, 2, 1])
    answers = memory(x[chosen, 10:], state.select_batch(chosen))[0]
    assert close(answers, memory(x[:, 10:], state)[0][chosen]), "a selected sequence is another"


@torch.no_grad()
def check_bfloat16(case: Case) -> None:
    """Answers in bfloat16 are bfloat16, and close to those in float64 of the same rounded weights and inputs."""
    if case.bfloat16 is None:
        return
    memory, x = case.build().bfloat16(), inputs().bfloat16()
    answers = memory(x)[0]
    expected = memory.double()(x.double())[0]
    assert answers.dtype == torch.bfloat16, "bfloat16 does not stay"
    assert close(answers.double(), expected, case.bfloat16 * expected.abs().max().item()), "bfloat16 is far off"


@torch.no_grad()
def check_small_inputs(case: Case) -> None:
    """One step, no sequence; no step at all is one clear error."""
    memory, x = case.build(), inputs()
    assert close(memory(x[:, :1])[0], memory(x)[0][:, :1]), "a single step differs from the first of many"
    answer, state = memory(x[:0], keep_state=True)
    assert answer.shape == x[:0].shape, "an empty batch has an answer"
    assert memory(x[:0, :1], state)[0].shape == x[:0, :1].shape, "the state of an empty batch does not go on"
    message = None
    try:
        memory(x[:, :0])
    except TesseraError as error:
        message = str(error)
    assert message is not None, "no step at all is no error"
    assert "\n" not in message, "the error is not one line"


def check_gradients(case: Case) -> None:
    """Every parameter gets a finite gradient, and x one that does not come from the future."""
    memory, x = case.build(), inputs().requires_grad_()
    answers = memory(x)[0]
    answers.square().sum().backward(retain_graph=True)
    for name, parameter in memory.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        assert torch.view_as_real(parameter.grad + 0j).isfinite().all(), f"{name} has no finite gradient"
    (gradient,) = torch.autograd.grad(answers[:, :CHANGED].sum(), x)
    assert gradient[:, CHANGED:].abs().max() == 0, "an answer has a gradient from a later step"


def tensors_of(state: State) -> dict[str, Tensor]:
    """The tensors of a compacted state by name, in the order in which `State.map` meets them."""
    collected: dict[str, Tensor] = {}

    def note(tensor: Tensor) -> Tensor:
        collected[f"{len(collected)}"] = tensor
        return tensor

    state.map(note)
    return collected


LAWS = {
    "any cut": check_any_cut,
    "causality": check_causality,
    "packing": check_packing,
    "padding": check_padding,
    "state is a value": check_state_is_a_value,
    "saving": check_saving,
    "batch selection": check_batch_selection,
    "bfloat16": check_bfloat16,
    "small inputs": check_small_inputs,
    "gradients": check_gradients,
}
