"""A model trained for a few steps, and the command line as a function."""

import io

import pytest
import torch

from tessera import armt
from tessera.cli.main import main
from tessera.models.saving.loading import load_model, load_tokenizer
from tests.short_books import beginnings, short_books  # noqa: F401 (fixtures)

OPTIONS = (
    "model.hidden_size=16 model.num_persistent_slots=8 data.context=16 training.steps=3 training.warmup_steps=1 "
    "training.batch_size=2 training.evaluate_sequences=2 training.precision=fp32"
).split()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("Once upon a time there was a king. " * 40)
    return path


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory, corpus):
    """The folder of a finished run of the tiny recipe."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    assert main(["train", "tiny", f"data.source={corpus}", *OPTIONS, "--output", str(folder)]) == 0
    return folder


@pytest.fixture(scope="session")
def wrapped(run_folder, tmp_path_factory):
    """The model of `run_folder` as the base of an ARMT whose memory has an effect, and its tokenizer."""
    folder = tmp_path_factory.mktemp("wrapped") / "armt"
    torch.manual_seed(0)
    model = armt.wrap(load_model(run_folder), segment_size=8, num_memory_tokens=2, memory_dim=4)
    with torch.no_grad():
        for memory in model.memories:
            memory.value.weight.normal_()
    model.save_pretrained(folder)
    load_tokenizer(run_folder).save_pretrained(folder)
    return folder


@pytest.fixture
def tessera(capsys):
    """Run a command; returns (exit status, stdout, stderr)."""

    def run(*arguments):
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def typed(tessera, monkeypatch):
    """Run a command while somebody types `text`; returns what `tessera` does."""

    def run(text, *arguments):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        return tessera(*arguments)

    return run


@pytest.fixture
def done(tessera):
    """Run a command that must succeed; returns (stdout, stderr)."""

    def run(*arguments):
        status, out, err = tessera(*arguments)
        assert status == 0, err
        return out, err

    return run


@pytest.fixture
def refused(tessera):
    """A command is refused in one short line that holds `message`, with status 2 and nothing on standard output."""

    def run(message, *arguments):
        status, out, err = tessera(*arguments)
        assert (status, out, len(err.strip().splitlines())) == (2, "", 1), err
        assert message in err
        assert len(err) < 1000, err
        return err

    return run
