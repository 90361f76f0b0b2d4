"""Shapes in annotations: `Float[Tensor, "B H T K"]`, in jaxtyping's notation, for readers and for the test run.

A type checker sees `Tensor`; annotations cost nothing and need no package. Where jaxtyping was
imported before the library they are jaxtyping's own, and the tests check them at every call (`tests/shape_checks.py`).

Letters as in `tessera.kernels.base`; `...` any dimensions, `*rows` the same ones in one call, `#N` is N or 1.
"""

import sys
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

from torch import Tensor

if TYPE_CHECKING:
    from typing import Annotated as Bool
    from typing import Annotated as Float
    from typing import Annotated as Int
elif "jaxtyping" in sys.modules:
    from jaxtyping import Bool, Float, Int
else:

    class _Unchecked:
        def __class_getitem__(cls, tensor_and_shape: tuple[type, str]) -> Any:
            tensor, shape = tensor_and_shape
            return Annotated[tensor, cls.__name__, shape]

    class Bool(_Unchecked):
        """Of booleans."""

    class Float(_Unchecked):
        """Of floating-point numbers."""

    class Int(_Unchecked):
        """Of integers."""


# What layers and memories read, and the document of each step: negative for padding; None where there is one alone.
Hidden = Float[Tensor, "B T hidden"]
Documents = Int[Tensor, "B T"] | None


def array_of(hint: Any) -> tuple[str, str] | None:
    """("Float", "Int" or "Bool", the shape) of an annotation of a tensor; None: it is another."""
    if get_origin(hint) is Annotated:
        _, kind, shape = get_args(hint)
        return kind, shape
    kind = getattr(hint, "__name__", "").partition("[")[0]
    return (kind, hint.dim_str) if kind in ("Bool", "Float", "Int") and hasattr(hint, "dim_str") else None


__all__ = ["Bool", "Documents", "Float", "Hidden", "Int", "array_of"]
