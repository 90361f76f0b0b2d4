"""Configurations that refuse what they do not know."""

from dataclasses import fields

from transformers import PreTrainedConfig

from tessera.errors import TesseraError, did_you_mean

# Keys that transformers itself writes into or passes with a configuration, beyond its dataclass fields.
_TRANSFORMERS_KEYS = {
    "_attn_implementation_internal",
    "_commit_hash",
    "_experts_implementation_internal",
    "_name_or_path",
    "attn_implementation",
    "auto_map",
    "experts_implementation",
    "model_type",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "quantization_config",
    "torch_dtype",
    "use_return_dict",
}


class StrictConfig(PreTrainedConfig):
    """A `PreTrainedConfig` for which an unknown keyword is an error, and which checks itself (`problems`)."""

    def __post_init__(self, **kwargs):
        known = {field.name for field in fields(self)}
        where = type(self).__name__
        for key in kwargs.keys() - _TRANSFORMERS_KEYS - set(self.attribute_map):
            raise TesseraError(f"{where}: unknown argument {key!r}. {did_you_mean(key, known)}")
        super().__post_init__(**kwargs)
        problems = self.problems()
        if problems:
            raise TesseraError("\n".join(f"{where}: {problem}" for problem in problems))

    def problems(self) -> list[str]:
        """What is wrong with this configuration, one sentence each: `{argument} must {rule}; got {value}.`"""
        return []

    def positive(self, *names: str) -> list[str]:
        """A problem for each of these arguments that is not a positive integer."""
        return [
            f"{name} must be a positive integer; got {getattr(self, name)!r}."
            for name in names
            if not isinstance(getattr(self, name), int)
            or isinstance(getattr(self, name), bool)
            or getattr(self, name) < 1
        ]

    def probabilities(self, *names: str) -> list[str]:
        """A problem for each of these arguments that does not lie in [0, 1)."""
        return [
            f"{name} must lie in [0, 1); got {getattr(self, name)!r}."
            for name in names
            if not isinstance(getattr(self, name), (int, float)) or not 0 <= getattr(self, name) < 1
        ]
