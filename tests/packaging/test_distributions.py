"""What `pip install` brings: the source distribution has all of the checkout, the wheel runs without it."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.grid  # builds both distributions
ROOT = Path(__file__).parents[2]
NOT_DISTRIBUTED = re.compile(r"^(\.ci/|\.github/|\.gitignore$)")
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv", "runs", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", "_build"
)
SMALL = (
    "model.hidden_size=16 training.steps=2 training.warmup_steps=1 training.batch_size=2 "
    "training.evaluate_sequences=2 training.precision=fp32 data.context=32"
).split()


def build(kind, source, folder):
    """Build an "sdist" or a "wheel" of the tree `source`; returns the file."""
    command = [sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", str(folder), str(source)]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    (file,) = folder.iterdir()
    return file


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdist")
    shutil.copytree(ROOT, folder / "checkout", ignore=NOT_COPIED)
    return build("sdist", folder / "checkout", folder / "dist")


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """Built from the source distribution, as pip does where it finds no wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    return build("wheel", source, folder / "dist")


@pytest.fixture(scope="module")
def tracked():
    """The files of the checkout, by git."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: nothing says which files belong to it")
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return {name for name in listing.splitlines() if (ROOT / name).exists()}


def test_the_sdist_is_the_checkout(sdist, tracked):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert sorted(name for name in tracked - names if not NOT_DISTRIBUTED.match(name)) == []


def test_the_wheel_is_the_package(wheel, tracked):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == {name for name in tracked if name.startswith("tessera/")}


def test_in_the_folder_above_a_clone_python_finds_the_package(sdist, tmp_path):
    """A clone that is called `tessera` is a folder of that name without being the package."""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (clone,) = tmp_path.iterdir()
    clone = clone.rename(tmp_path / "tessera")
    make = f"import setuptools.build_meta; print(setuptools.build_meta.build_editable({str(tmp_path)!r}))"
    built = subprocess.run([sys.executable, "-c", make], cwd=clone, check=True, capture_output=True, text=True)
    zipfile.ZipFile(tmp_path / built.stdout.split()[-1]).extractall(tmp_path / "packages")
    find = f"import site; site.addsitedir({str(tmp_path / 'packages')!r}); import tessera; print(tessera.__version__)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-S", "-c", find]
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert re.fullmatch(r"[\d.]+\n", found.stdout), found.stderr


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A function that runs the installed `tessera` in an empty folder, away from the checkout.

    The fresh environment sees this one's dependencies by a path; Tessera comes from the wheel alone.
    """
    folder = tmp_path_factory.mktemp("elsewhere")
    environment = folder / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*arguments):
        command = [str(environment / "bin" / "tessera"), *arguments]
        finished = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    where = "import tessera; print(tessera.__file__)"
    located = subprocess.run([python, "-c", where], cwd=folder, env=variables, capture_output=True, text=True)
    assert Path(located.stdout.strip()).is_relative_to(environment)
    return run


@pytest.mark.slow
def test_the_wheel_trains_generates_and_shows(installed):
    installed("train", "tiny", *SMALL, "--output", "runs/tiny")
    installed("train", "recipes/tiny.yaml", *SMALL, "--output", "runs/by-path")
    assert installed("generate", "runs/tiny", "--prompt", "Once", "--max-new-tokens", "4").startswith("Once")
    smaller = (*SMALL, "model.num_layers=1", "model.num_heads=2", "tokenizer.vocab_size=300")
    assert "Memory Mosaic" in installed("demo", *smaller, "--prompt", "A king")
