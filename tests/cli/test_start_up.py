"""What takes seconds to import is imported when it is needed; a mistake in the arguments is one line before that."""

import os
import subprocess
import sys

import pytest

import tessera

HEAVY = "[name for name in ('torch', 'transformers', 'numpy', 'matplotlib') if name in sys.modules]"


def python(code, *arguments, stdin=None):
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, input=stdin)


def run_main(*arguments):
    """(exit status, heavy modules imported, standard error) of the command line in a process of its own."""
    code = (
        "import sys\nfrom tessera.cli.main import main\n"
        "try:\n    status = main(sys.argv[1:])\nexcept SystemExit as end:\n    status = end.code\n"
        f"print('STATUS', status, {HEAVY})"
    )
    done = python(code, *arguments)
    _, status, heavy = done.stdout.strip().splitlines()[-1].split(" ", 2)
    return int(status), heavy, done.stderr


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--help"], 0),
        (["train", "--help"], 0),
        (["trian"], 2),
        (["train", "tiny", "--ouput", "x"], 2),
        (["generate", "run", "--prompt", "a", "--top-p", "2"], 2),
        (["eval", "run", "--sequences", "-1"], 2),
        (["plan", "tiny", "--device-memory", "x"], 2),
        (["train", "tinny"], 2),
        (["plan", "tinny"], 2),
        (["sweep", "tinny", "seed=0,1"], 2),
    ],
)
def test_help_and_bad_arguments_import_nothing_heavy(arguments, status):
    got, heavy, error = run_main(*arguments)
    assert (got, heavy) == (status, "[]")
    assert error.count("\n") == (1 if status else 0)


@pytest.mark.parametrize(
    ("environment", "spins"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_threads_give_their_core_away_unless_the_user_says_how_they_wait(environment, spins, tmp_path):
    plugin = tmp_path / "plugin.py"
    plugin.write_text("import os, sys\nprint(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)\n")
    kept = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    command = [sys.executable, "-m", "tessera.cli.main", "train", "no-such-recipe", "--import", str(plugin)]
    done = subprocess.run(command, env=kept | environment, capture_output=True, text=True)
    assert done.stdout == f"{spins} False\n"  # set before PyTorch is imported, which reads it then


def test_import_tessera_imports_nothing_heavy():
    done = python(f"import sys, tessera; print({HEAVY}, len(dir(tessera)))")
    assert done.stdout.startswith("[] "), done.stderr


def test_every_name_is_offered_by_one_module():
    for name in tessera.__all__:
        assert getattr(tessera, name) is not None
        assert name in dir(tessera)
    assert callable(tessera.kernel_regression)
    with pytest.raises(AttributeError, match="module 'tessera' has no attribute 'kernel_regresion'"):
        _ = tessera.kernel_regresion


def test_auto_classes_know_the_models_after_import_tessera_models(tmp_path):
    config = tessera.MemoryMosaicConfig(vocab_size=20, hidden_size=8, num_layers=1, num_heads=2, num_persistent_slots=4)
    tessera.MemoryMosaicForCausalLM(config).save_pretrained(tmp_path)
    done = python(
        "import sys, tessera.models\nfrom transformers import AutoConfig, AutoModelForCausalLM\n"
        "config = AutoConfig.from_pretrained(sys.argv[1])\n"
        "model = AutoModelForCausalLM.from_pretrained(sys.argv[1])\n"
        "print(type(config).__name__, type(model).__name__, type(AutoModelForCausalLM.from_config(config)).__name__)",
        str(tmp_path),
    )
    assert done.stdout.split() == ["MemoryMosaicConfig", *2 * ["MemoryMosaicForCausalLM"]], done.stderr


def test_a_model_that_is_imported_by_its_module_is_registered():
    done = python(
        "from tessera.models.memory_mosaic import MemoryMosaicConfig\nfrom transformers import AutoModelForCausalLM\n"
        "config = MemoryMosaicConfig(vocab_size=20, hidden_size=8, num_layers=1, num_heads=2, num_persistent_slots=4)\n"
        "print(type(AutoModelForCausalLM.from_config(config)).__name__)"
    )
    assert done.stdout.split() == ["MemoryMosaicForCausalLM"], done.stderr
