"""Registration with the Auto classes of transformers."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from tessera.models.memory_mosaic import MemoryMosaicConfig, MemoryMosaicForCausalLM, MemoryMosaicModel

MODELS = [(MemoryMosaicConfig, MemoryMosaicModel, MemoryMosaicForCausalLM)]


def register() -> None:
    """Make every model of the library known to `AutoConfig`, `AutoModel` and `AutoModelForCausalLM`."""
    for config, base, causal in MODELS:
        AutoConfig.register(config.model_type, config, exist_ok=True)
        if base is not None:
            AutoModel.register(config, base, exist_ok=True)
        AutoModelForCausalLM.register(config, causal, exist_ok=True)
