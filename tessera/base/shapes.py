"""Shapes in annotations: `Float[Tensor, "B H T K"]`, in jaxtyping's notation, for readers and for the test run.

A type checker sees `Tensor`, and so does Python: annotations cost nothing and need no package. Where jaxtyping was
imported before the library they are jaxtyping's own, and the tests check them at every call (`tests/shape_checks.py`).

Letters as in `tessera.kernels.base`; `...` any dimensions, `*rows` the same ones in one call, `#N` is N or 1.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Annotated as Bool
    from typing import Annotated as Float
    from typing import Annotated as Int
elif "jaxtyping" in sys.modules:
    from jaxtyping import Bool, Float, Int
else:

    class _Unchecked:
        def __class_getitem__(cls, tensor_and_shape: tuple[type, str]) -> Any:
            return tensor_and_shape[0]

    Bool = Float = Int = _Unchecked

__all__ = ["Bool", "Float", "Int"]
