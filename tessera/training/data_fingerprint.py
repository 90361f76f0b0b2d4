"""What a run reads: its tokenizer in the run's folder, and checksums by which a resumed run sees that text changed."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessera.base.checkpoints import describe, differences
from tessera.base.errors import TesseraError
from tessera.base.files import remove, sync, write_text_atomically

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from tessera.training.training_data import TrainingData

INPUTS, TOKENIZER = "inputs.json", "tokenizer.json"


def write_tokenizer(run: Path, tokenizer: "PreTrainedTokenizerFast") -> None:
    """Put the tokenizer's files into `run`, each complete or not at all, `tokenizer.json` last."""
    temporary = run / "tokenizer.tmp"
    remove(temporary)
    tokenizer.save_pretrained(temporary)
    for file in sorted(temporary.iterdir(), key=lambda path: path.name == TOKENIZER):
        sync(file)
        os.replace(file, run / file.name)
    remove(temporary)


def write_inputs(run: Path, corpus: "TrainingData") -> None:
    """Note what the run reads."""
    files = sorted(path for path in run.glob("tokenizer*.json") if path.is_file())
    record = {"tokenizer": describe(run, files), **corpus.checksums()}
    write_text_atomically(run / INPUTS, json.dumps(record, indent=1) + "\n")


def require_same_tokenizer(run: Path) -> None:
    """Raise `TesseraError` when the tokenizer in `run` is not the one that the run began with."""
    record = _recorded(run)
    reason = differences(run, record["tokenizer"]) if record else None
    if reason is not None:
        raise TesseraError(
            f"{run}: the tokenizer must be the one the run began with; {reason}. "
            "Restore it (checkpoints hold copies), or start again: --overwrite."
        )


def require_same_inputs(run: Path, corpus: "TrainingData") -> None:
    """Raise `TesseraError` when the run began with other tokens than `corpus` has. Older runs have no record."""
    record = _recorded(run)
    if not record:
        return
    for name, now in corpus.checksums().items():
        before = record[name]
        if before != now:
            raise TesseraError(
                f"{run}: the {name} text must be the one the run began with, and it has changed: "
                f"{before['tokens']:,} tokens then, {now['tokens']:,} now. Restore it, or start again: --overwrite."
            )


def _recorded(run: Path) -> dict[str, Any] | None:
    """What `write_inputs` wrote; None where there is nothing."""
    path = run / INPUTS
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record["tokenizer"], dict) or not all(
            isinstance(record[name]["tokens"], int) for name in ("training", "validation")
        ):
            raise TypeError("it lacks entries")
        return record
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TesseraError(
            f"{path}: must be what the run wrote; it cannot be read ({error}). Delete it to resume without comparing "
            "the text with the one that the run began with."
        ) from None
