"""Give any Hugging Face decoder a memory: `tessera.wrap`."""

from typing import Any

from transformers import PreTrainedModel

from tessera.base.errors import expect
from tessera.models.armt import ARMTForCausalLM
from tessera.models.prmt import PRMTForCausalLM
from tessera.models.rmt import RMTForCausalLM


def wrap(
    model: PreTrainedModel,
    segment_size: int = 512,
    num_memory_tokens: int = 10,
    memory_dim: int = 64,
    **options: object,
) -> ARMTForCausalLM:
    """`model` with layerwise association matrices (ARMT). The layers of `model` are wrapped in place: use the result.

    They stand inside of layers with memory then, so that `model.save_pretrained` no longer writes what
    `from_pretrained` reads: save `model` before, or the result.

    The values' projections start at 0, so that the result starts as `model` itself, read segment by segment.

    Args:
        model: a causal language model. segment_size, num_memory_tokens, memory_dim, options: see `ARMTConfig`.
    Raises:
        TesseraError: an unknown option, or a model that cannot be wrapped (the message says why).

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=32))
    >>> wrap(model, segment_size=16, num_memory_tokens=4, memory_dim=8).config.num_hidden_layers
    2
    """
    return _wrapped(ARMTForCausalLM, model, segment_size, num_memory_tokens, memory_dim=memory_dim, **options)


def wrap_rmt(model: PreTrainedModel, segment_size: int = 512, num_memory_tokens: int = 10, **options) -> RMTForCausalLM:
    """`model` with recurrent memory tokens (RMT); see `wrap`."""
    return _wrapped(RMTForCausalLM, model, segment_size, num_memory_tokens, **options)


def wrap_prmt(
    model: PreTrainedModel, segment_size: int = 512, num_memory_tokens: int = 10, **options
) -> PRMTForCausalLM:
    """`model` with recurrent memory tokens in every layer (PRMT); see `wrap`."""
    return _wrapped(PRMTForCausalLM, model, segment_size, num_memory_tokens, **options)


def _wrapped(
    model_class: type[Any], model: PreTrainedModel, segment_size: int, num_memory_tokens: int, **options: object
):
    expect(isinstance(model, PreTrainedModel), "wrap", "model", "be a Hugging Face model", type(model).__name__)
    config = model_class.config_class(
        base_config=model.config, segment_size=segment_size, num_memory_tokens=num_memory_tokens, **options
    )
    return model_class(config, base=model).train(model.training)
