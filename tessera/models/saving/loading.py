"""Models and tokenizers from run folders, checkpoints and model folders, with errors that name what is wrong."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from tessera.base.arguments import explain_all
from tessera.base.checkpoints import FOLDER, latest_complete
from tessera.base.errors import TesseraError, first_line
from tessera.base.foreign_code import expect_no_code
from tessera.base.plugins import ADVICE
from tessera.models.attention import LEARNED, config_of_attention, learn_alpha

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


def model_folder(path: str | Path) -> Path:
    """The folder with weights that `path` means: itself, or the latest complete checkpoint of an unfinished run.

    A run that is extended is unfinished until `run.json` is there again; its weights are those of fewer steps.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise TesseraError(f"model {path}: no such folder. Train one with: tessera train RECIPE.")
    has_weights = any((folder / name).is_file() for name in WEIGHTS)
    if has_weights and ((folder / "run.json").is_file() or not (folder / FOLDER).is_dir()):
        return folder
    checkpoint, passed = latest_complete(folder)
    if has_weights and checkpoint is None:
        return folder
    parts = next((path for path in (folder, checkpoint) if path is not None and (path / "shards").is_dir()), None)
    if parts is not None:
        raise TesseraError(f"model {path}: {parts.name} is in parts. Merge them: tessera convert {parts} NEW_FOLDER.")
    if checkpoint is not None:
        return checkpoint
    damaged = " Damaged: " + "; ".join(passed) + "." if passed else ""
    has_pickled = any(folder.glob("pytorch_model*.bin"))  # a Trainer's training_args.bin holds no weights
    pickled = " Pickled weights are not read: convert them to safetensors." if has_pickled else ""
    is_adapter = (folder / "adapter_config.json").is_file()
    adapter = " An adapter of PEFT is put into its model by merge_and_unload(): save that." if is_adapter else ""
    advice = f"{damaged}{pickled}{adapter}"
    raise TesseraError(f"model {path}: must hold {WEIGHTS[0]} or a complete checkpoint; got neither.{advice}")


def load_config(path: str | Path) -> "PreTrainedConfig":
    """The configuration of the model in `path`."""
    folder = Path(path)
    if not (folder / "config.json").is_file():
        folder = model_folder(path)
    expect_no_code(folder, "model")
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises anything for a damaged file
        raise TesseraError(f"model {path}: configuration cannot be read ({_explained(error)}") from error


def load_model(
    path: str | Path, config: "PreTrainedConfig | None" = None, *, long_term_memory: bool = True
) -> "PreTrainedModel":
    """The causal language model in `path`, in evaluation mode, float32.

    With `config`, its weights in a model of that configuration. `long_term_memory=False` switches the long-term
    memories of a v2 model off (`disable_long_term_memory`). Raises `TesseraError` when the folder is missing, the
    files are truncated or belong to something else, the weights do not fit the model exactly or are not finite, the
    folder brings code of its own, or there are no long-term memories that could be switched off.
    """
    folder = model_folder(path)
    expect_no_code(folder, "model")
    _expect_readable_generation_config(path, folder)
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            output_loading_info=True,
            local_files_only=True,
            trust_remote_code=False,
        )
    except TesseraError as error:
        raise TesseraError(f"model {path}: {error}") from error
    except SafetensorError as error:
        raise TesseraError(f"model {path}: weights are truncated or not safetensors ({error}).") from error
    except Exception as error:  # transformers raises anything for damaged files
        raise TesseraError(f"model {path}: cannot be loaded ({_explained(error)}") from error
    if hasattr(config_of_attention(model), LEARNED):
        learn_alpha(model, folder=folder)
        report["unexpected_keys"] = [name for name in report["unexpected_keys"] if f".{LEARNED}." not in name]
    _expect_fit(path, report)
    _expect_finite(path, model)
    if not long_term_memory:
        if not getattr(model.config, "long_term_memory", False):
            kind = model.config.model_type
            raise TesseraError(f"model {path}: must have long-term memories to switch off; this {kind} has none.")
        model.disable_long_term_memory()
    if model.config.model_type == "mamba":  # transformers' own layers begin anew with several tokens behind a state
        from tessera.models.mamba import use_selective_scan  # transformers' Mamba takes half a second to import

        use_selective_scan(model)
    return model.eval()


def _explained(error: Exception) -> str:
    """What transformers says, to its closing bracket; of a model type that nobody has registered, also what to do."""
    return f"{first_line(error)})." + (f" {ADVICE}" if "does not recognize this architecture" in str(error) else "")


def load_tokenizer(path: str | Path) -> "PreTrainedTokenizerFast":
    """The tokenizer saved with the model in `path`."""
    folder = model_folder(path)
    if not (folder / "tokenizer.json").is_file() and not (folder / "tokenizer_config.json").is_file():
        advice = f"Save it there: tokenizer.save_pretrained({str(folder)!r})."  # a Trainer saves what it is given
        raise TesseraError(f"model {path}: must come with its tokenizer (tokenizer.json); got none. {advice}")
    expect_no_code(folder, "model")
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers and tokenizers raise anything for damaged files
        raise TesseraError(f"model {path}: tokenizer cannot be loaded ({first_line(error)}).") from error


def _expect_readable_generation_config(path: str | Path, folder: Path) -> None:
    """transformers would go on without it: answers would end elsewhere, and their certainty would be unknown."""
    if not (folder / "generation_config.json").is_file():
        return
    try:
        GenerationConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # transformers raises anything for a damaged file
        raise TesseraError(f"model {path}: generation_config.json cannot be loaded ({first_line(error)}).") from error


def _expect_fit(path: str | Path, report: dict) -> None:
    """Every weight of the model came from the file and none was left over."""
    for key, what in (("missing_keys", "lacks"), ("unexpected_keys", "has unknown"), ("mismatched_keys", "misfits")):
        names = sorted(str(name) for name in report.get(key) or ())
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise TesseraError(
                f"model {path}: weights must fit the configuration; the file {what} {', '.join(names[:3])}{more}."
            )


def _expect_finite(path: str | Path, model: "PreTrainedModel") -> None:
    """One pass over the weights: everything that a diverged model says is NaN."""
    names = [name for name, parameter in model.named_parameters() if not torch.isfinite(parameter).all()]
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise TesseraError(
            f"model {path}: weights must be finite; got NaN or infinity in {names[0]}{more}. Its training diverged: "
            "use an earlier checkpoint."
        )


explain_all(globals(), ("model_folder", "load_config", "load_model", "load_tokenizer"))
