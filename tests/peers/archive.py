"""The tests that source archives of transformers and PEFT carry, fetched by pip into a cache outside the repository.

Nothing of them is copied here. transformers' archive leaves out three modules that they import: of generation and of
export, whose tests are not in it at all, and the settings that every configuration must take. PEFT's import a class of
diffusers, which no test of ours needs.
"""

import importlib
import importlib.util
import os
import subprocess
import sys
import tarfile
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

LIBRARIES = ("transformers", "peft")
# Settings of every configuration of transformers, each other than its default.
COMMON = {
    "return_dict": False,
    "output_hidden_states": True,
    "output_attentions": True,
    "dtype": "float16",
    "chunk_size_feed_forward": 5,
    "architectures": ["BertModel"],
    "id2label": {0: "label"},
    "label2id": {"label": "0"},
    "problem_type": "regression",
}


def cache() -> Path:
    """Where archives and what they need beside are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("TESSERA_PEERS") or Path(home) / "tessera-peers")


def folder(library: str) -> Path:
    """The unpacked archive of the version that is installed."""
    return cache() / f"{library}-{version(library)}"


def fetch() -> None:
    """Download and unpack what is not there yet.

    Raises:
        subprocess.CalledProcessError: the index does not answer.
    """
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--retries", "0", "--timeout", "10"]
    for library in LIBRARIES:
        if not (folder(library) / "tests").is_dir():
            source = [f"{library}=={version(library)}", "--no-binary", ":all:", "--no-deps"]
            subprocess.run([*pip, "download", "--no-build-isolation", "--dest", str(cache()), *source], check=True)
            with tarfile.open(f"{folder(library)}.tar.gz") as archive:
                archive.extractall(cache(), filter="data")
            (folder(library) / "tests" / "__init__.py").touch()  # which they look for
    if importlib.util.find_spec("parameterized") is None and not packages().is_dir():
        subprocess.run([*pip, "install", "--no-deps", "--target", str(packages()), "parameterized"], check=True)


def packages() -> Path:
    """Installed beside the archives: what their tests import and this library does not."""
    return cache() / "packages"


def load(name: str, library: str = "transformers") -> ModuleType:
    """A module of an archive's tests, which call themselves `tests`, as this repository's do."""
    package = f"{library}_tests"
    if package not in sys.modules:
        if packages().is_dir():
            sys.path.append(str(packages()))
        _module(package).__path__ = [str(folder(library) / "tests")]
        if library == "peft" and importlib.util.find_spec("diffusers") is None:
            _module("diffusers").StableDiffusionPipeline = type("StableDiffusionPipeline", (), {})
        elif library == "transformers":
            for absent in ("exporters", "generation", "utils"):
                _module(f"{package}.{absent}").__path__ = []
            _module(f"{package}.exporters.test_export").ExportTesterMixin = type("ExportTesterMixin", (), {})
            _module(f"{package}.generation.test_utils").GenerationTesterMixin = type("GenerationTesterMixin", (), {})
            _module(f"{package}.utils.test_configuration_utils").config_common_kwargs = COMMON
    return importlib.import_module(f"{package}.{name}")


def _module(name: str) -> ModuleType:
    sys.modules[name] = module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    return module
