"""The model that a run begins with: new weights, those of another run, or a memory around a trained base."""

import inspect

from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.modeling_layers import GradientCheckpointingLayer

from tessera.base.errors import TesseraError, expect
from tessera.models.adjusting import adjusted_config
from tessera.models.causality import expect_causal, expect_next_token
from tessera.models.recurrence import SegmentedForCausalLM
from tessera.models.saving.loading import load_model, load_tokenizer
from tessera.models.sizes import meta_model
from tessera.recipes.model_section import base_folder, build_model, config_for
from tessera.recipes.sections import Recipe, TrainingSection
from tessera.training.optimizer import mark, marked, parameter_groups


def starting_model(
    recipe: Recipe, tokenizer: PreTrainedTokenizerFast, largest_token: int = -1, context: int | None = None
) -> PreTrainedModel:
    """The model of the recipe, for sequences of `context` tokens (default: the recipe's).

    Raises `TesseraError`: a model that cannot be built or loaded, weights that were trained with other tokens, what
    `follow_recipe` refuses, or a stage that changes what a built model cannot.
    """
    config = config_for(recipe.model, tokenizer, context or recipe.data.context, largest_token)
    start, base = recipe.training.initialize_from, base_folder(recipe.model)
    for key, folder in (("training.initialize_from", start), ("model.base", base)):
        is_own = not folder or load_tokenizer(folder).get_vocab() == tokenizer.get_vocab()  # weights are of these ids
        advice = f"Use tokenizer: {{type: pretrained, path: {folder}}}."
        expect(is_own, f"{key} {folder}", "its tokenizer", "be this recipe's", "other tokens", advice)
    model = load_model(start, config) if start else build_model(config, recipe.seed, base)
    if start or base:
        mark(model, marked(meta_model(config)))  # loaded parameters are new objects
    expect_causal(model, f"model.type {recipe.model['type']}")
    expect_next_token(model, f"model.type {recipe.model['type']}", trains=True)
    follow_recipe(model, recipe)
    for number, stage in enumerate(recipe.training.curriculum):
        config = adjusted_config(config, stage.model, f"training.curriculum[{number}].model")
    return model


def follow_recipe(model: PreTrainedModel, recipe: Recipe) -> None:
    """Where the recipe says so, leave the base of ARMT, RMT and PRMT as it is.

    Raises `TesseraError`: a model that has no base, computes no layers again or takes no document_ids, if it is to; a
    learning rate for a scalar that it does not have.
    """
    section, arguments = recipe.training, inspect.signature(model.forward).parameters
    for key, is_asked, is_possible in (
        ("training.freeze_base", section.freeze_base, isinstance(model, SegmentedForCausalLM)),
        ("training.gradient_checkpointing", section.gradient_checkpointing, model.supports_gradient_checkpointing),
        ("data.document_ids", recipe.data.document_ids, "document_ids" in arguments),
    ):
        if is_asked and not is_possible:
            raise TesseraError(f"{key} must be false for model type {recipe.model['type']}; got true.")
    if section.freeze_base:
        model.base.requires_grad_(False)
    parameter_groups(model, section)


def enable_checkpointing(model: PreTrainedModel, section: TrainingSection) -> None:
    """Have the layers' activations computed again in the backward pass, where and as often as the recipe says."""
    if section.gradient_checkpointing:
        # transformers 5.2x renames the method and warns about the older name
        (getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable)()
        layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
        for index, layer in enumerate(layers):
            layer.gradient_checkpointing = index % section.checkpoint_layers_every == 0
