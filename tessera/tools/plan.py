"""What a recipe will need on given devices: memory, arithmetic, time and disk, before anything is bought or started.

Memory is that of a step of the recipe's own model on tensors without numbers, on any machine: model, optimizer and FSDP
run as in training, and PyTorch's `MemTracker` counts the storages of its fake tensors.
"""

import gc
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode, UnsupportedOperatorException
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM

from tessera.base.devices import imagined
from tessera.base.errors import TesseraError, expect
from tessera.base.precision import autocast, resolve_precision
from tessera.evaluation.accounting import account, training_flops_per_sequence
from tessera.models.sizes import meta_model
from tessera.recipes.model_section import untrained_config
from tessera.recipes.sections import Recipe, TrainingSection
from tessera.training.distributed import batch_shape, shard
from tessera.training.initial_model import enable_checkpointing, freeze_base, require_document_ids
from tessera.training.optimizer import make_optimizer

DEVICE = torch.device("cpu")  # where fake tensors say that they are; operations go by `imagined`
# What CUDA's autocast computes in float32 and a CPU's does not, by the names of PyTorch's functions.
RAISED = frozenset(
    "acos asin cosh cosine_similarity cumprod cumsum dist exp expm1 group_norm layer_norm log log10 log1p log2 "
    "log_softmax logsumexp norm pow prod reciprocal renorm rsqrt sinh softmax softplus sum tan vector_norm".split()
)
READ = {"item": 1, "__int__": 1, "__index__": 1, "__bool__": True, "__float__": 1.0}  # numbers of tensors


def step_memory(recipe: Recipe, devices: int, precision: str, device_type: str = "cuda") -> dict[str, int]:
    """Bytes of a step of `recipe` on the first of `devices` processes, in `precision` ("bf16" or "fp32").

    `device_type` ("cuda" or "cpu") says whose implementations run. Texts are counted as one document each.

    Returns:
        weights, gradients, optimizer: complete (of this device's shard). buffers: what DDP sends gradients in.
        activations, gradients_at_peak: when most is alive in the forward and backward pass: what is neither of the
            above; and the gradients there are at that time.
        forward_and_backward, optimizer_step, peak: the most that is alive in either part of a step, and in both.
    Raises:
        TesseraError: a recipe that these processes could not train, or a model whose shapes depend on numbers.
    """
    micro, accumulation = batch_shape(recipe.training, devices)
    is_sharded, is_gpu = recipe.training.shard and devices > 1, device_type == "cuda"
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with _mesh(devices) if is_sharded else nullcontext() as mesh, imagined(device_type), fake, _Rules(is_gpu):
        tracker = MemTracker()
        try:
            with tracker:
                model = _model(recipe)
                if mesh is not None:
                    shard(model, mesh)
                optimizer = make_optimizer(model, recipe.training)
                for group in optimizer.param_groups:
                    group["foreach"] = is_gpu and not is_sharded  # PyTorch's own choice
                    for parameter in group["params"]:
                        parameter.grad = torch.zeros_like(parameter)
                optimizer.step()  # makes its state
            trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            weights = _bytes([*model.parameters(), *model.buffers()])
            gradients = _bytes(parameter.grad for parameter in trained)
            state = _bytes(value for values in optimizer.state.values() for value in values.values())
            at_step = _peak(tracker, optimizer.step)["Total"]
            if accumulation == 1:
                optimizer.zero_grad()
                model.zero_grad()
            most = _peak(tracker, lambda: _forward_and_backward(model, recipe, micro, precision))
        except (DynamicOutputShapeException, UnsupportedOperatorException) as error:
            reason = " ".join(str(error).split())[:200]
            kind = recipe.model["type"]
            raise TesseraError(f"plan: model type {kind} cannot be counted without numbers: {reason}.") from error
    buffers = gradients if devices > 1 and not is_sharded else 0
    passes, step = most["Total"] + buffers, at_step + buffers
    return {
        "weights": weights,
        "gradients": gradients,
        "optimizer": state,
        "buffers": buffers,
        "activations": most["Total"] - weights - state - most["Gradient"],
        "gradients_at_peak": most["Gradient"],
        "forward_and_backward": passes,
        "optimizer_step": step,
        "peak": max(passes, step),
    }


def _peak(tracker: MemTracker, action: Any) -> dict[str, int]:
    """The bytes that were alive when most was, while `action()` ran: by the tracker's kinds, and in total."""
    gc.collect()  # what only waits for Python's collector
    with tracker:
        action()
    return {getattr(kind, "value", kind): size for kind, size in tracker.get_tracker_snapshot("peak")[DEVICE].items()}


def _model(recipe: Recipe) -> Any:
    model = AutoModelForCausalLM.from_config(untrained_config(recipe), trust_remote_code=False)
    freeze_base(model, recipe)
    require_document_ids(model, recipe)
    enable_checkpointing(model, recipe.training)
    return model.train()


def _forward_and_backward(model: Any, recipe: Recipe, micro: int, precision: str) -> None:
    """One of a step's micro-batches."""
    names = ["input_ids", "labels", *["document_ids"] * recipe.data.document_ids]
    batch = {name: torch.zeros(micro, recipe.data.context, dtype=torch.long) for name in names}
    with autocast(precision, DEVICE.type):
        loss = model(**batch).loss
    # What `loss.backward()` calls; that itself would switch `_Rules` off, and layers may be computed again.
    engine = torch.autograd.Variable._execution_engine
    engine.run_backward((loss,), (torch.ones_like(loss),), False, False, (), True, True)


def _bytes(tensors: Iterable[Tensor]) -> int:
    with torch.no_grad():
        return sum((tensor.to_local() if isinstance(tensor, DTensor) else tensor).nbytes for tensor in tensors)


@contextmanager
def _mesh(devices: int) -> Iterator[DeviceMesh]:
    """So many processes, of which this one is the first and the others are made up."""
    if dist.is_initialized():
        raise TesseraError("plan: training.shard must be planned in a process of its own, not under torchrun.")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=devices)
    try:
        yield init_device_mesh(DEVICE.type, (devices,))
    finally:
        dist.destroy_process_group()


class _Rules(TorchFunctionMode):
    """Numbers that are read from tensors, and what PyTorch does on a GPU otherwise than on a CPU."""

    def __init__(self, is_gpu: bool) -> None:
        super().__init__()
        self.is_gpu = is_gpu

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(function, "__name__", ""), kwargs or {}
        if name in READ:
            return READ[name]
        if self.is_gpu and name == "scaled_dot_product_attention":
            kwargs = {**kwargs, "dropout_p": 0.0}  # a CPU would hold all weights to drop some
        elif self.is_gpu and name in RAISED and torch.is_autocast_enabled(DEVICE.type):
            args = tuple(x.float() if isinstance(x, Tensor) and x.dtype == torch.bfloat16 else x for x in args)
        return function(*args, **kwargs)


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
    return section.steps + section.steps // section.evaluate_every * section.validation_in_steps


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
