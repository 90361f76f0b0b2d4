"""Every memory keeps every law, and wrong memories are found out."""

import inspect
import pkgutil
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module

import pytest
import torch
from torch import nn

import tessera.memories
from tessera.base.state import State
from tessera.memories.association import AssociationMemory
from tessera.memories.contextual import ContextualMemory
from tessera.memories.linear_attention import VARIANTS, LinearAttentionMemory
from tessera.memories.pair_memory import PairMemory
from tessera.memories.persistent import PersistentMemory
from tessera.memories.short_and_long_term import LongTermMemory, ShortTermMemory
from tessera.ops.kernel_regression import Window
from tessera.testing.memories import LAWS
from tests.memories.contract import CASES, HEADS, HIDDEN, Case
from tests.refusals import refused, refused_in_a_line


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", CASES)
def test_a_memory_keeps_the_laws(name, law):
    LAWS[law](CASES[name])


@pytest.mark.parametrize(
    "name", ["contextual gaussian", "short-term compact", "long-term anchored", "linear contextual"]
)
def test_states_of_unequal_lengths_are_joined(name):
    """Without documents, too: each sequence goes on as it would alone, in one call and in several."""
    memory, x = CASES[name].build().double(), torch.randn(2, 12, HIDDEN, dtype=torch.float64)
    parts = x[:1, :7], x[1:, 4:7]
    joined = [memory(part, keep_state=True)[1] for part in parts]
    state = type(joined[0]).joined(joined)
    expected = torch.cat([memory(x[:1])[0][:, 7:], memory(x[1:, 4:])[0][:, 3:]])
    torch.testing.assert_close(memory(x[:, 7:], state)[0], expected)
    first, state = memory(x[:, 7:8], state, keep_state=True)
    torch.testing.assert_close(torch.cat([first, memory(x[:, 8:], state)[0]], 1), expected)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("held", "rows"), [(2, 3), (1, 3), (3, 1)])
def test_a_state_of_another_number_of_rows_is_refused(name, held, rows):
    memory, x = CASES[name].build(), CASES[name].inputs()
    state = memory(x[:held, :8], keep_state=True)[1]
    for steps in (1, 5):
        refused_in_a_line("state", memory, x[:rows, :steps], state)


@pytest.mark.parametrize("name", ["contextual gaussian", "short-term compact", "long-term anchored"])
def test_documents_of_a_type_without_sign_are_refused(name):
    """Pairs that are not stored are of document -1, in uint8 of document 255: a later document would recall them."""
    documents = torch.tensor([[3, 3, 3, 7, 7, 255, 255]], dtype=torch.uint8)
    refused("documents must be of a type with a sign", CASES[name].build(), torch.randn(1, 7, HIDDEN), None, documents)


@pytest.mark.parametrize("num_heads", [0, 4])
def test_heads_that_do_not_divide_the_width_are_refused(num_heads):
    """Also those that would turn, or halve, a width that is odd: RetNet's rotation of 3 numbers made 4 of them."""
    memories = [
        partial(ContextualMemory, kernel="gaussian"),
        partial(PersistentMemory, num_slots=5, num_banks=1, kernel="gaussian"),
        partial(ShortTermMemory, kernel="gaussian", span=4),
        partial(LongTermMemory, kernel="gaussian"),
        *(partial(LinearAttentionMemory, variant=variant) for variant in VARIANTS),
    ]
    for memory in memories:
        refused(rf"num_heads must divide hidden_size .*; got {num_heads}", memory, 10, num_heads)
    for variant in ("retnet", "gla"):
        refused(r"num_heads must divide hidden_size / 2 \(3\); got 2", LinearAttentionMemory, 6, 2, variant)
    refused("variant must be one of linear_transformer, retnet, gla; got 'mamba'", LinearAttentionMemory, 8, 2, "mamba")


def test_every_memory_is_a_case():
    """The association matrix reads and writes by hand: it has tests of its own."""
    modules = [import_module(f"tessera.memories.{m.name}") for m in pkgutil.iter_modules(tessera.memories.__path__)]
    memories = {
        entry
        for module in modules
        for name, entry in vars(module).items()
        if name.endswith("Memory") and inspect.isclass(entry) and issubclass(entry, nn.Module)
    }
    tested = {base for case in CASES.values() for base in type(case.build()).__mro__}
    assert memories - {AssociationMemory} <= tested
    assert PairMemory in memories


def wrong(given=None, answer=None, **members):
    """A memory that takes other inputs (x, state, documents), or gives another answer than the contextual one."""

    def forward(self, x, state=None, documents=None, keep_state=False):
        inputs = (x, state, documents) if given is None else given(self, x, state, documents)
        output, new = ContextualMemory.forward(self, *inputs, keep_state)
        return (output if answer is None else answer(self, x, state, output)), new

    return type("Wrong", (ContextualMemory,), {"forward": forward, **members})


def with_documents(change):
    """That takes other documents than it is given."""
    return wrong(
        lambda self, x, state, documents: (x, state, None if documents is None else change(self, x, state, documents))
    )


def but_padding(documents, changed):
    return torch.where(documents < 0, documents, changed)


def rounded(y, x):
    return (y * 4).round() / 4 if x.dtype == torch.bfloat16 else y


def writes_into_its_state(self, x, state=None, documents=None, keep_state=False):
    result = ContextualMemory.forward(self, x, state, documents, keep_state)
    if state is not None:
        state.carry.mul_(0.5)
    return result


def one_rows_document(self, x, state, documents):
    if state is not None and state.document is not None:
        state = replace(state, document=state.document[:1].expand_as(state.document))
    return x, state, documents


def answers_nothing(self, x, *arguments, **options):
    return ContextualMemory.forward(self, x, *arguments, **options) if x.shape[1] else (x, None)


class HidesState(ContextualMemory):
    """Keeps its last state in the module: right as long as only one sequence is read."""

    hidden = None

    def forward(self, x, state=None, documents=None, keep_state=False):
        output, new = super().forward(x, None if state is None else self.hidden, documents, True)
        self.hidden = new
        return output, new if keep_state else None


class KnowsItsStates(ContextualMemory):
    """Something of the state is in the object and not in its tensors."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.states = []

    def forward(self, x, state=None, documents=None, keep_state=False):
        output, new = super().forward(x, state, documents, keep_state)
        known = state is None or any(state is other for other in self.states)
        self.states.append(new)
        return output if known else 2 * output, new


class OnePercent(torch.autograd.Function):
    """The identity, whose gradient is one per cent too large."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return 1.01 * grad


class Stepped(ContextualMemory):
    """With something drawn that no file holds, or something learned that no optimizer is given."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.scale = self.made()

    def forward(self, x, *arguments, **options):
        answers, state = super().forward(x, *arguments, **options)
        return answers * self.scale.to(x.dtype), state


class CountsItsTrainings(ContextualMemory):
    """Scales, once it is trained, by a statistic of the training that no file holds."""

    trainings = 1

    def forward(self, x, *arguments, **options):
        answers, state = super().forward(x, *arguments, **options)
        self.trainings += self.training
        return answers * (1 if self.training else self.trainings), state


def learned_outside(self):
    return torch.tensor(2.0, requires_grad=True)


@dataclass(frozen=True)
class OtherState(State):
    """A contextual memory's, and another tensor."""

    inner: State
    other: torch.Tensor


def keeps_as(form, back):
    """That returns `form` of the state, and goes on from `back` of what it is given."""

    def forward(self, x, state=None, documents=None, keep_state=False):
        output, new = ContextualMemory.forward(self, x, None if state is None else back(state), documents, keep_state)
        return output, None if new is None else form(new)

    return wrong(forward=forward)


def keeps_all(new):
    return OtherState(new, new.pairs.keys.sum((1, 3)))


def keeps_nothing(new):
    return OtherState(new, new.pairs.keys.new_zeros(len(new.pending_key), new.pairs.length, 0))


class KeepsMoreThanItsWindow(ContextualMemory):
    """Reads as a short-term memory, whose older pairs are never seen again."""

    def forward(self, x, state=None, documents=None, keep_state=False):
        _, kept = super().forward(x, state, documents, keep_state)
        self.window = Window(span=6)
        answers, _ = super().forward(x, state, documents)
        self.window = Window()
        return answers, kept


class ForgetsBehindPadding(ContextualMemory):
    """Takes padding in front of a row alone, as the memories of a model do."""

    padding_is_in_front = True


def single_step(self, x, state, documents):
    return None if state is not None and x.shape[1] == 1 else documents


WRONG = {  # a memory, and the laws that find it out
    "sees itself": (
        wrong(lambda self, x, state, documents: (torch.cat([x[:, 1:], x[:, -1:]], 1), state, documents)),
        "any_cut", "causality",
    ),
    "leaks": (wrong(answer=lambda self, x, state, y: y + 1e-6 * x.mean(1, keepdim=True)), "any_cut", "causality"),
    "leaks in training": (
        wrong(answer=lambda self, x, state, y: y + self.training * x.mean(1, keepdim=True)), "causality"
    ),
    "has a state that is none": (keeps_as(lambda new: (new,), lambda state: state[0]), "any_cut"),
    "has heads before sequences in its state": (
        keeps_as(lambda new: OtherState(new, new.pending_key.transpose(0, 1)), lambda state: state.inner), "any_cut"
    ),
    "draws what it does not save": (
        type("Wrong", (Stepped,), {"made": lambda self: torch.rand(())}), "saving"
    ),
    "counts its trainings, unsaved": (CountsItsTrainings, "saving"),
    "learns what is no parameter": (type("Wrong", (Stepped,), {"made": learned_outside}), "gradients"),
    "answers zero": (wrong(answer=lambda self, x, state, y: 0 * y), "any_cut"),
    "forgets its state": (
        wrong(lambda self, x, state, documents: (x, None, documents)), "any_cut", "state_is_a_value"
    ),
    "forgets documents": (wrong(lambda self, x, state, documents: (x, state, None)), "packing"),
    "one row's documents": (
        with_documents(lambda self, x, state, documents: but_padding(documents, documents[:1])), "packing"
    ),
    "documents rise": (
        with_documents(lambda self, x, state, documents: but_padding(documents, documents.cummax(1).values)), "packing"
    ),
    "one row's document in its state": (wrong(one_rows_document), "packing"),
    "forgets documents of single steps, as a shorter way for the next token may": (
        with_documents(single_step), "packing"
    ),
    "forgets documents in training": (
        with_documents(lambda self, x, state, documents: None if self.training else documents), "packing"
    ),
    "forgets padding": (with_documents(lambda self, x, state, documents: documents.clamp(min=0)), "padding"),
    "forgets behind padding": (ForgetsBehindPadding, "padding"),
    "writes into its state": (wrong(forward=writes_into_its_state), "state_is_a_value"),
    "hides its state": (HidesState, "state_is_a_value"),
    "knows its states": (KnowsItsStates, "saving"),
    "mixes sequences": (
        wrong(answer=lambda self, x, state, y: y + 0.01 * torch.arange(len(x), dtype=x.dtype)[:, None, None]),
        "batch_selection",
    ),
    "keeps what it does not need": (keeps_as(keeps_all, lambda state: state.inner), "growth"),
    "keeps nothing, many times": (keeps_as(keeps_nothing, lambda state: state.inner), "growth"),
    "keeps a window, and what is before it": (KeepsMoreThanItsWindow, "growth"),
    "scales by its batch, which no order of the rows changes": (
        wrong(
            answer=lambda self, x, state, y:
            y * (1 + x.detach().square().sum(-1).amax(0)[:, None] if len(x) else 1)
        ),
        "batch_selection",
    ),
    "rounds": (wrong(answer=lambda self, x, state, y: rounded(y, x)), "narrow_types"),
    "rounds behind a state": (
        wrong(answer=lambda self, x, state, y: y if state is None else rounded(y, x)), "narrow_types"
    ),
    "wrong in float32": (
        wrong(answer=lambda self, x, state, y: (1.01 if x.dtype == torch.float32 else 1) * y), "narrow_types"
    ),
    "answers nothing": (wrong(forward=answers_nothing), "small_inputs"),
    "detaches": (
        wrong(
            lambda self, x, state, documents: (x.detach() + 0 * x, state, documents),
            combine=lambda self, recalled: self.output(recalled.detach()),
        ),
        "gradients",
    ),
    "detaches its state": (
        wrong(lambda self, x, state, documents: (x, None if state is None else state.detach(), documents)), "gradients"
    ),
    "wrong gradient of its input": (
        wrong(lambda self, x, state, documents: (OnePercent.apply(x), state, documents)), "gradients"
    ),
    "wrong gradient of its recall": (
        wrong(combine=lambda self, recalled: self.output(OnePercent.apply(recalled))), "gradients"
    ),
    "computes in float32": (
        wrong(lambda self, x, state, documents: (x.float().to(x.dtype), state, documents)), "gradients"
    ),
    "forgets at the border of its blocks": (
        wrong(answer=lambda self, x, state, y: y * (torch.arange(1, x.shape[1] + 1) % 64 > 0)[:, None]), "long_texts"
    ),
    "wrong gradient behind its block": (
        wrong(answer=lambda self, x, state, y: torch.cat([y[:, :64], OnePercent.apply(y[:, 64:])], 1)), "long_texts"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_memories_are_found_out(name):
    wrong, *laws = WRONG[name]
    for law in laws:
        with pytest.raises((AssertionError, RuntimeError)):
            LAWS[law](Case(partial(wrong, HIDDEN, HEADS, "gaussian")))


def test_a_memory_that_says_it_does_not_grow_must_not():
    with pytest.raises(AssertionError, match="8,928 bytes behind 46 steps and 17,760 behind 92, and must not grow"):
        LAWS["growth"](replace(CASES["contextual gaussian"], grows=False))


def test_every_law_finds_something():
    assert {law for _, *laws in WRONG.values() for law in laws} == set(LAWS)
