"""The model that a run begins with: new weights, those of another run, or a memory around a trained base."""

from typing import TYPE_CHECKING

from tessera.errors import TesseraError
from tessera.models.loading import load_model, load_tokenizer, model_folder
from tessera.models.recurrence import SegmentedForCausalLM
from tessera.training.model_section import base_folder, build_model, config_for
from tessera.training.sections import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


def require_start(recipe: Recipe) -> None:
    """Raise `TesseraError` for a missing folder of weights: before anything is tokenised."""
    if recipe.training.initialize_from:
        model_folder(recipe.training.initialize_from)


def starting_model(
    recipe: Recipe, tokenizer: "PreTrainedTokenizerFast", largest_token: int = -1, context: int | None = None
) -> "PreTrainedModel":
    """The model of the recipe, for sequences of `context` tokens (default: the recipe's).

    Raises:
        TesseraError: a model that cannot be built or loaded, or weights that were trained with other tokens.
    """
    config = config_for(recipe.model, tokenizer, context or recipe.data.context, largest_token)
    start, base = recipe.training.initialize_from, base_folder(recipe.model)
    for key, folder in (("training.initialize_from", start), ("model.base", base)):
        if folder:
            _require_same_tokens(key, folder, tokenizer)
    model = load_model(start, config) if start else build_model(config, recipe.seed, base)
    if recipe.training.freeze_base:
        if not isinstance(model, SegmentedForCausalLM):
            kind = recipe.model["type"]
            raise TesseraError(
                f"training.freeze_base must be false for model type {kind}, which has no base; got true."
            )
        model.base.requires_grad_(False)
    return model


def _require_same_tokens(key: str, start: str, tokenizer: "PreTrainedTokenizerFast") -> None:
    """Weights mean nothing for a tokenizer that gives the same text other ids."""
    if load_tokenizer(start).get_vocab() != tokenizer.get_vocab():
        raise TesseraError(
            f"{key} {start}: its tokenizer must be this recipe's; got other tokens. "
            f"Use tokenizer: {{type: pretrained, path: {start}}}."
        )
