"""Whether an operation is exported is asked in one place, which knows what PyTorch 2.11 answers."""

from pathlib import Path

import torch

import tessera
from tessera.base.devices import is_exporting


def test_a_compiled_function_is_not_taken_for_an_exported_one(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)  # as 2.11 says inside both
    assert is_exporting()
    monkeypatch.setattr(torch.compiler, "is_dynamo_compiling", lambda: True)
    assert not is_exporting()


def test_nothing_else_asks_pytorch_itself():
    files = Path(tessera.__file__).parent.rglob("*.py")
    assert [file.name for file in files if "compiler.is_exporting" in file.read_text(encoding="utf-8")] == [
        "devices.py"
    ]
