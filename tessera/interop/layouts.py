"""Which published code a checkpoint comes from, as far as its parameter names tell."""

from collections.abc import Callable, Iterable

from torch import Tensor
from transformers import PreTrainedModel

from tessera.base.errors import TesseraError
from tessera.base.registry import Registry

# Published checkpoint formats that the library can rebuild.
REFERENCES: Registry[Callable[[dict[str, Tensor], dict], PreTrainedModel]] = Registry("reference source")

# What some parameter's name ends with, and the sources whose checkpoints have it.
LAYOUTS = {
    ".leaky_average.linear.weight": ("memory-mosaics-eft", "sparse-kernel-regression-eft"),
    ".k_featurizer.conv.weight": ("memory-mosaics", "sparse-kernel-regression"),
    "mosaic.wte.weight": ("nano-mosaics",),
    ".W_mq.weight": ("armt",),
}


def sources_of(names: Iterable[str]) -> tuple[str, ...]:
    """The sources whose checkpoints have such parameter names; empty: none that names tell apart."""
    names = tuple(names)
    for ending, sources in LAYOUTS.items():
        if any(name.endswith(ending) for name in names):
            return sources
    return ()


def check_layout(source: str, names: Iterable[str]) -> None:
    """Raise `TesseraError` if the parameter names are those of other sources than `source`."""
    sources = sources_of(names)
    if sources and source not in sources:
        raise TesseraError(f"{source}: the parameter names are those of {_choice(sources)}.")


def recognised_source(names: Iterable[str], arguments: dict | None) -> str:
    """The one source that parameter names and constructor's arguments tell; an error that names the choice if several.

    Of the sources that share their names, those of the sparse-kernel code have the argument `method`.
    """
    sources = sources_of(names)
    if not sources:
        raise TesseraError("the parameter names are those of no published code known here. Name the source.")
    if len(sources) > 1 and arguments is not None:
        sources = tuple(name for name in sources if name.startswith("sparse") == ("method" in arguments))
    if len(sources) > 1:
        raise TesseraError(f"the parameter names are those of {_choice(sources)}. Name the source.")
    return sources[0]


def _choice(sources: tuple[str, ...]) -> str:
    if len(sources) == 1:
        return repr(sources[0])
    plain, sparse = sources
    return f"{plain!r} and of {sparse!r} (whose constructor has a `method`)"
