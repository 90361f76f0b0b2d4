"""What takes seconds to import is imported when it is needed; a mistake in the arguments is one line before that."""

import json
import os
import subprocess
import sys

import pytest

import tessera
from tests import new_process
from tests.covering import some

HEAVY = "[name for name in ('torch', 'transformers', 'numpy', 'matplotlib') if name in sys.modules]"


def test_the_library_help_and_bad_arguments_import_nothing_heavy():
    """In one process, one after the other; each exit status and message is that of the command alone."""
    cases = {
        "--help": 0,
        "train --help": 0,
        "trian": 2,
        "train tiny --ouput x": 2,
        "generate run --prompt a --top-p 2": 2,
        "eval run --sequences -1": 2,
        "plan tiny --device-memory x": 2,
        "train tinny": 2,
        "plan tinny": 2,
        "sweep tinny seed=0,1": 2,
    }
    code = (
        "import json, sys, tessera\nassert tessera.__all__ and dir(tessera)\n"
        "from tessera.cli.main import main\nends = []\n"
        "for words in sys.argv[1:]:\n"
        "    try:\n        status = main(words.split())\n    except SystemExit as end:\n        status = end.code\n"
        f"    ends.append([status, {HEAVY}])\n"
        "print()\nprint(json.dumps(ends))"
    )
    done = subprocess.run([sys.executable, "-c", code, *cases], capture_output=True, text=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [[status, []] for status in cases.values()]
    assert done.stderr.count("\n") == sum(status == 2 for status in cases.values()), done.stderr


@some("how", new_process.HOW, by_default=["fork"])
def test_to_list_tasks_and_experiments_does_not_import_them(how, tmp_path):
    code = (
        "import sys\n"
        "for name in list(sys.modules):\n"
        "    if name.split('.')[0] == 'transformers':\n        del sys.modules[name]\n"  # a fork has it
        "from tessera.cli.main import main\nmain(['tasks'])\n"
        "print()\nprint({'transformers', 'tessera.papers.induction.report'} & set(sys.modules))"
    )
    assert new_process.run(how, tmp_path, code).splitlines()[-1] == "set()"


PLUGIN = """
import os, sys
print(os.environ.get("GOMP_SPINCOUNT"), "torch" in sys.modules)
from huggingface_hub.utils import logging
print(logging.get_verbosity() == logging.ERROR)
"""


@pytest.mark.parametrize(
    ("environment", "spins"), [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")]
)
def test_threads_give_their_core_away_unless_told_how_to_wait_and_tries_to_reach_the_hub_are_no_warnings(
    environment, spins, tmp_path
):
    """Each try would be one, before the line that says that there is no such dataset."""
    (tmp_path / "plugin.py").write_text(PLUGIN)
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "HF_HUB_VERBOSITY")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, "-m", "tessera.cli.main", "train", "no-such-recipe"]
    command += ["--import", str(tmp_path / "plugin.py")]
    done = subprocess.run(command, env=kept | environment, capture_output=True, text=True)
    assert done.stdout == f"{spins} False\nTrue\n"  # set before PyTorch is imported, which reads it then
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("recipe no-such-recipe: no such file."), done.stderr


def test_every_name_is_offered_by_one_module():
    for name in tessera.__all__:
        assert getattr(tessera, name) is not None
        assert name in dir(tessera)
    assert callable(tessera.kernel_regression)
    with pytest.raises(AttributeError, match="module 'tessera' has no attribute 'kernel_regresion'"):
        _ = tessera.kernel_regresion
