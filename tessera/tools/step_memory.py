"""Memory of a training step on one device, counted on a step of the recipe's own model with tensors without values.

The model, the optimizer and, where weights are sharded, PyTorch's FSDP run as in training. Their tensors are PyTorch's
fake ones, which have shapes and storages but no numbers, so any machine counts for any other.
"""

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import finalize

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
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
from tessera.training.distributed import batch_shape
from tessera.training.initial_model import enable_checkpointing, freeze_base, require_document_ids
from tessera.training.optimizer import make_optimizer
from tessera.training.sharding import shard

DEVICE = "cpu"  # where fake tensors say that they are; operations go by `imagined`
# What CUDA's autocast computes in float32 and a CPU's does not, by the names of PyTorch's functions.
RAISED = frozenset(
    "acos asin cosh cosine_similarity cumprod cumsum dist exp expm1 group_norm layer_norm log log10 log1p log2 "
    "log_softmax logsumexp norm pow prod reciprocal renorm rsqrt sinh softmax softplus sum tan vector_norm".split()
)
POLLED = 1.005  # gradients are looked at when the most that was alive has grown by so much


@dataclass(frozen=True)
class StepMemory:
    """Bytes on one device.

    Attributes:
        weights, gradients, optimizer: of the parameters, complete (of this device's shard). buffers: what DDP keeps to
            send gradients in.
        activations, gradients_at_peak: when most is alive in the forward and backward pass: what is neither weights,
            gradients, optimizer state nor buffers; and the gradients there are at that time.
        forward_and_backward, optimizer_step: the most that is alive in either part of a step, all of the above
            included.
    """

    weights: int
    gradients: int
    optimizer: int
    buffers: int
    activations: int
    gradients_at_peak: int
    forward_and_backward: int
    optimizer_step: int

    @property
    def peak(self) -> int:
        """The most that is alive."""
        return max(self.forward_and_backward, self.optimizer_step)


def step_memory(recipe: Recipe, devices: int, precision: str, device_type: str = "cuda") -> StepMemory:
    """Memory of a step of `recipe` on the first of `devices` processes, in `precision` ("bf16" or "fp32").

    `device_type` ("cuda" or "cpu") says which implementations run: on GPUs the Triton kernels and PyTorch's fused
    attention. Text is counted as if sequences were one document each.
    Raises `TesseraError` for a recipe that these processes could not train, and a model whose shapes depend on numbers.
    """
    config = untrained_config(recipe)
    section = recipe.training
    micro, accumulation = batch_shape(section, devices)
    is_sharded = section.shard and devices > 1
    with ExitStack() as stack:
        stack.enter_context(_older_objects_passed_over())
        live = LiveBytes()
        mesh = stack.enter_context(_mesh(devices)) if is_sharded else None
        stack.enter_context(imagined(device_type))
        stack.enter_context(_counted_resizes(live))
        stack.enter_context(live)
        stack.enter_context(_rules(device_type))
        try:
            model = _model(recipe, config)
            if mesh is not None:
                shard(model, mesh)
            live.begin()
            weights = live.now
            optimizer = make_optimizer(model, section)
            trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            live.parameters = trained
            for parameter in trained:
                parameter.grad = torch.zeros_like(parameter)
            gradients = live.gradient_bytes()
            for group in optimizer.param_groups:
                group["params"] = [_own_part(parameter) for parameter in group["params"]]
                group["foreach"] = device_type == "cuda" and not is_sharded  # PyTorch's own choice
            live.begin()
            optimizer.step()
            at_step, state = live.peak, live.now - weights - gradients
            if accumulation == 1:
                optimizer.zero_grad()
                model.zero_grad()
            live.begin()
            _forward_and_backward(model, recipe, micro, precision)
        except (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException) as error:
            kind = recipe.model["type"]
            raise TesseraError(
                f"plan: model type {kind} cannot be counted without numbers: {' '.join(str(error).split())[:200]}."
            ) from error
    buffers = gradients if devices > 1 and not is_sharded else 0
    return StepMemory(
        weights=weights,
        gradients=gradients,
        optimizer=state,
        buffers=buffers,
        activations=live.peak - weights - state - live.gradients_at_peak,
        gradients_at_peak=live.gradients_at_peak,
        forward_and_backward=live.peak + buffers,
        optimizer_step=at_step + buffers,
    )


@contextmanager
def _older_objects_passed_over() -> Iterator[None]:
    """Inside, Python's collector looks at new objects alone: a large program has millions that no step made."""
    was_frozen = gc.get_freeze_count() > 0  # by the program: then it stays so
    gc.freeze()
    try:
        yield
    finally:
        if not was_frozen:
            gc.unfreeze()


def _model(recipe: Recipe, config: Any) -> Any:
    model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    freeze_base(model, recipe)
    require_document_ids(model, recipe)
    enable_checkpointing(model, recipe.training)
    return model.train()


def _forward_and_backward(model: nn.Module, recipe: Recipe, micro: int, precision: str) -> None:
    """One of a step's micro-batches."""
    shape = micro, recipe.data.context
    batch = {"input_ids": torch.zeros(shape, dtype=torch.long), "labels": torch.zeros(shape, dtype=torch.long)}
    if recipe.data.document_ids:
        batch["document_ids"] = torch.zeros(shape, dtype=torch.long)
    with autocast(precision, DEVICE):
        loss = model(**batch).loss
    # What `loss.backward()` calls; that itself would switch `_rules` off, and layers may be computed again.
    engine = torch.autograd.Variable._execution_engine
    engine.run_backward((loss,), (torch.ones_like(loss),), False, False, (), True, True)


@contextmanager
def _mesh(devices: int) -> Iterator[DeviceMesh]:
    """So many processes, of which this one is the first and the others are made up."""
    if dist.is_initialized():
        raise TesseraError("plan: training.shard must be planned in a process of its own, not under torchrun.")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=devices)
    try:
        yield init_device_mesh(DEVICE, (devices,))
    finally:
        dist.destroy_process_group()


class LiveBytes(FakeTensorMode):
    """Inside, tensors are fake; counts the bytes of their storages that are alive now, and the most that ever were.

    A number that is read from a tensor is 1.
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.sizes: dict[int, int] = {}  # of the storages that are alive
        self.parameters: list[nn.Parameter] = []
        self.now = 0
        self.begin()

    def begin(self) -> None:
        """Forget the peak so far, and what only waits for Python's collector."""
        gc.collect()
        self.peak, self.polled, self.gradients_at_peak = self.now, 0.0, 0

    def gradient_bytes(self) -> int:
        """Of the gradients that the parameters have."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        with torch.no_grad():
            return sum(_local(gradient).nbytes for gradient in gradients)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            result = super().__torch_dispatch__(function, types, args, kwargs or {})
        except DataDependentOutputException:
            if function is not torch.ops.aten._local_scalar_dense.default:
                raise
            dtype = args[0].dtype
            return True if dtype == torch.bool else 1.0 if dtype.is_floating_point else 1
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, Tensor):
                self.count(tensor.untyped_storage())
        return result

    def count(self, storage: torch.UntypedStorage) -> None:
        """Take note of a storage's size."""
        key, size = storage._cdata, storage.nbytes()
        before = self.sizes.get(key)
        if before == size:
            return
        if before is None:
            finalize(storage, self._forget, key)
        self.sizes[key] = size
        self.now += size - (before or 0)
        if self.now > self.peak:
            self.peak = self.now
            if self.now > POLLED * self.polled:
                self.polled, self.gradients_at_peak = self.now, self.gradient_bytes()

    def _forget(self, key: int) -> None:
        self.now -= self.sizes.pop(key)


@contextmanager
def _counted_resizes(live: LiveBytes) -> Iterator[None]:
    """Inside, `live` hears of storages that change their size: so FSDP takes and gives back the memory of weights."""
    resize = torch.UntypedStorage.resize_

    def counted(storage: torch.UntypedStorage, *size: int) -> Any:
        result = resize(storage, *size)
        live.count(storage)
        return result

    torch.UntypedStorage.resize_ = counted  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]


def _own_part(parameter: nn.Parameter) -> nn.Parameter:
    """What this process holds of a parameter and its gradient, as the optimizer's arithmetic sees them."""
    if not isinstance(parameter, DTensor):
        return parameter
    with torch.no_grad():
        part = nn.Parameter(_local(parameter))
        part.grad = None if parameter.grad is None else _local(parameter.grad)
    return part


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _rules(device_type: str) -> AbstractContextManager[Any]:
    return _RulesOfGPUs() if device_type == "cuda" else nullcontext()


class _RulesOfGPUs(TorchFunctionMode):
    """Where PyTorch itself does something else on a GPU than on a CPU, and it shows in memory."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(function, "__name__", ""), kwargs or {}
        if name == "scaled_dot_product_attention":
            kwargs = {**kwargs, "dropout_p": 0.0}  # a CPU would hold all weights to drop some
        elif name in RAISED and torch.is_autocast_enabled(DEVICE):
            args = tuple(x.float() if isinstance(x, Tensor) and x.dtype == torch.bfloat16 else x for x in args)
        return function(*args, **kwargs)
