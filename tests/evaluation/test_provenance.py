"""A result says what made it."""

import json
import runpy
import subprocess
import sys

import pytest
import torch
import transformers

from tessera.evaluation.provenance import INSTRUCTIONS, command_line, commit, provenance


def git(folder, *arguments):
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    return subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_a_record_is_json_with_everything_in_it():
    record = provenance(configuration={"a": 1}, seed=3, wall_seconds=1.234)
    assert json.loads(json.dumps(record)) == record
    assert (record["configuration"], record["seed"]) == ({"a": 1}, 3)
    assert command_line(sys.argv[1:]) in record["command"]
    assert record["wall_seconds"] == 1.23
    assert record["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]  # a build may add its name
    assert record["versions"]["transformers"] == transformers.__version__
    assert record["hardware"]["threads"] == torch.get_num_threads()
    assert record["hardware"]["processor"]
    assert record["hardware"]["instructions"] == [
        name for name in INSTRUCTIONS if torch.cpu.get_capabilities().get(name)
    ]


@pytest.mark.parametrize(
    ("argument", "recorded"),
    [
        ("/home/someone/out", "out"),
        ("--data=/data/stories", "--data=stories"),
        ("wikitext=/home/someone/test.txt", "wikitext=test.txt"),
        ("--data=wikitext=/home/someone/test.txt", "--data=wikitext=test.txt"),
        ("runs/out", "runs/out"),
        ("a/b c", "'a/b c'"),
        ("/s means sarcasm", "'/s means sarcasm'"),
        ("/", "/"),
    ],
)
def test_a_command_names_no_folders_of_this_machine(argument, recorded):
    assert command_line(["reproduce", argument, "--x=1"]) == f"reproduce {recorded} --x=1"


def test_a_configuration_names_no_folders_of_this_machine():
    given = {
        "data": {"source": ["/home/me/a text.txt", "stories"], "separator": "\n\n"},
        "model": {"path": "/srv/m/gpt"},
    }
    recorded = provenance(configuration=given)["configuration"]
    assert recorded == {"data": {"source": ["a text.txt", "stories"], "separator": "\n\n"}, "model": {"path": "gpt"}}
    assert given["model"]["path"] == "/srv/m/gpt"


def test_the_commit_is_named_with_its_changes(tmp_path):
    """Results that a command has written are none."""
    assert commit(tmp_path) is None
    git(tmp_path, "init", "-q")
    program, *results = (tmp_path / "results" / name for name in ("measure.py", "toy/cpu.json", "toy/cpu.md"))
    results[0].parent.mkdir(parents=True)
    for file in (program, *results):
        file.write_text("one")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    name = git(tmp_path, "rev-parse", "HEAD").strip()
    assert commit(tmp_path) == name
    for file in results:
        file.write_text("two")
    assert commit(tmp_path) == name
    program.write_text("two")
    assert commit(tmp_path) == name + "+changes"


def test_the_command_is_one_that_can_be_called(tmp_path, monkeypatch, capsys):
    """A module by its name with `python -m`, a script by its own."""
    code = "from tessera.evaluation.provenance import provenance; print(provenance()['command'])"
    (tmp_path / "measure.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["", "--only", "a b*"])
    runpy.run_module("measure", run_name="__main__", alter_sys=True)  # what `python -m measure` does
    monkeypatch.setattr(sys, "argv", ["", "x"])
    runpy.run_path(str(tmp_path / "measure.py"), run_name="__main__")
    assert capsys.readouterr().out == "python -m measure --only 'a b*'\nmeasure.py x\n"
