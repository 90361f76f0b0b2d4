"""Settings that change in a built model, such as a threshold from a stage of training on."""

import copy
from collections.abc import Mapping
from typing import Any

from tessera.base.errors import TesseraError, did_you_mean


def adjusted_config(config: Any, values: Mapping[str, Any], where: str = "adjust_model") -> Any:
    """A copy of `config` with other `values`, checked.

    Raises `TesseraError`: a field that a built model of this type cannot change, or an impossible value; one line each.
    """
    known: frozenset[str] = getattr(config, "adjustable", frozenset())
    of_type = f"a built {config.model_type} can change"
    problems = [
        f"{where}: {name} must be a setting that {of_type}; got {value!r}. {did_you_mean(name, known or ['none'])}"
        for name, value in values.items()
        if name not in known
    ]
    if problems:
        raise TesseraError("\n".join(problems))
    if not values:
        return config
    changed = copy.deepcopy(config)
    for name, value in values.items():
        setattr(changed, name, value)
    try:
        changed.check()  # of `StrictConfig`: no others name adjustable fields
    except TesseraError as error:
        lines = (f"{where}: {line.split(': ', 1)[-1]}" for line in str(error).splitlines())
        raise TesseraError("\n".join(lines)) from None
    return changed


def adjust_model(model: Any, values: Mapping[str, Any], where: str = "adjust_model") -> None:
    """Set `values` in `model.config` and let the model follow them from now on; see `adjusted_config`."""
    adjusted_config(model.config, values, where)
    for name, value in values.items():
        setattr(model.config, name, value)
    if values and hasattr(model, "on_adjusted"):
        model.on_adjusted()
