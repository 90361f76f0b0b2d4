"""The tests that transformers' source archive carries, fetched by pip into a cache outside of this repository.

Nothing of them is copied here. The archive leaves out three modules that they import: of generation and of export,
whose tests are not in it at all, and the settings that every configuration must take.
"""

import importlib
import importlib.util
import os
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

PACKAGE = "transformers_tests"
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


def folder() -> Path:
    """The unpacked archive of the transformers that is installed."""
    return cache() / f"transformers-{version('transformers')}"


def fetch() -> None:
    """Download and unpack what is not there yet; pip's own error if the index does not answer."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    if not (folder() / "tests").is_dir():
        source = [f"transformers=={version('transformers')}", "--no-binary", ":all:", "--no-deps"]
        subprocess.run([*pip, "download", "--no-build-isolation", "--dest", str(cache()), *source], check=True)
        with tarfile.open(f"{folder()}.tar.gz") as archive:
            archive.extractall(cache(), filter="data")
        (folder() / "tests" / "__init__.py").touch()  # which they look for
    if importlib.util.find_spec("parameterized") is None and not packages().is_dir():
        subprocess.run([*pip, "install", "--no-deps", "--target", str(packages()), "parameterized"], check=True)


def packages() -> Path:
    """Installed beside the archive: what its tests import and this library does not."""
    return cache() / "packages"


def load(name: str) -> ModuleType:
    """A module of the archive's tests, which call themselves `tests`, as this repository's do."""
    if PACKAGE not in sys.modules:
        if packages().is_dir():
            sys.path.append(str(packages()))
        _module(PACKAGE).__path__ = [str(folder() / "tests")]
        for absent in ("exporters", "generation", "utils"):
            _module(f"{PACKAGE}.{absent}").__path__ = []
        _module(f"{PACKAGE}.exporters.test_export").ExportTesterMixin = type("ExportTesterMixin", (), {})
        _module(f"{PACKAGE}.generation.test_utils").GenerationTesterMixin = type("GenerationTesterMixin", (), {})
        _module(f"{PACKAGE}.utils.test_configuration_utils").config_common_kwargs = COMMON
    return importlib.import_module(f"{PACKAGE}.{name}")


def _module(name: str) -> ModuleType:
    sys.modules[name] = module = ModuleType(name)
    return module
