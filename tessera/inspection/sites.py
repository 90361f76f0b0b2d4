"""Where a model's memories are: one name, layer and kind for each part that recalls or adds to the residual stream."""

import inspect
import re
from dataclasses import dataclass

from torch import Tensor, nn
from transformers import PreTrainedModel

from tessera.base.errors import TesseraError
from tessera.kernels import Kernel
from tessera.memories.association import AssociationMemory

LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|memories)\.(\d+)\.")
ATTENTION = re.compile(r"(?:^|\.)(attn|attention|self_attn|self_attention)$")
NETWORK = re.compile(r"(?:^|\.)(mlp|feed_forward|persistent)$")


@dataclass(frozen=True)
class Site:
    """A memory of a model.

    Attributes:
        name: of the module in the model. layer: counted from 0. kind: "contextual", "persistent", "short_term",
            "long_term", "attention", "network" (a feed-forward network) and "association" (the matrix of an ARMT
            layer), which recall nothing that could be listed, ...
        module: itself. recalls: whether it has weights over stored pairs.
    """

    name: str
    layer: int
    kind: str
    module: nn.Module
    recalls: bool = True


def own_residual(module: nn.Module, arguments: tuple) -> Tensor | None:
    """The residual stream to which `module`, called with `arguments`, adds its answer itself (BLOOM's do); or None."""
    return arguments[1] if "residual" in inspect.signature(module.forward).parameters else None


def find_sites(model: PreTrainedModel) -> list[Site]:
    """The memories of `model` in the order in which they run.

    A memory is a module with a `kernel` (those of this library, and of anybody who builds on `kernel_regression`); in
    a transformer its attention; each feed-forward network; and in ARMT each association matrix, which is read before
    its layer runs.
    Raises `TesseraError`: none was recognised.
    """
    sites = [site for name, module in model.named_modules() if (site := _site(name, module)) is not None]
    if not sites:
        raise TesseraError(
            f"inspection: model must have memories or attention in its layers; found none in {type(model).__name__}."
        )
    if any(site.kind == "association" for site in sites):
        sites.sort(key=lambda site: (site.layer, site.kind != "association"))
    return sites


def _site(name: str, module: nn.Module) -> Site | None:
    layer = LAYER.search(name + ".")
    if layer is None:
        return None
    index, last = int(layer[1]), name.rsplit(".", 1)[-1]
    if isinstance(module, AssociationMemory):
        return Site(name, index, "association", module, recalls=False)
    if isinstance(getattr(module, "kernel", None), Kernel):
        return Site(name, index, last, module)
    # GPT-NeoX and BERT keep attention inside attention: the outer module counts.
    if ATTENTION.search(name) and not ATTENTION.search(name.rpartition(".")[0]):
        return Site(name, index, "attention", module)
    if NETWORK.search(name):
        return Site(name, index, "network", module, recalls=False)
    return None
