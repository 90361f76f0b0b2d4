"""Every memory keeps every law, and wrong memories are found out."""

import inspect
import pkgutil
from dataclasses import replace
from functools import partial
from importlib import import_module

import pytest
import torch
from torch import nn

import tessera.memories
from tessera.memories.association import AssociationMemory
from tessera.memories.contextual import ContextualMemory
from tessera.memories.pair_memory import PairMemory
from tessera.testing.memories import LAWS
from tests.memories.contract import CASES, HEADS, HIDDEN, Case


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", CASES)
def test_a_memory_keeps_the_laws(name, law):
    LAWS[law](CASES[name])


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


class SeesItself(ContextualMemory):
    """Stores the pair of this step before it answers: shifted by one."""

    def forward(self, x, *arguments, **options):
        return super().forward(torch.cat([x[:, 1:], x[:, -1:]], 1), *arguments, **options)


class Leaks(ContextualMemory):
    def forward(self, x, *arguments, **options):
        output, state = super().forward(x, *arguments, **options)
        return output + 1e-6 * x.mean(1, keepdim=True), state


class AnswersZero(ContextualMemory):
    def forward(self, x, *arguments, **options):
        output, state = super().forward(x, *arguments, **options)
        return 0 * output, state


class ForgetsItsState(ContextualMemory):
    def forward(self, x, state=None, *arguments, **options):
        return super().forward(x, None, *arguments, **options)


class ForgetsDocuments(ContextualMemory):
    def forward(self, x, state=None, documents=None, keep_state=False):
        return super().forward(x, state, None, keep_state)


class ForgetsPadding(ContextualMemory):
    def forward(self, x, state=None, documents=None, keep_state=False):
        documents = None if documents is None else documents.clamp(min=0)
        return super().forward(x, state, documents, keep_state)


class WritesIntoItsState(ContextualMemory):
    def forward(self, x, state=None, documents=None, keep_state=False):
        result = super().forward(x, state, documents, keep_state)
        if state is not None:
            state.carry.mul_(0.5)
        return result


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


class MixesSequences(ContextualMemory):
    def forward(self, x, *arguments, **options):
        output, state = super().forward(x, *arguments, **options)
        return output + 0.01 * torch.arange(len(x), dtype=x.dtype)[:, None, None], state


class Rounds(ContextualMemory):
    def forward(self, x, *arguments, **options):
        output, state = super().forward(x, *arguments, **options)
        return (output * 4).round() / 4 if x.dtype == torch.bfloat16 else output, state


class AnswersNothing(ContextualMemory):
    def forward(self, x, *arguments, **options):
        if x.shape[1] == 0:
            return x, None
        return super().forward(x, *arguments, **options)


class Detaches(ContextualMemory):
    def forward(self, x, *arguments, **options):
        return super().forward(x.detach() + 0 * x, *arguments, **options)

    def combine(self, recalled):
        return self.output(recalled.detach())


class OnePercent(torch.autograd.Function):
    """The identity, whose gradient is one per cent too large."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return 1.01 * grad


class WrongGradientOfItsInput(ContextualMemory):
    def forward(self, x, *arguments, **options):
        return super().forward(OnePercent.apply(x), *arguments, **options)


class WrongGradientOfItsRecall(ContextualMemory):
    def combine(self, recalled):
        return self.output(OnePercent.apply(recalled))


class ComputesInFloat32(ContextualMemory):
    def forward(self, x, *arguments, **options):
        return super().forward(x.float().to(x.dtype), *arguments, **options)


class DetachesItsState(ContextualMemory):
    def forward(self, x, state=None, *arguments, **options):
        return super().forward(x, None if state is None else state.detach(), *arguments, **options)


class ForgetsAtTheBorderOfItsBlocks(ContextualMemory):
    def forward(self, x, *arguments, **options):
        output, state = super().forward(x, *arguments, **options)
        return output * (torch.arange(1, x.shape[1] + 1) % 64 > 0)[:, None], state


class WrongGradientBehindItsBlock(ContextualMemory):
    def forward(self, x, *arguments, **options):
        output, state = super().forward(x, *arguments, **options)
        return torch.cat([output[:, :64], OnePercent.apply(output[:, 64:])], 1), state


class LeaksInTraining(ContextualMemory):
    def forward(self, x, *arguments, **options):
        output, state = super().forward(x, *arguments, **options)
        return output + self.training * x.mean(1, keepdim=True), state


class OneRowsDocuments(ContextualMemory):
    def forward(self, x, state=None, documents=None, keep_state=False):
        if documents is not None:
            documents = torch.where(documents < 0, documents, documents[:1])
        return super().forward(x, state, documents, keep_state)


class DocumentsRise(ContextualMemory):
    def forward(self, x, state=None, documents=None, keep_state=False):
        if documents is not None:
            documents = torch.where(documents < 0, documents, documents.cummax(1).values)
        return super().forward(x, state, documents, keep_state)


class OneRowsDocumentInItsState(ContextualMemory):
    def forward(self, x, state=None, documents=None, keep_state=False):
        if state is not None and state.document is not None:
            state = replace(state, document=state.document[:1].expand_as(state.document))
        return super().forward(x, state, documents, keep_state)


class ForgetsDocumentsOfSingleSteps(ContextualMemory):
    """As a shorter way for the next token may."""

    def forward(self, x, state=None, documents=None, keep_state=False):
        return super().forward(x, state, None if state is not None and x.shape[1] == 1 else documents, keep_state)


class ForgetsDocumentsInTraining(ContextualMemory):
    def forward(self, x, state=None, documents=None, keep_state=False):
        return super().forward(x, state, None if self.training else documents, keep_state)


class ScalesByItsBatch(ContextualMemory):
    """By what no order of the rows changes."""

    def forward(self, x, *arguments, **options):
        output, state = super().forward(x, *arguments, **options)
        return output * (1 + x.detach().square().sum(-1).amax(0)[:, None] if len(x) else 1), state


class WrongInFloat32(ContextualMemory):
    def forward(self, x, *arguments, **options):
        output, state = super().forward(x, *arguments, **options)
        return (1.01 if x.dtype == torch.float32 else 1) * output, state


class RoundsBehindAState(ContextualMemory):
    def forward(self, x, state=None, *arguments, **options):
        output, new = super().forward(x, state, *arguments, **options)
        return (output * 4).round() / 4 if state is not None and x.dtype == torch.bfloat16 else output, new


WRONG = {
    SeesItself: {"any_cut", "causality"},
    Leaks: {"any_cut", "causality"},
    AnswersZero: {"any_cut"},
    ForgetsItsState: {"any_cut", "state_is_a_value"},
    ForgetsDocuments: {"packing"},
    ForgetsPadding: {"padding"},
    WritesIntoItsState: {"state_is_a_value"},
    HidesState: {"state_is_a_value"},
    KnowsItsStates: {"saving"},
    MixesSequences: {"batch_selection"},
    ScalesByItsBatch: {"batch_selection"},
    Rounds: {"narrow_types"},
    RoundsBehindAState: {"narrow_types"},
    WrongInFloat32: {"narrow_types"},
    AnswersNothing: {"small_inputs"},
    Detaches: {"gradients"},
    DetachesItsState: {"gradients"},
    WrongGradientOfItsInput: {"gradients"},
    WrongGradientOfItsRecall: {"gradients"},
    ComputesInFloat32: {"gradients"},
    ForgetsAtTheBorderOfItsBlocks: {"long_texts"},
    WrongGradientBehindItsBlock: {"long_texts"},
    LeaksInTraining: {"causality"},
    OneRowsDocuments: {"packing"},
    DocumentsRise: {"packing"},
    OneRowsDocumentInItsState: {"packing"},
    ForgetsDocumentsOfSingleSteps: {"packing"},
    ForgetsDocumentsInTraining: {"packing"},
}


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__)
def test_wrong_memories_are_found_out(wrong):
    case = Case(partial(wrong, HIDDEN, HEADS, "gaussian"))
    for law in WRONG[wrong]:
        with pytest.raises((AssertionError, RuntimeError)):
            LAWS[law](case)


def test_every_law_finds_something():
    assert set.union(*WRONG.values()) == set(LAWS)
