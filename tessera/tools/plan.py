"""What a recipe will need on given devices: memory, arithmetic, time and disk, before anything is bought or started."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from tessera.base.errors import expect
from tessera.base.precision import resolve_precision
from tessera.evaluation.accounting import account, training_flops_per_sequence
from tessera.models.sizes import meta_model
from tessera.recipes.model_section import untrained_config
from tessera.recipes.sections import Recipe, TrainingSection
from tessera.tools.step_memory import step_memory
from tessera.training.distributed import batch_shape
from tessera.training.initial_model import freeze_base
from tessera.training.time_estimate import evaluation_in_steps

# Products of dense matrices in FLOPs per second on one H100 (SXM), by its data sheet: tensor cores in bfloat16, and
# float32 without them, as PyTorch multiplies unless told otherwise.
H100_FLOPS = {"bf16": 989e12, "fp32": 67e12}
DAY = 86400.0


def plan(
    recipe: Recipe,
    devices: int = 1,
    device_memory: int | None = None,
    *,
    utilization: float = 0.4,
    peak_flops: float | None = None,
    device_type: str = "cuda",
) -> dict[str, Any]:
    """Count what training by `recipe` takes on `devices` GPUs (or CPU processes) of `device_memory` bytes each.

    `peak_flops` (default: an H100's in the recipe's precision) is a device's FLOPs per second, of which the training
    reaches the share `utilization`. Nothing is allocated; the time is that of running one step without numbers.
    What comes back is what `tessera plan --json` prints: memory in bytes per device (see `step_memory`),
    FLOPs with a multiply-add counted as 2, and those of recomputation left out; the days of all steps and validations;
    and where `device_memory` is too small, `changes` of the recipe that take less, each with those before it.
    Raises `TesseraError`: a recipe that cannot be trained so, or one with a curriculum.
    """
    _expect_one_stage(recipe)
    section, context = recipe.training, recipe.data.context
    on_gpu = section.precision == "auto" and device_type == "cuda"
    precision = "bf16" if on_gpu else resolve_precision(section.precision)

    def memory_of(changed: Recipe) -> dict[str, int]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of tensors without numbers, which concern nobody here
            return step_memory(changed, devices, precision, device_type)

    config = untrained_config(recipe)
    counted, memory = account(config, context), memory_of(recipe)
    micro, accumulation = batch_shape(section, devices)
    flops_per_step = section.batch_size * training_flops_per_sequence(config, context)
    peak_flops = peak_flops or H100_FLOPS[precision]
    steps_per_second = utilization * devices * peak_flops / flops_per_step
    model = meta_model(config)
    freeze_base(model, recipe)
    model_bytes, moment_bytes = _stored_bytes(model)
    has_room = None if device_memory is None else memory["peak"] <= device_memory
    changes = []
    if device_memory is not None and not has_room:
        changed = _savings(recipe, devices, micro, model.supports_gradient_checkpointing)
        changes = list(_until_it_fits(changed, memory_of, device_memory))
    return {
        "recipe": recipe.name,
        "model_type": counted.model_type,
        "devices": devices,
        "device_type": device_type,
        "device_memory": device_memory,
        "precision": precision,
        "parameters": counted.parameters,
        "context": context,
        "batch_size": section.batch_size,
        "micro_batch": micro,
        "accumulation": accumulation,
        "shard": section.shard and devices > 1,
        "gradient_checkpointing": section.gradient_checkpointing,
        "memory": memory,
        "flops_per_token_forward": counted.flops_per_token,
        "flops_per_step": flops_per_step,
        "tokens_per_step": section.batch_size * context,
        "peak_flops": peak_flops,
        "utilization": utilization,
        "tokens_per_second": steps_per_second * section.batch_size * context,
        "steps": section.steps,
        "days": _steps_and_validations(section) / steps_per_second / DAY,
        "checkpoint_bytes": model_bytes + moment_bytes,
        "keep_checkpoints": section.keep_checkpoints,
        "model_bytes": model_bytes,
        "fits": has_room,
        "changes": changes,
    }


def _steps_and_validations(section: TrainingSection) -> float:
    """All steps, and those that all validations are worth."""
    validation = evaluation_in_steps(section.evaluate_sequences, section.batch_size)
    return section.steps + section.steps // section.evaluate_every * validation


def _expect_one_stage(recipe: Recipe) -> None:
    stages = recipe.training.curriculum
    if stages:
        context = max(stage.length for stage in stages) * recipe.model.get("segment_size", recipe.data.context)
        advice = f"Plan its longest stage, as a text: data.task=null training.curriculum=[] data.context={context}"
        expect(False, "plan", "training.curriculum", "be empty", f"{len(stages)} stages", advice)


def _stored_bytes(model: nn.Module) -> tuple[int, int]:
    """Of the weights, and of the optimizer's two moments of each that is trained."""
    weights = {id(tensor): tensor.nbytes for tensor in model.state_dict(keep_vars=True).values()}
    return sum(weights.values()), 2 * sum(weight.nbytes for weight in model.parameters() if weight.requires_grad)


def _until_it_fits(
    changed: Iterable[tuple[list[str], Recipe]], memory_of: Callable[[Recipe], dict[str, int]], device_memory: int
) -> Iterator[dict[str, Any]]:
    """What each changed recipe takes at its peak, up to the first that fits."""
    for overrides, recipe in changed:
        peak = memory_of(recipe)["peak"]
        yield {"overrides": overrides, "peak": peak, "fits": peak <= device_memory}
        if peak <= device_memory:
            return


def _savings(recipe: Recipe, devices: int, micro: int, checkpoints: bool) -> Iterator[tuple[list[str], Recipe]]:
    """Settings that take less memory, those first that cost least, each with those before it; and their recipe."""
    section = recipe.training
    settings: dict[str, tuple[Any, bool]] = {
        "shard": (True, devices > 1 and not section.shard),
        "micro_batch_size": (1, micro > 1),
        "checkpoint_layers_every": (1, section.gradient_checkpointing and section.checkpoint_layers_every > 1),
        "gradient_checkpointing": (True, checkpoints and not section.gradient_checkpointing),
    }
    overrides: list[str] = []
    changes: dict[str, Any]
    for key, (value, is_saving) in settings.items():
        if is_saving:
            changes = {key: value}
            recipe = replace(recipe, training=replace(recipe.training, **changes))
            overrides = [*overrides, f"training.{key}={str(value).lower()}"]
            yield overrides, recipe
