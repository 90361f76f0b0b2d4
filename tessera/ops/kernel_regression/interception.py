"""Stand between a memory and its kernel regression: look at the call, or change its result."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from tessera.ops.kernel_regression.call import Call

Run = Callable[[Call], Tensor]
Interceptor = Callable[[Call, Run], Tensor]

# (thread, interceptor), newest last. Empty but for inspection, so that a usual call pays for one look at a list.
_ACTIVE: list[tuple[int, Interceptor]] = []


@contextmanager
def intercepted(interceptor: Interceptor) -> Iterator[None]:
    """While it lasts, every kernel regression of this thread is `interceptor(call, run)` in place of `run(call)`.

    It must return a tensor of the shape of `run(call)`. The newest interceptor is asked first.
    """
    entry = (threading.get_ident(), interceptor)
    _ACTIVE.append(entry)
    try:
        yield
    finally:
        _ACTIVE.remove(entry)


def run_intercepted(call: Call, run: Run) -> Tensor:
    """`run(call)`, or what the interceptors of this thread make of it."""
    thread = threading.get_ident()
    for owner, interceptor in list(_ACTIVE):
        if owner == thread:
            run = _around(interceptor, run)
    return run(call)


def _around(interceptor: Interceptor, run: Run) -> Run:
    return lambda call: interceptor(call, run)


def of_this_thread(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook of a module that does nothing in other threads, whose calls of the module PyTorch hands to it, too."""
    owner = threading.get_ident()

    def called(*call: Any, **keywords: Any) -> Any:
        return hook(*call, **keywords) if threading.get_ident() == owner else None

    return called


def is_active() -> bool:
    """Whether anybody intercepts."""
    return bool(_ACTIVE)
