"""What is no tensor, state or number is refused in a sentence that names the argument."""

import importlib
import inspect
from types import FunctionType

import pytest
import torch
from torch import Tensor

import tessera
from tessera.base.arguments import explains_mistakes
from tessera.base.errors import TesseraError
from tessera.base.shapes import Float, Int
from tessera.memories.contextual import ContextualMemory
from tessera.memories.linear_attention import LinearAttentionMemory
from tessera.ops.linear_recurrence import linear_recurrence
from tessera.ops.selective_scan import selective_scan
from tessera.ops.unit_norm import unit_norm
from tests import new_process
from tests.covering import some
from tests.refusals import refused_in_a_line
from tests.shape_checks import ShapeError

PAIRS = torch.rand(1, 2, 5, 4)
GATES = torch.rand(1, 2, 5)
SCORES = torch.rand(2, 3)
CALLS = {
    "kernel_regression": (tessera.kernel_regression, (PAIRS, PAIRS, PAIRS), {"kernel": "gaussian", "slope": 2.0}),
    "leaky_average": (tessera.leaky_average, (PAIRS, torch.rand(2)), {}),
    "gated_average": (tessera.gated_average, (PAIRS, GATES, -GATES), {}),
    "linear_recurrence": (linear_recurrence, (PAIRS, GATES), {}),
    "read_association": (tessera.read_association, (torch.rand(2, 6, 4), torch.rand(2, 6), torch.rand(2, 3, 6)), {}),
    "linear_cross_entropy": (tessera.linear_cross_entropy, (SCORES, torch.rand(5, 3), torch.tensor([1, 0])), {}),
    "selective_scan": (
        selective_scan,
        (torch.rand(1, 7, 3), torch.rand(1, 7, 3), -torch.rand(3, 2), torch.rand(1, 7, 2), torch.rand(1, 7, 2)),
        {},
    ),
    "unit_norm": (unit_norm, (SCORES,), {}),
    "entmax": (tessera.entmax, (SCORES,), {}),
    "knn_softmax": (tessera.knn_softmax, (SCORES, 2), {}),
    "ContextualMemory": (ContextualMemory(8, 2, "biweight"), (torch.rand(1, 5, 8),), {}),
    "LinearAttentionMemory": (LinearAttentionMemory(8, 2, "gla"), (torch.rand(1, 5, 8),), {}),
}
STRANGE = ("text", 3.5, [1, 2], {"a": 1}, object(), None, torch.ones(1, 1, 1, 1, 1), torch.tensor(True))


@pytest.mark.parametrize("name", CALLS)
def test_no_argument_ends_in_an_obscure_error(name):
    """In every place something strange: it is taken, or refused in one line that names the place."""
    function, values, keywords = CALLS[name]
    function(*values, **keywords)
    parameters = inspect.signature(getattr(function, "forward", function)).parameters
    refused = 0
    for place, parameter in enumerate(parameters):
        for strange in STRANGE:
            positional, others = list(values), {key: value for key, value in keywords.items() if key != parameter}
            if place < len(positional):
                positional[place] = strange
            else:
                others[parameter] = strange
            try:
                function(*positional, **others)
            except TesseraError as error:
                refused += 1
                assert "\n" not in str(error)  # noqa: PT017
            except ShapeError:  # the test run's own, of an inner call
                refused += 1
    assert refused >= 5 * len(values)


@explains_mistakes
def attend(query: Float[Tensor, "B T K"], documents: Int[Tensor, "B T"] | None = None, scale: float = 1.0) -> Tensor:
    if documents is not None and documents.shape != query.shape[:2]:
        raise RuntimeError("obscure")
    return query.softmax(-1) * scale


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"query": "x"}, "attend: query must be a tensor of floating-point numbers (B, T, K); got 'x'."),
        ({"query": torch.ones(2, 3, 4, dtype=torch.long)}, "got a tensor of int64 (2, 3, 4)"),
        (
            {"query": torch.ones(2, 3, 4), "documents": torch.ones(2, 4, dtype=torch.long)},
            "attend: documents must be a tensor of integers (B, T) or None; got a tensor of int64 (2, 4).",
        ),
        ({"query": torch.ones(2, 3, 4), "scale": "wide"}, "attend: scale must be a number; got 'wide'."),
        ({}, "attend: the arguments must be those of its signature; missing a required argument: 'query'."),
    ],
)
def test_the_sentence(arguments, message):
    refused_in_a_line(message, attend, **arguments)


# Modules of the public interface beside operations and kernels, and how many functions of each.
PUBLIC = {
    "tessera.inspection": 8,
    "tessera.inspection.page": 3,
    "tessera.recall": 1,
    "tessera.testing": 4,
    "tessera.interop": 1,
    "tessera.models.recurrence": 3,
    "tessera.models.saving.loading": 4,
    "tessera.recipes.recipe": 2,
    "tessera.evaluation.loss": 3,
    "tessera.evaluation.accounting": 3,
    "tessera.generation.sampling": 2,
    "tessera.data.tokenizers": 6,
    "tessera.models.presets": 3,
}


@pytest.mark.parametrize("module", PUBLIC)
def test_what_is_no_tensor_model_path_or_number_is_refused_everywhere(module):
    found = {
        name: value
        for name, value in vars(importlib.import_module(module)).items()
        if isinstance(value, FunctionType) and hasattr(value, "__wrapped__") and value.__name__ == name
    }
    ours = {name: value for name, value in found.items() if inspect.unwrap(value).__module__.startswith(module)}
    assert len(ours) >= PUBLIC[module], ours.keys()
    for function in ours.values():
        parameters = inspect.signature(function).parameters.values()
        needed = sum(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
        for wrong in (object(), [object()]):
            with pytest.raises(TesseraError, match=r"must be|unknown"):
                function(*[wrong] * max(1, needed))


def test_right_arguments_keep_their_error():
    @explains_mistakes
    def fails(x: int) -> None:
        raise RuntimeError("of the device")

    with pytest.raises(RuntimeError, match="of the device"):
        fails(3)


@some("how", new_process.HOW, by_default=["fork"])
def test_the_same_without_the_package_that_checks_shapes(how, tmp_path):
    """The tests import jaxtyping, users need not: annotations are of plain tensors then."""
    program = """if True:
        import sys, torch, typing, tessera
        try:
            tessera.entmax(torch.ones(2, dtype=torch.long))
        except ValueError as error:
            print(error)
        hints = typing.get_type_hints(tessera.leaky_average)
        print(hints["x"] is torch.Tensor, hints["documents"] == torch.Tensor | None)
        print({"jaxtyping", "beartype"} & sys.modules.keys())
    """
    assert new_process.run(how, tmp_path, program) == (
        "entmax: scores must be a tensor of floating-point numbers; got a tensor of int64 (2,).\nTrue True\nset()\n"
    )
