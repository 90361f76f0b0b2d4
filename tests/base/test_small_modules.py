"""The small modules of `base`: checked shapes, progress as lines, exports, names of precisions, parts of a state."""

import io
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor
from tqdm import tqdm

import tessera
from tessera.base.bar_lines import bar_stream
from tessera.base.devices import is_exporting
from tessera.base.errors import TesseraError
from tessera.base.precision import autocast, without_autocast
from tessera.base.shapes import Float, Int
from tessera.base.state import State
from tessera.kernels import Gaussian
from tessera.memories.association import AssociationState
from tessera.ops.leaky_average import leaky_average
from tests.refusals import refused
from tests.shape_checks import ShapeError, checked


def test_what_the_library_itself_lets_through_is_checked():
    """Unchecked, none of the last two is an error: a state that fits no memory, a mask that enlarges the scores."""
    with pytest.raises(TesseraError, match=r"leaky_average: documents must be a tensor of integers \(B, T\)"):
        leaky_average(torch.zeros(1, 3, 4, 5), torch.ones(3), documents=torch.zeros(1, 4))
    with pytest.raises(ShapeError, match=r"AssociationState.__init__: normaliser is not .*'B P'.*\[2, 4\]"):
        AssociationState(torch.zeros(2, 3, 5), torch.zeros(2, 4), torch.ones(2, dtype=torch.bool))
    with pytest.raises(ShapeError, match=r"Gaussian.weights: visible is not"):
        Gaussian().weights(torch.zeros(1, 3), torch.ones(2, 3, dtype=torch.bool))


def test_a_result_of_another_shape_than_annotated_is_found():
    @checked
    def transposed(x: Float[Tensor, "B T"], documents: Int[Tensor, "B T"] | None = None) -> Float[Tensor, "B T"]:
        return x.T

    assert transposed(torch.ones(2, 2)).shape == (2, 2)
    with pytest.raises(ShapeError, match="return is not"):
        transposed(torch.ones(2, 3))
    with pytest.raises(ShapeError, match="documents is not"):
        transposed(torch.ones(2, 2), documents=torch.ones(2, 2))


def test_a_log_has_no_carriage_returns(monkeypatch):
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with tqdm(total=100, mininterval=0, bar_format="{n_fmt} of 100{postfix}", file=bar_stream()) as bar:
        for step in range(100):
            bar.update(1)
            if step == 49:
                tqdm.write("half", file=sys.stderr)
        bar.set_postfix_str("100%", refresh=False)
    print("done", file=bar_stream())
    assert log.getvalue().splitlines() == ["0 of 100", "half", "100 of 100, 100%", "done"]


def test_a_compiled_function_is_not_taken_for_an_exported_one(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)  # as 2.11 says inside both
    assert is_exporting()
    monkeypatch.setattr(torch.compiler, "is_dynamo_compiling", lambda: True)
    assert not is_exporting()


def test_nothing_else_asks_pytorch_itself():
    files = Path(tessera.__file__).parent.rglob("*.py")
    asking = [file.name for file in files if "compiler.is_exporting" in file.read_text(encoding="utf-8")]
    assert asking == ["devices.py"]


def test_another_name_is_refused():
    """It would be float32 without a word."""
    refused("precision must be auto, bf16 or fp32; got 'bfloat16'", autocast, "bfloat16", "cpu")


@dataclass(frozen=True)
class Learned(State):
    model: Tensor | str
    count: int = 3


def test_a_part_may_be_called_model_and_a_fingerprint_is_none():
    weights = torch.ones(2)
    assert Learned(weights).parts() == {"model": weights, "count": 3}
    assert Learned("of which model").parts() == {"count": 3}


def test_states_that_could_not_be_told_apart_or_moved_are_refused():
    """A file names states by their class; what a list holds would stay where it is when a state is moved or chosen."""

    @dataclass(frozen=True)
    class Listed(State):
        tensors: list

    refused("State: what it holds must be tensors, .*; got list", Listed([torch.ones(2)]).detach)
    same_name = {"__module__": "mine"}
    refused(
        "state AssociationState: tessera.memories.association has one", type, "AssociationState", (State,), same_name
    )


def test_nothing_is_cast_on_the_meta_device():
    """PyTorch knows no autocast of it, and refuses to be asked."""
    with without_autocast(torch.empty(2, device="meta")) as entered:
        assert entered is None
