"""Configurations that refuse what they do not know."""

import inspect
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import fields
from typing import Any, ClassVar, Self, get_origin

from transformers import GenerationConfig, PreTrainedConfig

from tessera.base.dataclass_io import broken, describe, fits, is_count, shown
from tessera.base.errors import TesseraError, did_you_mean
from tessera.kernels import kernel_from_config

# What transformers and its companions write into a configuration, or pass with it, beyond its dataclass fields.
_TRANSFORMERS_KEYS = set(
    """
    _attn_implementation_internal _commit_hash _experts_implementation_internal _name_or_path _pre_quantization_dtype
    attn_implementation auto_map cls_token_id custom_pipelines decoder_start_token_id experts_implementation is_decoder
    mask_token_id model_type name_or_path num_labels output_attentions per_layer_config prefix quantization_config
    sep_token_id task_specific_params tie_last_hidden_states tokenizer_class torch_dtype torchscript unk_token_id
    use_return_dict
    """.split()
)

_from_stored: ContextVar[bool] = ContextVar("_from_stored", default=False)  # also for a base's configuration inside


class StrictConfig(PreTrainedConfig):
    """A `PreTrainedConfig` for which an unknown keyword is an error, and which checks itself (`problems`).

    Known are its fields and whatever transformers itself writes into a configuration. What was stored may hold more:
    a note of the user's own (`config.my_note = ...`) survives saving and loading.

    Attributes:
        adjustable: the fields that may change in a model that is built already, see
            `tessera.models.adjusting.adjust_model`.
    """

    adjustable: ClassVar[frozenset[str]] = frozenset()
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]
    # No code of its own: TRL reads it of every model that is not transformers' own.
    auto_map: ClassVar[dict[str, str]] = {}

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Self | tuple[Self, dict[str, Any]]:
        """As transformers' method: the configuration that a file holds, with all that was set on it."""
        token = _from_stored.set(True)
        try:
            return super().from_dict(config_dict, **kwargs)
        finally:
            _from_stored.reset(token)

    def __post_init__(self, **kwargs):
        known = {field.name for field in fields(self)}
        where = type(self).__name__
        # Older versions keep the settings of `generate` in the model's configuration.
        theirs = _TRANSFORMERS_KEYS | GenerationConfig().to_dict().keys()
        for key in sorted(kwargs.keys() - theirs - set(self.attribute_map)):
            if _from_stored.get() and not hasattr(type(self), key):  # what hides a method is no note
                continue
            raise TesseraError(f"{where}: unknown argument {key!r}. {did_you_mean(key, known)}")
        try:
            super().__post_init__(**kwargs)
        except (AttributeError, TypeError, ValueError) as error:  # a setting of transformers' own has another type
            raise TesseraError(f"{where}: a setting must be one that transformers takes; got: {error}.") from None
        self.check()

    def check(self) -> None:
        """Raise `TesseraError`, one line per problem, unless all values are possible."""
        where = type(self).__name__
        mistyped = self._mistyped()
        try:
            problems = self.problems()
        except TypeError:  # a rule compared what cannot be compared
            problems = []
        named = {problem.split(" ", 1)[0] for problem in problems}
        problems += [problem for name, problem in mistyped.items() if name not in named]
        if problems:
            raise TesseraError("\n".join(f"{where}: {problem}" for problem in problems))

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoConfig") -> None:
        """Nothing: see `SavesWithCode.register_for_auto_class`."""

    def _mistyped(self) -> dict[str, str]:
        """Problems by name: fields of this library that are not of their type, numbers that are not finite, and
        ranges and epsilons below 0."""
        problems = {}
        own = [cls for cls in type(self).__mro__ if issubclass(cls, StrictConfig)]
        for name, hint in {name: hint for cls in own for name, hint in inspect.get_annotations(cls).items()}.items():
            value = getattr(self, name, None)
            if get_origin(hint) is ClassVar:
                continue
            if not fits(hint, value):
                problems[name] = f"{name} must be {describe(hint)}; got {shown(value)}."
            elif name.endswith(("_eps", "_range")) and value is not None and value < 0:
                problems[name] = f"{name} must not be negative; got {shown(value)}."
        return problems

    def problems(self) -> list[str]:
        """What is wrong with this configuration, one sentence each: `{argument} must {rule}; got {value}.`"""
        return []

    def broken(self, *rules: tuple[bool, str, str]) -> list[str]:
        """A problem for each rule (whether it holds, argument, requirement) that does not hold."""
        return [" ".join(problem) for problem in broken(self, *rules)]

    def divided_by_heads(self) -> list[str]:
        """A problem where the heads cannot share the width."""
        divides = self.hidden_size % self.num_heads == 0
        return self.broken((divides, "num_heads", f"divide hidden_size ({self.hidden_size})"))

    def kernels(self, *names: str) -> list[str]:
        """A problem for each of these arguments that is no kernel."""
        problems = []
        for name in names:
            try:
                kernel_from_config(getattr(self, name))
            except TesseraError as error:
                problems.append(f"{name}: {error}")
        return problems

    def one_of(self, **choices: Iterable[str]) -> list[str]:
        """A problem for each argument that is not among its choices."""
        rules = (
            (getattr(self, name) in known, name, f"be one of {', '.join(known)}") for name, known in choices.items()
        )
        return self.broken(*rules)

    def positive(self, *names: str) -> list[str]:
        """A problem for each of these arguments that is not a positive integer."""
        return self.broken(*((is_count(getattr(self, name)), name, "be a positive integer") for name in names))

    def probabilities(self, *names: str) -> list[str]:
        """A problem for each of these arguments that does not lie in [0, 1)."""
        values = {name: getattr(self, name) for name in names}
        are_inside = {name: isinstance(value, (int, float)) and 0 <= value < 1 for name, value in values.items()}
        return self.broken(*((holds, name, "lie in [0, 1)") for name, holds in are_inside.items()))
