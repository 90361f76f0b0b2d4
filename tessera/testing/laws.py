"""Laws: how they are found and tried, and how far two correct programs may be apart."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from tessera.base.random_numbers import random_numbers_kept

# The same sums in another order, float64.
REORDERED_FLOAT64 = 1e-10
# The same sums in another order, float32, values of order one.
REORDERED_FLOAT32 = 1e-5
# More steps than a block of any implementation has, in parts with other borders.
LONG = [1, 130, 40, 129]

Laws = Mapping[str, Callable[[Any], None]]


def laws_in(names: Mapping[str, Any], kind: type) -> Laws:
    """By name, in their order: the public functions among a module's `names` whose only argument is a `kind`.

    Not those that try all of them, whose names begin with "check". Each leaves the caller's random numbers alone.
    """

    def is_law(name: str, value: Any) -> bool:
        if not inspect.isfunction(value) or name.startswith(("_", "check")):
            return False
        return [parameter.annotation for parameter in inspect.signature(value).parameters.values()] == [kind]

    return {name: random_numbers_kept()(value) for name, value in names.items() if is_law(name, value)}


def try_laws(laws: Laws, subject: Any) -> None:
    """AssertionError at the first that does not hold, or raises in its trial: its name, what it says, and what came."""
    for name, law in laws.items():
        try:
            law(subject)
        except Exception as error:
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            says = " ".join(str(inspect.getdoc(law)).split("\n\n")[0].split())
            raise AssertionError(f"{name}: {says}\nGot: {kind}{error}") from error
