"""Laws tried one after the other."""

from collections.abc import Callable, Mapping
from inspect import getdoc
from typing import Any


def try_laws(laws: Mapping[str, Callable[[Any], None]], subject: Any) -> None:
    """AssertionError at the first that does not hold, or raises in its trial: its name, what it says, and what came."""
    for name, law in laws.items():
        try:
            law(subject)
        except Exception as error:
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            says = " ".join(str(getdoc(law)).split("\n\n")[0].split())
            raise AssertionError(f"{name}: {says}\nGot: {kind}{error}") from error
