"""Machine code of compiled decoding: kept in files, made once, and run only where nobody else may have written it."""

import subprocess
import sys

import pytest
import torch

from tessera.models.decoding import programs
from tests.refusals import refused

SCRIPT = """
import torch, tessera
from tests.models.test_decoding import MODELS, decoded, plain
torch.manual_seed(0)
for name in ("v2", "armt"):
    model, ids = MODELS[name]().eval(), torch.randint(1, 50, (1, 7))
    tokens, logits = decoded(tessera.compile_decoding(model, "int8"), ids, 90)
    expected, others = decoded(plain(model), ids, 90)
    assert torch.equal(tokens, expected) and (logits - others).abs().max() < 2e-5, name
"""


@pytest.mark.slow
def test_machine_code_is_kept_between_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_CACHE", str(tmp_path))
    for process in range(2):
        done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert ("Compiling" in done.stderr) == (process == 0)
    assert len(list((tmp_path / "decoding").glob("*.pt2"))) == 3


def test_a_new_program_that_cannot_be_run_is_not_made_again(tmp_path, monkeypatch):
    """As where programs are not run from the folder of temporary files; a damaged file is made anew, once."""
    made = []

    def no_program(path):
        raise RuntimeError("failed to map segment from shared object")

    monkeypatch.setenv("TESSERA_CACHE", str(tmp_path))
    monkeypatch.setattr(programs, "_compile", lambda *given: (made.append(given), given[-1].write_bytes(b"")))
    monkeypatch.setattr(programs, "expect_own", lambda path: None)
    monkeypatch.setattr(torch._inductor, "aoti_load_package", no_program)
    (tmp_path / "decoding").mkdir()
    for count in (1, 2):
        message = "TMPDIR.* must be a folder that programs run from; got failed to map"
        refused(message, programs.load, "a step", (), None, (torch.zeros(1),), (None,))
        assert len(made) == count
        for damaged in (tmp_path / "decoding").iterdir():
            damaged.write_bytes(b"")


def test_a_program_that_others_may_have_written_is_not_run(tmp_path):
    file = tmp_path / "program.pt2"
    file.write_bytes(b"")
    tmp_path.chmod(0o700)
    file.chmod(0o600)
    programs.expect_own(file)
    for path, mode in ((file, 0o620), (tmp_path, 0o702)):
        before = path.stat().st_mode
        path.chmod(mode)
        refused(f"{path} must be writable by you alone; got 0o", programs.expect_own, file)
        path.chmod(before)
