"""What a recipe will need on given devices: memory, arithmetic and time, before anything is bought or started.

Memory is that of a step of the recipe's own model on tensors without numbers, on any machine: model, optimizer and FSDP
run as in training, and PyTorch's `MemTracker` counts the storages of its fake tensors.
"""

import gc
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
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
from tessera.recipes.model_section import segment_tokens, untrained_config
from tessera.recipes.sections import OF_TASK, DataSection, Recipe
from tessera.training.distributed import batch_shape, shard
from tessera.training.initial_model import enable_checkpointing, follow_recipe
from tessera.training.optimizer import make_optimizer

DEVICE = torch.device("cpu")  # where fake tensors say that they are; operations go by `imagined`
# What CUDA's autocast computes in float32 and a CPU's does not, by the names of PyTorch's functions.
RAISED = frozenset(
    "acos asin cosh cosine_similarity cumprod cumsum dist exp expm1 group_norm layer_norm log log10 log1p log2 "
    "log_softmax logsumexp norm pow prod reciprocal renorm rsqrt sinh softmax softplus sum tan vector_norm".split()
)
READ = {"item": 1, "__int__": 1, "__index__": 1, "__bool__": True, "__float__": 1.0}  # numbers of tensors


class _Tracker(MemTracker):
    """PyTorch's, without the peak of each module: after every operation it would look at all modules."""

    def _update_peak_stats(self, peak_state: Any) -> None:
        modules, self.memory_tracking = self.memory_tracking, type(self.memory_tracking)()
        super()._update_peak_stats(peak_state)
        self.memory_tracking = modules


def step_memory(recipe: Recipe, devices: int, precision: str, device_type: str = "cuda") -> dict[str, int]:
    """Bytes of a step of `recipe` on the first of `devices` processes, in `precision` ("bf16" or "fp32").

    `device_type` ("cuda" or "cpu") says whose implementations run. Texts are counted as one document each.

    Returns:
        weights, optimizer: complete (of this device's shard). buffers: what DDP sends gradients in. gradients,
        activations: what there is of the former, and of everything else, when most is alive; peak: the sum of all five.
    Raises:
        TesseraError: a recipe that these processes could not train, or a model whose shapes depend on numbers.
    """
    micro, accumulation = batch_shape(recipe.training, devices)
    is_sharded, is_gpu = recipe.training.shard and devices > 1, device_type == "cuda"
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with _mesh(devices) if is_sharded else nullcontext() as mesh, imagined(device_type), fake, _Rules(is_gpu):
        tracker = _Tracker()
        try:
            with tracker:
                model = AutoModelForCausalLM.from_config(untrained_config(recipe), trust_remote_code=False).train()
                follow_recipe(model, recipe)
                enable_checkpointing(model, recipe.training)
                if mesh is not None:
                    shard(model, mesh)
                optimizer = make_optimizer(model, recipe.training)
                for group in optimizer.param_groups:
                    group["foreach"] = is_gpu and not is_sharded  # PyTorch's own choice
                    for parameter in group["params"]:
                        parameter.grad = torch.zeros_like(parameter)
                optimizer.step()  # makes its state
            trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            buffers = _bytes(parameter.grad for parameter in trained) if devices > 1 and not is_sharded else 0
            if accumulation == 1:
                optimizer.zero_grad()
                model.zero_grad()
            gc.collect()  # what only waits for Python's collector
            with tracker:
                _forward_and_backward(model, recipe, micro, precision)
                optimizer.step()
        except (DynamicOutputShapeException, UnsupportedOperatorException) as error:
            reason = " ".join(str(error).split())[:200]
            kind = recipe.model["type"]
            raise TesseraError(f"plan: model type {kind} cannot be counted without numbers: {reason}.") from error
    most = {getattr(kind, "value", kind): n for kind, n in tracker.get_tracker_snapshot("peak")[DEVICE].items()}
    memory = {
        "weights": _bytes([*model.parameters(), *model.buffers()]),
        "gradients": most["Gradient"],
        "optimizer": _bytes(value for values in optimizer.state.values() for value in values.values()),
    }
    activations, peak = most["Total"] - sum(memory.values()), most["Total"] + buffers
    return {**memory, "buffers": buffers, "activations": activations, "peak": peak}


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
UNITS = {"GB": 1e9, "MB": 1e6, "kB": 1e3}


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
    What comes back is what `tessera plan --json` prints: memory in bytes per device (see `step_memory`), those that
    are missing, settings that need less; FLOPs with a multiply-add counted as 2, without recomputation; the days of all
    steps and validations.
    Raises `TesseraError`: a recipe that cannot be trained so, or one with a curriculum.
    """
    section, context = recipe.training, recipe.data.context
    if stages := section.curriculum:
        longest = max(stage.length for stage in stages) * segment_tokens(recipe)
        advice = f"Plan its longest stage, as a text: data.task=null training.curriculum=[] data.context={longest}"
        of_task = {key: getattr(DataSection(), key) for key in OF_TASK.split()}
        for key, default in of_task.items():
            advice += f" data.{key}={default}" * (getattr(recipe.data, key) != default)
        base = recipe.model.get("base")
        if recipe.data.task is not None and not isinstance(base, str):  # its words are not the tokens of a text
            advice += f" model.{'base.' * (base is not None)}vocab_size={untrained_config(recipe).vocab_size}"
        expect(False, "plan", "training.curriculum", "be empty", f"{len(stages)} stages", advice)
    on_gpu = section.precision == "auto" and device_type == "cuda"
    precision = "bf16" if on_gpu else resolve_precision(section.precision)
    config = untrained_config(recipe)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tensors without numbers, which concern nobody here
        counted, memory = account(config, context), step_memory(recipe, devices, precision, device_type)
    micro, accumulation = batch_shape(section, devices)
    flops_per_step = section.batch_size * training_flops_per_sequence(config, context)
    peak_flops = peak_flops or H100_FLOPS[precision]
    steps_per_second = utilization * devices * peak_flops / flops_per_step
    steps = section.steps + section.steps // section.evaluate_every * section.validation_in_steps
    untaken = {
        "shard=true": devices > 1 and not section.shard,
        "micro_batch_size=1": micro > 1,
        "gradient_checkpointing=true": not section.gradient_checkpointing,
    }
    return {
        "recipe": recipe.name,
        "parameters": counted.parameters,
        "devices": devices,
        "precision": precision,
        "at_once": f"{micro} x {context:,} tokens, {accumulation} passes per step",
        "memory": memory,
        "missing_memory": None if device_memory is None else max(0, memory["peak"] - device_memory),
        "needs_less": [f"training.{setting}" for setting, is_one in untaken.items() if is_one],
        "flops_per_step": flops_per_step,
        "tokens_per_step": section.batch_size * context,
        "tokens_per_second": steps_per_second * section.batch_size * context,
        "days": steps / steps_per_second / DAY,
    }


def shown_size(size: float) -> str:
    """Bytes in the largest unit, up to GB, that shows something of them.

    >>> [shown_size(size) for size in (34.27e9, 5e6, 400, 0)]
    ['34.27 GB', '5.00 MB', '0.40 kB', '0.00 GB']
    """
    unit, power = next((known for known in UNITS.items() if size >= known[1] / 100), ("GB", 1e9))
    return f"{size / power:,.2f} {unit}"


def lines(planned: dict[str, Any]) -> Iterator[str]:
    """What `tessera plan` prints of a plan."""
    yield f"{planned['recipe']}: {planned['parameters']:,} parameters; devices: {planned['devices']:,}"
    for name, size in planned["memory"].items():
        yield f"{name:<18}{shown_size(size):>15}"
    missing = planned["missing_memory"]
    if missing is not None:
        less = planned["needs_less"]
        hint = f"; {', '.join(less)} {'need' if less[1:] else 'needs'} less" if less else ""
        yield f"does not fit: {shown_size(missing)} are missing{hint}" if missing else "fits"
    yield f"at once           {planned['at_once']}, {planned['precision']}, nothing compiled"
    for name in ("flops_per_step", "tokens_per_step", "tokens_per_second", "days"):
        yield f"{name.replace('_', ' '):<18}{planned[name]:12.4g}"
    yield "not counted in memory: the driver's own (about 1 GB on a GPU), fragmentation, and validation"
