"""What every memory must satisfy."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tessera.base.errors import TesseraError
from tessera.base.random_numbers import random_numbers_kept
from tessera.base.state import State
from tessera.testing.derivatives import check_gradient
from tessera.testing.laws import LONG, REORDERED_FLOAT64, laws_in, try_laws

BATCH, STEPS = 3, 23
CHANGED = 14  # the step whose change no earlier answer may show
CUTS = ([STEPS], [1] * STEPS, [7, 1, 13, 2], [2, 21])
# Where the documents of each row begin and end, and their numbers, which need not rise; -1 is padding.
BORDERS = ((0, 5, 6, 17, STEPS), (0, 3, 11, 14, STEPS), (0, 9, 16, 22, STEPS))
NUMBERS = ((7, 3, 40, 5), (9, -1, 1, 0), (2, 1, 0, -1))


@dataclass(frozen=True)
class MemoryCase:
    """A memory to test.

    Attributes:
        make: the memory; its weights are moved away from their start, so that it matters what is recalled.
        hidden_size: the width of what it reads.
        has_documents: whether `forward` takes documents.
        bfloat16: how far bfloat16 may be from float64, relative to the largest answer; None: not tested (a choice of
            neighbours may change). float32: the same of float32; None where the memory has one type.
        grows: whether a longer text may have a larger state.
    """

    make: Callable[[], nn.Module]
    hidden_size: int
    has_documents: bool = True
    bfloat16: float | None = 0.05
    float32: float | None = 1e-4
    grows: bool = True

    @random_numbers_kept()
    def build(self) -> nn.Module:
        """The memory in float64, in evaluation mode, always the same weights."""
        torch.manual_seed(1)
        memory = self.make()
        with torch.no_grad():
            for parameter in memory.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
        return memory.double().eval()

    def inputs(self) -> Tensor:
        """x (3, 23, hidden_size) in float64."""
        generator = torch.Generator().manual_seed(2)
        return torch.randn(BATCH, STEPS, self.hidden_size, dtype=torch.float64, generator=generator)


def check_memory(make: Callable[[], nn.Module], hidden_size: int, **case: Any) -> None:
    """Run every law of `LAWS` on the memory that `make()` returns; raises AssertionError at the first that it breaks.

    `case`: further fields of `MemoryCase`.
    """
    try_laws(LAWS, MemoryCase(make, hidden_size, **case))


def _check_close(one: Tensor, other: Tensor, broken: str, tolerance: float = REORDERED_FLOAT64) -> None:
    """AssertionError that says `broken` and how far they are apart, unless both are equal but for the order of sums."""
    assert one.shape == other.shape, f"{broken}: shapes {tuple(one.shape)} and {tuple(other.shape)}"
    apart = float((one - other).abs().max()) if one.numel() else 0.0
    assert apart <= tolerance, f"{broken}: by up to {apart:.1e}, where {tolerance:.1e} is allowed"


def _read(memory: nn.Module, x: Tensor, sizes: list[int], state: State | None = None) -> tuple[Tensor, Any]:
    """The answers to `x` read in pieces of these sizes, and the last state."""
    answers = []
    for piece in x.split(sizes, dim=1):
        answer, state = memory(piece, state, keep_state=True)
        answers.append(answer)
    return torch.cat(answers, 1), state


@torch.no_grad()
def any_cut(case: MemoryCase) -> None:
    """Reading in any pieces, down to single steps, is reading the whole; the answers are not all zero."""
    memory, x = case.build(), case.inputs()
    expected, none = memory(x)
    assert none is None, "a state comes back unasked"
    assert expected.shape == x.shape, f"answers are {tuple(expected.shape)}, the input {tuple(x.shape)}"
    assert expected.abs().max() > 1e-3, "the memory answers nothing"
    for sizes in CUTS:
        answers, state = _read(memory, x, sizes)
        assert isinstance(state, State), f"the state is a {type(state).__name__}, no tessera.base.state.State"
        shapes = [tuple(tensor.shape) for tensor in _tensors_of(state).values()]
        assert all(shape[:1] == (BATCH,) for shape in shapes), f"the batch ({BATCH}) is not first in a state: {shapes}"
        _check_close(answers, expected, f"reading in pieces of {sizes} differs from the whole")


def long_texts(case: MemoryCase) -> None:
    """Three hundred steps too are what their pieces are, and their gradient is the derivative."""
    memory = case.build()
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1, sum(LONG), case.hidden_size, dtype=torch.float64, generator=generator)
    with torch.no_grad():
        answers, _ = _read(memory, x, LONG)
        _check_close(answers, memory(x)[0], f"reading in pieces of {LONG} differs from the whole")
    weights = torch.randn(x.shape, dtype=torch.float64, generator=generator)
    leaves = {"x": x.requires_grad_(), **dict(memory.named_parameters())}
    check_gradient(lambda: (memory(x)[0] * weights).sum(), leaves)


@torch.no_grad()
def causality(case: MemoryCase) -> None:
    """A change of one step changes no answer before it, and some answer at it or after it; in training neither."""
    memory, x = case.build(), case.inputs()
    changed = x.clone()
    changed[:, CHANGED] += 1.0
    for training in (False, True):
        memory.train(training)
        before, after = _drawn_alike(memory, x), _drawn_alike(memory, changed)
        _check_close(before[:, :CHANGED], after[:, :CHANGED], "an answer owes something to a later step")
        assert (before - after)[:, CHANGED:].abs().max() > REORDERED_FLOAT64, "a step changes nothing"


def _drawn_alike(memory: nn.Module, x: Tensor, **options: Any) -> Tensor:
    """The answers to `x`, with the same dropout in each call."""
    torch.manual_seed(4)
    answers: Tensor = memory(x, **options)[0]
    return answers


@torch.no_grad()
def packing(case: MemoryCase) -> None:
    """Documents packed into sequences, cut anywhere, are answered as if each were alone; none sees another in training.

    Each sequence has borders and numbers of its own, which need not rise, and padding between documents.
    """
    if not case.has_documents:
        return
    memory, x = case.build(), case.inputs()
    documents, alone = torch.zeros(BATCH, STEPS, dtype=torch.long), torch.zeros_like(x)
    for row, (borders, numbers) in enumerate(zip(BORDERS, NUMBERS)):
        for (start, stop), number in zip(pairwise(borders), numbers):
            documents[row, start:stop] = number
            alone[row, start:stop] = memory(x[row : row + 1, start:stop])[0][0]
    real = documents >= 0
    _check_close(memory(x, documents=documents)[0][real], alone[real], "packed documents see each other")
    for sizes in ([4, 1, 9, 9], [1] * STEPS):
        state, answers = None, []
        for piece, ids in zip(x.split(sizes, 1), documents.split(sizes, 1)):
            answer, state = memory(piece, state, ids, keep_state=True)
            answers.append(answer)
        _check_close(torch.cat(answers, 1)[real], alone[real], "documents that a state continues see each other")
    _, state = memory(x[:, :14], None, documents[:, :14], keep_state=True)
    chosen = torch.tensor([2, 0, 1])
    answers = memory(x[chosen, 14:], state.select_batch(chosen), documents[chosen, 14:])[0]
    expected, real = alone[chosen, 14:], real[chosen, 14:]
    _check_close(answers[real], expected[real], "a selected sequence continues another's document")
    is_first = documents == documents[:, :1]
    memory.train()
    before, after = (_drawn_alike(memory, text, documents=documents) for text in (x, x + is_first.unsqueeze(-1)))
    others = ~is_first & (documents >= 0)
    _check_close(before[others], after[others], "packed documents see each other in training")


@torch.no_grad()
def padding(case: MemoryCase) -> None:
    """Padding anywhere, of another width in each sequence, changes no answer and no state.

    What was read without documents is document 0, and what is read without them goes on with the last.
    """
    if not case.has_documents:
        return
    memory, x = case.build(), case.inputs()
    _, state = memory(x[:, :10], keep_state=True)
    rest = memory(x[:, 10:], state, torch.zeros(BATCH, STEPS - 10, dtype=torch.long))[0]
    _check_close(rest, memory(x)[0][:, 10:], "a state without documents is not of document 0")
    for place, first in {"in front of": 0, "inside": 8, "behind": None}.items():
        documents = torch.zeros(BATCH, STEPS, dtype=torch.long)
        for row, width in enumerate((0, 3, 9)):
            begin = STEPS - width if first is None else first
            documents[row, begin : begin + width] = -1
        unkept = memory(x, documents=documents)[0]
        for sizes in CUTS:
            state, pieces = None, []
            for piece, ids in zip(x.split(sizes, 1), documents.split(sizes, 1)):
                answers, state = memory(piece, state, ids, keep_state=True)
                pieces.append(answers)
            answers = torch.cat(pieces, 1)
            known = memory(x[:, :2], state, torch.zeros(BATCH, 2, dtype=torch.long))[0]
            unknown = memory(x[:, :2], state)[0]
            for row in range(BATCH):
                real = documents[row] == 0
                expected, alone = memory(x[row : row + 1, real], keep_state=True)
                read = f"padding {place} a document, read in pieces of {sizes},"
                _check_close(answers[row : row + 1, real], expected, f"{read} changes answers")
                _check_close(unkept[row : row + 1, real], expected, f"padding {place} a document changes answers")
                continued = memory(x[row : row + 1, :2], alone)[0]
                _check_close(known[row : row + 1], continued, f"{read} changes the state")
                _check_close(unknown[row : row + 1], continued, f"{read} changes which document is the last")
    nothing = torch.full_like(documents, -1)
    _, state = memory(x, documents=nothing, keep_state=True)
    _check_close(memory(x, state)[0], memory(x)[0], "behind padding alone a text does not start with document 0")


@torch.no_grad()
def state_is_a_value(case: MemoryCase) -> None:
    """A state may be continued twice, in either order, and stays what it was."""
    memory, x = case.build(), case.inputs()
    expected = memory(x)[0]
    _, state = _read(memory, x[:, :10], [9, 1])
    copy = _tensors_of(state.map(torch.clone))
    first = memory(x[:, 10:], state)[0]
    memory(-x[:, 10:], state, keep_state=True)
    _check_close(memory(x[:, 10:], state)[0], first, "a second continuation differs from the first")
    _check_close(first, expected[:, 10:], "a continued state differs from the whole")
    now = _tensors_of(state.map(torch.clone))
    assert all(torch.equal(now[name], tensor) for name, tensor in copy.items()), "continuing a state changes it"


@torch.no_grad()
def growth(case: MemoryCase) -> None:
    """What makes a state larger behind a longer text can change a later answer."""
    memory, short, long = case.build(), 2 * STEPS, 4 * STEPS
    x = torch.randn(1, long, case.hidden_size, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    (_, state), (_, before) = (memory(x[:, :steps], keep_state=True) for steps in (long, short))
    tensors, fewer = (list(_tensors_of(each).values()) for each in (state, before))
    sizes = [sum(tensor.nbytes for tensor in each) for each in (fewer, tensors)]
    grown = f"a state has {sizes[0]:,} bytes behind {short} steps and {sizes[1]:,} behind {long}"
    is_constant = [tensor.shape for tensor in tensors] == [tensor.shape for tensor in fewer]
    assert case.grows or is_constant, f"{grown}, and must not grow"
    expected = memory(x, state)[0]
    for place, tensor in enumerate(tensors):
        shape, other = tensor.shape, fewer[place].shape if place < len(fewer) else ()
        if shape == other:
            continue
        changed = tensor.clone()
        dim = next((dim for dim, (one, two) in enumerate(zip(shape, other)) if one != two), 0)
        older = changed.narrow(dim, 0, (shape[dim] + 1) // 2)  # behind them there may be room to spare
        older.copy_(~older if older.dtype == torch.bool else older + 1)
        answers = memory(x, _with_tensors(state, [*tensors[:place], changed, *tensors[place + 1 :]]))[0]
        moved = (answers - expected).abs().max() > REORDERED_FLOAT64
        assert moved, f"{grown}; there the older half of {tuple(shape)} changes no answer"


@torch.no_grad()
def saving(case: MemoryCase) -> None:
    """A saved state goes on as if it had not been away; a trained memory's `state_dict` makes a new one the same."""
    memory, x = case.build(), case.inputs()
    memory.train()(x)  # which may change buffers
    torch.manual_seed(5)
    again = case.make().double().eval()
    again.load_state_dict(memory.eval().state_dict())
    _check_close(again(x)[0], memory(x)[0], "something is in no parameter and in no buffer that is saved")
    _, state = _read(memory, x[:, :10], [10])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "state.safetensors"
        save_file({name: tensor.contiguous().clone() for name, tensor in _tensors_of(state).items()}, file)
        stored = load_file(file)
        loaded = _with_tensors(state, [stored[name] for name in _tensors_of(state)])
    _check_close(memory(x[:, 10:], loaded)[0], memory(x[:, 10:], state)[0], "a loaded state is another")


@torch.no_grad()
def batch_selection(case: MemoryCase) -> None:
    """Each sequence is read as if alone; those of a state may be reordered, repeated and left out."""
    memory, x = case.build(), case.inputs()
    together, state = memory(x[:, :10], keep_state=True)
    alone = torch.cat([memory(row[None, :10])[0] for row in x])
    _check_close(together, alone, "a sequence has another answer beside others than alone")
    chosen = torch.tensor([2, 0, 2, 1])
    answers = memory(x[chosen, 10:], state.select_batch(chosen))[0]
    _check_close(answers, memory(x[:, 10:], state)[0][chosen], "a selected sequence is another")


@torch.no_grad()
def narrow_types(case: MemoryCase) -> None:
    """Answers in bfloat16 and in float32 are of that type, and close to those in float64 of the same rounded numbers.

    So are those that go on from a state.
    """
    for dtype, allowed in ((torch.bfloat16, case.bfloat16), (torch.float32, case.float32)):
        if allowed is None:
            continue
        memory, x = case.build().to(dtype), case.inputs().to(dtype)
        at_once, (parts, _) = memory(x)[0], _read(memory, x, [10, 1, 12])
        expected = memory.double()(x.double())[0]
        for answers in (at_once, parts):
            assert answers.dtype == dtype, f"{dtype} does not stay"
            _check_close(answers.double(), expected, f"{dtype} is far off", allowed * expected.abs().max().item())


@torch.no_grad()
def small_inputs(case: MemoryCase) -> None:
    """One step, no sequence; no step at all is one clear error."""
    memory, x = case.build(), case.inputs()
    _check_close(memory(x[:, :1])[0], memory(x)[0][:, :1], "a single step differs from the first of many")
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


def gradients(case: MemoryCase) -> None:
    """Every parameter and x have a gradient: the derivative, also through a state; x has none from the future."""
    memory, x = case.build(), case.inputs().requires_grad_()
    answers = memory(x)[0]
    (gradient,) = torch.autograd.grad(answers[:, :CHANGED].sum(), x, retain_graph=True)
    assert gradient[:, CHANGED:].abs().max() == 0, "an answer has a gradient from a later step"
    leaves = {"x": x, **dict(memory.named_parameters())}
    weights = torch.randn(answers.shape, dtype=answers.dtype, generator=torch.Generator().manual_seed(3))
    expected = torch.autograd.grad((answers * weights).sum(), list(leaves.values()))
    check_gradient(lambda: (memory(x)[0] * weights).sum(), leaves)
    pieces, _ = _read(memory, x, CUTS[2])
    through = torch.autograd.grad((pieces * weights).sum(), list(leaves.values()))
    for name, one, other in zip(leaves, through, expected):
        tolerance = 100 * REORDERED_FLOAT64 * (1 + float(other.abs().max()))
        _check_close(one, other, f"read in pieces of {CUTS[2]}, {name} has another gradient than at once", tolerance)


def _tensors_of(state: State) -> dict[str, Tensor]:
    """The tensors of a compacted state by name, in the order in which `State.map` meets them."""
    collected: dict[str, Tensor] = {}

    def note(tensor: Tensor) -> Tensor:
        collected[f"{len(collected)}"] = tensor
        return tensor

    state.map(note)
    return collected


def _with_tensors(state: State, tensors: Sequence[Tensor]) -> State:
    """A state like `state` of other tensors, in the order of `_tensors_of`."""
    remaining = iter(tensors)
    return state.map(lambda _: next(remaining))


LAWS = laws_in(globals(), MemoryCase)
