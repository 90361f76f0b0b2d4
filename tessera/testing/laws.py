"""Laws: how they are found and tried, and how far two correct programs may be apart."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

import torch

# The same sums in another order, float64.
REORDERED_FLOAT64 = 1e-10
# The same sums in another order, float32, values of order one.
REORDERED_FLOAT32 = 1e-5
# More steps than a block of any implementation has, in parts with other borders.
LONG = [1, 130, 40, 129]

Laws = Mapping[str, Callable[[Any], None]]
Function = TypeVar("Function", bound=Callable)


def leaves_random_numbers(function: Function) -> Function:
    """Decorate a function that seeds or draws: the caller's random numbers go on as if it had not been called."""

    @wraps(function)
    def apart(*arguments: Any, **options: Any) -> Any:
        is_used = torch.cuda.is_available() and torch.cuda.is_initialized()
        with torch.random.fork_rng(range(torch.cuda.device_count()) if is_used else ()):
            return function(*arguments, **options)

    return apart  # type: ignore[return-value]


def laws_in(names: Mapping[str, Any], kind: type) -> Laws:
    """By name, in their order: the public functions among a module's `names` whose only argument is a `kind`.

    Not those that try all of them, whose names begin with "check". Each leaves the caller's random numbers alone.
    """

    def is_law(name: str, value: Any) -> bool:
        if not inspect.isfunction(value) or name.startswith(("_", "check")):
            return False
        return [parameter.annotation for parameter in inspect.signature(value).parameters.values()] == [kind]

    return {name: leaves_random_numbers(value) for name, value in names.items() if is_law(name, value)}


def try_laws(laws: Laws, subject: Any) -> None:
    """AssertionError at the first that does not hold, or raises in its trial: its name, what it says, and what came."""
    for name, law in laws.items():
        try:
            law(subject)
        except Exception as error:
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            says = " ".join(str(inspect.getdoc(law)).split("\n\n")[0].split())
            raise AssertionError(f"{name}: {says}\nGot: {kind}{error}") from error
