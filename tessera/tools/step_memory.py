"""Memory of a training step on one device: a step of the recipe's own model on tensors without numbers, any machine's.

Model, optimizer and FSDP run as in training; PyTorch's `MemTracker` counts the storages of its fake tensors.
"""

import gc
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
from tessera.base.errors import TesseraError
from tessera.base.precision import autocast
from tessera.recipes.model_section import untrained_config
from tessera.recipes.sections import Recipe
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
