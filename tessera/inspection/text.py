"""The beginning of a text file in a model's tokens."""

from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tessera.base.errors import TesseraError
from tessera.data.encoding import PIECE, token_stream
from tessera.data.text_files import text_of_file
from tessera.models.transformer import context_limit


def read_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: Path, count: int) -> Tensor:
    """The first `count` tokens (1, T) of the text in `path`, fewer where it ends.

    Raises:
        TesseraError: no such file, not UTF-8, fewer than two tokens, or more than the model has positions for.
    """
    ids = list(islice(token_stream(text_of_file(path, PIECE), tokenizer, str(path)), count))
    if len(ids) < 2:
        raise TesseraError(f"{path}: must hold at least two tokens; got {len(ids)}.")
    longest = context_limit(model.config)
    if longest is not None and len(ids) > longest:
        raise TesseraError(f"inspect: --tokens must be at most {longest}, the model's positions; got {len(ids)}.")
    return torch.tensor([ids])
