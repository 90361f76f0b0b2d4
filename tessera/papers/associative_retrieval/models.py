"""The models that are compared, all of about as many parameters."""

from dataclasses import asdict, replace

from torch import nn

from tessera.models.small_models import ModelSize, build_small_model

SEGMENTED = ("armt", "armt_no_correction", "rmt", "prmt")
MODELS = (*SEGMENTED, "mamba", "mosaic")


def build(name: str, size: ModelSize, seed: int) -> nn.Module:
    """The model called `name`, initialised from `seed`; `size` is that of the segmented models.

    Those that read the whole text have half the layers, of 9/8 the width: Mamba then has the paper's 4 blocks. A Mamba
    whose state size is given has the published sizes instead. The mosaic stores every pair that it reads, the upper
    bound of any memory of fixed size.
    """
    is_published = name == "mamba" and size.mamba_state_size is not None
    if name not in SEGMENTED and not is_published:
        width = round(size.hidden_size * 9 / 8 / size.num_heads) * size.num_heads
        size = replace(size, hidden_size=width, num_layers=max(1, size.num_layers // 2))
    return build_small_model(name, seed, **asdict(size))
