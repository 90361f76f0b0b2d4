"""What a recipe will need on given devices: memory, arithmetic, time and disk, before anything is bought or started."""

import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from tessera.base.errors import TesseraError
from tessera.base.precision import resolve_precision
from tessera.evaluation.accounting import account, training_flops_per_sequence
from tessera.models.sizes import meta_model
from tessera.recipes.model_section import untrained_config
from tessera.recipes.sections import Recipe, TrainingSection
from tessera.tools.step_memory import StepMemory, step_memory
from tessera.training.distributed import batch_shape
from tessera.training.initial_model import freeze_base
from tessera.training.time_estimate import evaluation_in_steps

# Products of dense matrices in FLOPs per second on one H100 (SXM), by its data sheet: tensor cores in bfloat16, and
# float32 without them, as PyTorch multiplies unless told otherwise.
H100_FLOPS = {"bf16": 989e12, "fp32": 67e12}
DAY = 86400.0


@dataclass(frozen=True)
class Change:
    """Other settings of the recipe (`key=value`), and the most memory that a step then takes (bytes per device)."""

    overrides: tuple[str, ...]
    peak: int
    fits: bool


@dataclass(frozen=True)
class Plan:
    """What `plan` finds. Memory in bytes per device; FLOPs with a multiply-add counted as 2.

    Attributes:
        micro_batch, accumulation: sequences per device and pass, and passes per step.
        flops_per_step: of all devices, forward and backward; what gradient checkpointing computes again is left out.
        tokens_per_second: `utilization * devices * peak_flops / (flops_per_step / tokens_per_step)`.
        days: of all steps and validations at that speed.
        checkpoint_bytes: of one checkpoint: weights and optimizer state. model_bytes: of the finished model.
        fits: whether the peak of memory is below `device_memory`; None where that was not said.
        changes: where it does not fit, settings that take less, each with those before it.
    """

    recipe: str
    model_type: str
    devices: int
    device_type: str
    device_memory: int | None
    precision: str
    parameters: int
    context: int
    batch_size: int
    micro_batch: int
    accumulation: int
    shard: bool
    gradient_checkpointing: bool
    memory: StepMemory
    flops_per_token_forward: int
    flops_per_step: int
    tokens_per_step: int
    peak_flops: float
    utilization: float
    tokens_per_second: float
    steps: int
    days: float
    checkpoint_bytes: int
    keep_checkpoints: int
    model_bytes: int
    fits: bool | None
    changes: tuple[Change, ...]

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values, with the memory's peak."""
        plain = asdict(self)
        plain["memory"]["peak"] = self.memory.peak
        return plain


def plan(
    recipe: Recipe,
    devices: int = 1,
    device_memory: int | None = None,
    *,
    utilization: float = 0.4,
    peak_flops: float | None = None,
    device_type: str = "cuda",
) -> Plan:
    """Count what training by `recipe` takes on `devices` GPUs (or CPU processes) of `device_memory` bytes each.

    `peak_flops` (default: an H100's in the recipe's precision) is a device's FLOPs per second, of which the training
    reaches the share `utilization`. Nothing is allocated; the time is that of running one step without numbers.
    Raises `TesseraError` for a recipe that cannot be trained so, and for one with a curriculum.
    """
    section = recipe.training
    if section.curriculum:
        raise TesseraError(
            f"plan: training.curriculum must be empty; got {len(section.curriculum)} stages. "
            "Stages train on one device, on texts of growing length."
        )
    precision = _precision(section, device_type)
    config, context = untrained_config(recipe), recipe.data.context
    counted = account(config, context)
    micro, accumulation = batch_shape(section, devices)
    tokens_per_step = section.batch_size * context
    flops_per_step = section.batch_size * training_flops_per_sequence(config, context)
    peak_flops = peak_flops or H100_FLOPS[precision]
    steps_per_second = utilization * devices * peak_flops / flops_per_step
    validations = section.steps // section.evaluate_every
    all_steps = section.steps + validations * evaluation_in_steps(section.evaluate_sequences, section.batch_size)
    memory = _step_memory(recipe, devices, precision, device_type)
    fits = None if device_memory is None else memory.peak <= device_memory
    changes: tuple[Change, ...] = ()
    if device_memory is not None and not fits:
        changes = tuple(_changes(recipe, devices, device_memory, precision, device_type))
    model_bytes, optimizer_bytes = _stored_bytes(recipe)
    return Plan(
        recipe=recipe.name,
        model_type=counted.model_type,
        devices=devices,
        device_type=device_type,
        device_memory=device_memory,
        precision=precision,
        parameters=counted.parameters,
        context=context,
        batch_size=section.batch_size,
        micro_batch=micro,
        accumulation=accumulation,
        shard=section.shard and devices > 1,
        gradient_checkpointing=section.gradient_checkpointing,
        memory=memory,
        flops_per_token_forward=counted.flops_per_token,
        flops_per_step=flops_per_step,
        tokens_per_step=tokens_per_step,
        peak_flops=peak_flops,
        utilization=utilization,
        tokens_per_second=steps_per_second * tokens_per_step,
        steps=section.steps,
        days=all_steps / steps_per_second / DAY,
        checkpoint_bytes=model_bytes + optimizer_bytes,
        keep_checkpoints=section.keep_checkpoints,
        model_bytes=model_bytes,
        fits=fits,
        changes=changes,
    )


def _precision(section: TrainingSection, device_type: str) -> str:
    """Of "auto", on a GPU: bfloat16, which all that are sold for training compute in."""
    if section.precision == "auto" and device_type == "cuda":
        return "bf16"
    return resolve_precision(section.precision)


def _step_memory(recipe: Recipe, devices: int, precision: str, device_type: str) -> StepMemory:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tensors without numbers, which concern nobody here
        return step_memory(recipe, devices, precision, device_type)


def _stored_bytes(recipe: Recipe) -> tuple[int, int]:
    """(the model's file, the optimizer's state): shared weights are stored once, and Adam keeps two moments."""
    model = meta_model(untrained_config(recipe))
    freeze_base(model, recipe)
    stored = {id(tensor): tensor.nbytes for tensor in model.state_dict(keep_vars=True).values()}
    moments = 2 * sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    return sum(stored.values()), moments


def _changes(recipe: Recipe, devices: int, device_memory: int, precision: str, device_type: str) -> Iterator[Change]:
    """Settings that take less memory, those first that cost least, each with those before it, until a step fits."""
    overrides: list[str] = []
    for key, value in _savings(recipe, devices):
        recipe = replace(recipe, training=replace(recipe.training, **{key: value}))
        overrides.append(f"training.{key}={str(value).lower()}")
        peak = _step_memory(recipe, devices, precision, device_type).peak
        yield Change(tuple(overrides), peak, peak <= device_memory)
        if peak <= device_memory:
            return


def _savings(recipe: Recipe, devices: int) -> Iterator[tuple[str, Any]]:
    section = recipe.training
    if devices > 1 and not section.shard:
        yield "shard", True
    if batch_shape(section, devices)[0] > 1:
        yield "micro_batch_size", 1
    if section.gradient_checkpointing and section.checkpoint_layers_every > 1:
        yield "checkpoint_layers_every", 1
    if not section.gradient_checkpointing and meta_model(untrained_config(recipe)).supports_gradient_checkpointing:
        yield "gradient_checkpointing", True
