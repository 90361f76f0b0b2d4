"""Code for GPUs on a device without data: nothing is left on the CPU, and nothing waits for the device unasked."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

# One layer: one kernel regression per contextual, short- or long-term memory, if PyTorch's attention does not take it.
MODELS = {
    "v1 gaussian": {"linear_recurrence": 2},
    "v1 biweight": {"linear_recurrence": 2, "kernel_regression": 1},
    "v1 relumax": {"linear_recurrence": 2, "kernel_regression": 1},
    "v1 normalized_relu": {"linear_recurrence": 2, "kernel_regression": 1},
    "v2 gaussian": {"gate_shares": 2, "linear_recurrence": 2, "kernel_regression": 1},
    "v2 biweight": {"gate_shares": 2, "linear_recurrence": 2, "kernel_regression": 2},
    # Two layers. The first of five segments reads nothing; the memory after the last is written for whoever goes on.
    "armt": {"association_read": 8, "association_write": 10},
    # The text is read; then two tokens, each of which a Gaussian memory asks by PyTorch's attention.
    "v1 gaussian decodes": {"linear_recurrence": 2},
    "v1 biweight decodes": {"linear_recurrence": 2, "kernel_regression": 1 + 2 * 1},
    "v2 gaussian decodes": {"gate_shares": 2, "linear_recurrence": 2, "kernel_regression": 1},
    "v2 biweight decodes": {"gate_shares": 2, "linear_recurrence": 2, "kernel_regression": 2 + 2 * 2},
}


def dry_run(*parts):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU: tests/ops and test_models_by_triton.py run on it")
    # safetensors asks fake tensors for storage in a way that PyTorch is about to drop.
    warnings = ["-W", "error", "-W", "ignore:TypedStorage is deprecated"]
    command = [sys.executable, *warnings, "-m", "tests.devices.dry_run", *parts]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.grid
def test_models_and_mistakes():
    """The same process shows that a tensor left on the CPU and a wait would be found."""
    actual = dry_run("models", "mistakes")
    mistakes = {name: actual.pop(name) for name in ("left behind", "waits", "nothing")}
    error = mistakes["left behind"]["error"]
    assert "Expected all tensors to be on the same device" in error or "found two different devices" in error
    assert mistakes["waits"]["waits"] == {"elsewhere": 3}
    assert mistakes["nothing"] == {"error": None, "waits": {}, "operators": {}}
    expect_no_waits(actual)


@pytest.mark.grid
def test_other_models():
    expect_no_waits(dry_run("other_models"))


def expect_no_waits(actual):
    """Training and decoding wait for nothing but what `once` says: a look at the labels, a look at the memory."""
    assert not {name: case["error"] for name, case in actual.items() if case["error"]}
    # Which segments have labels at all, whether the stream goes on from an earlier one, whose weights a state is of,
    # whatever number of tokens follows: one look each.
    once = {
        "armt": {"segment_loss.py": 1},
        "rmt": {"segment_loss.py": 1},
        "prmt": {"segment_loss.py": 1},
        "armt reads": {"stream.py": 1},
    }
    waits = {
        name: {line.split(":")[0]: count for line, count in case["waits"].items()}
        for name, case in actual.items()
        if case["waits"]
    }
    # A fingerprint looks at one number of each weight, once for a model and not at every token.
    looks = {name: case.pop("fingerprint.py") for name, case in waits.items() if "fingerprint.py" in case}
    assert looks.keys() == {name for name in actual if name.endswith(("reads", "decodes"))}
    assert max(looks.values()) < 50
    expected = {name: case for name, case in once.items() if name in actual}
    assert {name: case for name, case in waits.items() if case} == expected
    counted = {name: operators for name, operators in MODELS.items() if name in actual}
    assert {name: actual[name]["operators"] for name in counted} == counted
    assert counted


@pytest.mark.slow
def test_experiments():
    actual = dry_run("experiments")
    assert not {name: case["error"] for name, case in actual.items() if case["error"]}
    trained = [case for name, case in actual.items() if "regbench: mosaic" in name]
    assert trained
    assert all("fit.py" in str(case["waits"]) for case in trained)


@pytest.mark.slow
def test_every_stage_of_the_benchmark(tmp_path):
    command = [sys.executable, "-m", "benchmarks.gpu", "--dry-run", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert len(list(tmp_path.glob("*.json"))) == 9
