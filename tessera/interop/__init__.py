"""Published checkpoints as models of this library."""

from torch import Tensor
from transformers import PreTrainedModel

from tessera.base.arguments import explains_mistakes
from tessera.base.errors import TesseraError, first_line
from tessera.interop import armt, memory_mosaics, nano_mosaics  # noqa: F401 (they register themselves)
from tessera.interop.published import REFERENCES, check_layout, recognised_source


@explains_mistakes
def from_reference(source: str, state_dict: dict[str, Tensor], arguments: dict) -> PreTrainedModel:
    """Rebuild a checkpoint of published code as one of our models, in eval mode.

    Args:
        source: which published code: a name of `REFERENCES`.
        state_dict: the published module's own parameter names and tensors.
        arguments: the published constructor's arguments by name; those left out take the published defaults. Of the
            Memory Mosaics sources also a training script's `model_args`: what the constructor does not take is ignored.
    Returns:
        A model that takes `input_ids` (B, T) and returns `.logits`. Parameters keep the dtype of the checkpoint, except
        for a few per-head scalars that are functions of published ones and come in float64: `model.double()` is exact.
    Raises:
        TesseraError: an unknown source or argument, a missing, misshapen or unexpected tensor, or a published model
            that cannot be expressed (the message says why).
    """
    build = REFERENCES[source]
    check_layout(source, state_dict)
    try:
        return build(dict(state_dict), dict(arguments))
    except TesseraError:
        raise
    except Exception as error:  # whatever tensors of another shape and arguments of another kind bring up
        raise TesseraError(
            f"{source}: the tensors do not have the shapes, or the arguments not the values, of a published model "
            f"({type(error).__name__}: {first_line(error)[:200]})."
        ) from error


__all__ = ["REFERENCES", "from_reference", "recognised_source"]
