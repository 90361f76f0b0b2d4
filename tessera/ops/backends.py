"""The implementations of one operation, and how one of them is chosen."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from tessera.errors import TesseraError
from tessera.registry import Registry


class Backends(Registry[ModuleType]):
    """Modules with `refuse(call) -> str | None` (why it cannot run the call) and `run`, in order of preference."""

    def __init__(self, operation: str) -> None:
        super().__init__(f"{operation.replace('_', ' ')} backend")
        self.operation = operation

    def choose(
        self, call: Any, forced: str | None = None, volunteers: Callable[[str, Any], bool] | None = None
    ) -> ModuleType:
        """The backend called `forced`, or else the first that does not refuse `call`.

        `volunteers(name, call)` may hold back one that could run the call, but should not unasked. A forced backend
        that refuses is a `TesseraError` with its reason.
        """
        if forced is not None:
            reason = self[forced].refuse(call)
            if reason is not None:
                raise TesseraError(f"{self.operation}: backend {forced!r} cannot run this call: {reason}")
            return self[forced]
        willing = (name for name in self if volunteers is None or volunteers(name, call))
        return next(self[name] for name in willing if self[name].refuse(call) is None)
