"""The beginning of a text file in a model's tokens."""

from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tessera.base.errors import TesseraError
from tessera.models.transformer import context_limit

BYTES_PER_TOKEN = 16  # read at most so much of a file at first; few tokenizers have longer tokens on average


def read_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: Path, count: int) -> Tensor:
    """The first `count` tokens (1, T) of the text in `path`, fewer where it ends.

    Raises:
        TesseraError: no such file, not UTF-8, fewer than two tokens, or more than the model has positions for.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(BYTES_PER_TOKEN * count)
    except UnicodeDecodeError as error:
        raise TesseraError(f"{path}: must be UTF-8 text; byte {error.start} is not.") from None
    except OSError as error:
        raise TesseraError(f"{path}: cannot be read ({error.strerror}).") from None
    ids = tokenizer(text, add_special_tokens=False)["input_ids"][:count]
    if len(ids) < 2:
        raise TesseraError(f"{path}: must hold at least two tokens; got {len(ids)}.")
    longest = context_limit(model.config)
    if longest is not None and len(ids) > longest:
        raise TesseraError(f"inspect: --tokens must be at most {longest}, the model's positions; got {len(ids)}.")
    return torch.tensor([ids])
