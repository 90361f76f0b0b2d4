"""The implementations of one operation, and how one of them is chosen."""

from collections.abc import Callable
from typing import Any, Protocol

from tessera.base.devices import is_transformed
from tessera.base.errors import TesseraError
from tessera.base.registry import Registry

BY_HAND = ("chunked", "cpu_bfloat16")  # whose derivatives are autograd functions


class Backend(Protocol):
    """An implementation of an operation, a module as a rule. A call is a frozen dataclass of checked arguments.

    One that cannot run every call has a function `unsupported_reason(call)` too: why, or None.
    """

    def run(self, call: Any) -> Any:
        """The operation's result."""


class Backends(Registry[Backend]):
    """The backends of `operation`, in order of preference."""

    def __init__(self, operation: str, **backends: Backend) -> None:
        super().__init__(f"{operation.replace('_', ' ')} backend")
        self.operation = operation
        for name, backend in backends.items():
            self.add(name, backend)

    def choose(
        self, call: Any, forced: str | None = None, is_preferred: Callable[[str, Any], bool] | None = None
    ) -> Backend:
        """The backend called `forced`, or else the first that supports `call`.

        `is_preferred(name, call)` may hold back one that could run the call, but should only when forced. A forced
        backend that does not support the call is a `TesseraError` with its reason.
        """
        if forced is not None:
            reason = self._reason(forced, call)
            if reason is not None:
                raise TesseraError(f"{self.operation}: backend {forced!r} cannot run this call: {reason}")
            return self[forced]
        names = (name for name in self if is_preferred is None or is_preferred(name, call))
        return next(self[name] for name in names if self._reason(name, call) is None)

    def _reason(self, name: str, call: Any) -> str | None:
        if name in BY_HAND and is_transformed():
            return "torch.func takes derivatives of PyTorch's own operations alone, as of those of 'reference'"
        unsupported_reason = getattr(self[name], "unsupported_reason", None)
        return None if unsupported_reason is None else unsupported_reason(call)
