"""Which model a state belongs to: what it is made of, and one number out of each of its weights.

A state of another model fits where the sizes do, and makes it say something else without a word.
"""

import hashlib
import inspect
import json
import re
import struct
from collections.abc import Sequence
from dataclasses import fields
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import PreTrainedConfig

from tessera.base.devices import is_imagined, is_transformed
from tessera.base.errors import expect
from tessera.models.strict_config import StrictConfig

# Fields that change nothing about what a state means: they may be set between two calls.
_FREE = "use_cache long_term_delay training_long_term_delay initialization initializer_range".split()
_FREE += ["segment_alignment", "backprop_segments", "layers_path"]
_FOREIGN = ["num_hidden_layers", "num_attention_heads", "hidden_act", "activation_function", "rope_theta"]
_FOREIGN += ["attn_implementation", "entmax_alpha", "relumax_margin", "num_neighbours"]  # of kernels as attention alone
_FREE_ENDINGS = ("_dropout", "_token_id", "vocab_size", "tie_word_embeddings", "logit_scale")
LOOKS = 8  # weights that are looked at behind a state: a microsecond each
NEAR = 0.02  # weights in bfloat16 are the same weights


class Fingerprint:
    """The fingerprint of `stack` with its present weights: looked at again only where one is known to have changed.

    PyTorch counts writes into a weight, and another weight in its place is seen; of what is written past both, into
    `weight.data` or an array of NumPy, the middle numbers tell on a CPU: all where a text begins, behind a state some
    eight in turn. A write past PyTorch that one of few weights had, or any on a GPU, may stay unseen for some tokens or
    altogether; so does one of any kind that leaves the middle number of its weight as it was.
    """

    def __init__(self) -> None:
        self.weights: list[Tensor] = []
        self.tables: list[dict[str, Any]] = []  # of each module, filled in place
        self.parts: list[nn.Module | Tensor | None] = []
        self.samples: list[Tensor] = []  # views of the middle numbers that can be read without a wait
        self.seen: list[float] = []
        self.turn = 0
        self.adapted: list[Any] = []
        self.acting: list[list[str]] = []
        self.versions: list[int] | None = None
        self.structure = self.numbers = ""

    def __reduce__(self) -> tuple:
        return Fingerprint, ()  # a copy of the model has weights of its own

    def of(self, stack: Any, begins: bool) -> str | None:
        """Its two parts, joined by a colon; the second empty in training, where weights change between two calls.

        None where nothing can be looked at. `begins`: a text begins. Modules may be exchanged within one, by adapters.
        """
        if torch.compiler.is_compiling() or is_imagined() or is_transformed():
            return None
        acting = [_acting(module) for module in self.adapted]
        is_same = _are(self._parts(), self.parts) and acting == self.acting
        if begins or not self.weights or not is_same:
            tables = ((module._modules, module._parameters) for module in stack.modules())
            self.tables = [table for two in tables for table in two if table]
            self.parts = self._parts()
            weights = [weight for weight in acting_weights(stack).values() if is_readable(weight)]
            if not _are(weights, self.weights):
                self.weights, self.versions = weights, None
            self.adapted = _adapted(stack)
            self.acting = [_acting(module) for module in self.adapted]
            self.structure = _digest(json.dumps(_meaning(stack.config), sort_keys=True, default=str))
        adapters = sorted({name for names in self.acting for name in names})
        rows: list[str] = next((call["adapter_names"] for call in calls_by_row(self.adapted)), [])
        adapters += list(rows) if len({*rows}) > 1 else []
        structure = _digest(f"{self.structure} {adapters}") if adapters else self.structure
        return f"{structure}:{'' if stack.training else self._numbers(begins)}"

    def _parts(self) -> list[nn.Module | Tensor | None]:
        """The modules and weights that stand where those did that were looked at."""
        return list(chain.from_iterable(table.values() for table in self.tables))

    def _numbers(self, begins: bool) -> str:
        versions = [0 if weight.is_inference() else weight._version for weight in self.weights]
        versions += map(Tensor.data_ptr, self.weights)
        if versions != self.versions or self._is_written(begins):
            numbers = middle_numbers(self.weights)
            self.numbers, self.versions = struct.pack(f"{len(numbers)}f", *numbers).hex(), versions
            self.samples = [_middle(weight) for weight in self.weights if weight.device.type == "cpu"]
            self.seen = [sample.item() for sample in self.samples]
        return self.numbers

    def _is_written(self, all_of_them: bool) -> bool:
        """Whether a middle number is another, of all or of every n-th weight, beginning with the next one each time."""
        stride = 1 if all_of_them else max(1, len(self.samples) // LOOKS)
        self.turn = (self.turn + 1) % stride
        pairs = zip(self.samples[self.turn :: stride], self.seen[self.turn :: stride])
        return any((now := sample.item()) != seen and (now == now or seen == seen) for sample, seen in pairs)


def _are(objects: list[Any], others: list[Any]) -> bool:
    return len(objects) == len(others) and all(map(is_, objects, others))


def _middle(weight: Tensor) -> Tensor:
    return weight.detach()[tuple(size // 2 for size in weight.shape)]


def middle_numbers(weights: Sequence[Tensor]) -> list[float]:
    """The number in the middle of each weight, in float32."""
    middle = [_middle(weight).float() for weight in weights]
    per_device: dict[torch.device, list[int]] = {}
    for index, number in enumerate(middle):
        per_device.setdefault(number.device, []).append(index)
    numbers = [0.0] * len(middle)
    for indices in per_device.values():
        values = torch.stack([middle[index] for index in indices]).cpu().tolist()  # one wait for each device
        for index, value in zip(indices, values, strict=True):
            numbers[index] = value
    return numbers


def difference(one: str | None, other: str | None) -> str | None:
    """What tells two fingerprints apart, such as "other weights"; None: nothing that is known."""
    if one is None or other is None or one == other:
        return None
    (structure, numbers), (other_structure, other_numbers) = one.split(":"), other.split(":")
    if structure != other_structure:
        return "another configuration or adapter"
    if not numbers or not other_numbers or numbers == other_numbers:
        return None
    if len(numbers) != len(other_numbers):
        return "other weights"
    count = len(numbers) // 8
    pairs = zip(*(struct.unpack(f"{count}f", bytes.fromhex(text)) for text in (numbers, other_numbers)))
    are_near = all(abs(a - b) <= NEAR * max(abs(a), abs(b)) or a != a or b != b for a, b in pairs)
    return None if are_near else "other weights"


def expect_same_model(where: str, argument: str, of_state: str | None, of_model: str | None) -> None:
    """Raise `TesseraError` where the fingerprint of a state is known to be another than its model's."""
    other_model = difference(of_state, of_model)
    expect(other_model is None, where, argument, "be of this model", f"one of {other_model}", "Read the text again.")


def shared(where: str, models: Sequence[str | None]) -> str | None:
    """The one of these fingerprints that tells most. Raises `TesseraError` where they are not of one model."""
    most = max(models, key=lambda model: len(model or ""))
    other_model = next((what for model in models if (what := difference(most, model))), None)
    expect(other_model is None, where, "states", "be of one model", f"one of {other_model}", "Read the text again.")
    return most


def is_fingerprint(text: str) -> bool:
    """Whether `text` is what `Fingerprint.of` gives."""
    return re.fullmatch("[0-9a-f]{16}:([0-9a-f]{8})*", text) is not None


def acting_weights(model: Any) -> dict[str, Tensor]:
    """The parameters of `model` by name, without those of adapters of PEFT that it leaves out.

    Where it leaves out all, they are those of the model without adapters.
    """
    resting = {
        id(weight)
        for module in _adapted(model)
        for name, weight in module.named_parameters()
        if set(name.split(".")) & (set(module._get_available_adapters()) - set(_acting(module)))
    }
    named = ((name, weight) for name, weight in model.named_parameters() if id(weight) not in resting)
    return {re.sub(r"\.(base_layer|original_module)\b", "", name): weight for name, weight in named}


def _adapted(model: Any) -> list[Any]:
    """The modules that hold adapters of PEFT."""
    return [module for module in model.modules() if hasattr(module, "_get_available_adapters")]


def _acting(adapted: Any) -> list[str]:
    """The names of the adapters that a module holds and does not leave out, for some row at least."""
    held = set() if adapted.disable_adapters else adapted._get_available_adapters()
    by_row = calls_by_row([adapted])
    names = sorted({*by_row[0]["adapter_names"]}) if by_row else adapted.active_adapters
    return [name for name in names if name in held]


def calls_by_row(adapted: Sequence[Any]) -> list[dict[str, Any]]:
    """The arguments that PEFT calls modules with adapters by, while each row of a batch has an adapter of its own.

    They hold `adapter_names`; whoever puts other names there calls the modules by those. Of each module they are those
    of its last hook, which PEFT calls by: a call that raised leaves its own there.
    """
    calls: list[dict[str, Any]] = []
    for module in adapted:
        keywords = [getattr(hook, "keywords", {}) for hook in module._forward_pre_hooks.values()]
        calls += [arguments for arguments in keywords if "adapter_names" in arguments][-1:]
    return calls


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _meaning(config: PreTrainedConfig) -> dict[str, Any]:
    """The fields of `config` that a state depends on."""
    own = [cls for cls in type(config).__mro__ if issubclass(cls, StrictConfig)]
    if own:
        names = {name for cls in own for name in inspect.get_annotations(cls)} - set(_FREE) - set(config.adjustable)
        names &= {field.name for field in fields(config)}  # class variables are no settings
    else:  # of another library: what changes the numbers that the same weights give
        config = config.get_text_config()
        names = {name for name in _FOREIGN if hasattr(config, name)}
    meaning = {"model_type": config.model_type}
    for name in names:
        if not name.endswith(_FREE_ENDINGS):
            value = getattr(config, name, None)
            meaning[name] = _meaning(value) if isinstance(value, PreTrainedConfig) else value
    return meaning


def is_readable(weight: Tensor) -> bool:
    """Whether `middle_numbers` can look at it."""
    return (
        weight.is_floating_point()
        and weight.numel() > 0
        and not (weight.is_meta or is_traceable_wrapper_subclass(weight))
    )
