"""What a compiled training step moves on a Hopper GPU, by its compiler's own count, where there is none.

    python -m benchmarks.compiled_traffic           # v1 and GPT-2, v2 and Llama, 512 and 4,096 tokens

Needs a build of PyTorch for CUDA (written for 2.11; it uses the compiler's insides) and Triton, but no GPU. A step of
32,768 tokens is traced without data, by the way that a GPU would take; Inductor lowers its graphs for a GPU and counts
the bytes of every kernel it would launch. No machine code is made and nothing runs.
"""

import copy
import sys
from contextlib import contextmanager
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor import metrics
from torch._inductor.compile_fx import _recursive_post_grad_passes, view_to_reshape
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses import fake_tensor
from torch.func import functional_call
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from triton.runtime.driver import driver

from benchmarks.gpu_stages.models import pair
from benchmarks.gpu_stages.settings import Settings
from benchmarks.hopper_driver import HopperDriver
from benchmarks.pretend_attention import scaled_dot_product_attention
from benchmarks.traffic import TOKENS
from tessera.models.small_models import untrained_model
from tessera.ops import kernel_regression

HOPPER = {
    "name": "Hopper", "major": 9, "minor": 0, "multi_processor_count": 132, "warp_size": 32, "L2_cache_size": 50 << 20,
    "total_memory": 80 << 30, "regs_per_multiprocessor": 65_536, "max_threads_per_multi_processor": 2048,
    "max_threads_per_block": 1024, "shared_memory_per_block": 49_152, "shared_memory_per_block_optin": 232_448,
    "shared_memory_per_multiprocessor": 233_472, "gcnArchName": "", "is_integrated": 0,
}  # fmt: skip
CUDA = torch.device("cuda", 0)


class Count(NamedTuple):
    """Of one graph: Triton kernels that Inductor would make, calls of operators and products, bytes of all of them."""

    kernels: int
    calls: int
    bytes: int


def pretend_hopper() -> None:
    """Answers to the questions that PyTorch's compiler asks about the device; for the rest of the process."""
    torch._C._ensureCUDADeviceGuardSet()
    answers = {
        "get_device_properties": SimpleNamespace(**HOPPER),
        "_get_device_properties": SimpleNamespace(**HOPPER), "get_device_capability": (9, 0), "current_device": 0,
        "device_count": 1, "is_available": True, "_lazy_init": None, "current_stream": SimpleNamespace(cuda_stream=0),
        "get_rng_state": torch.zeros(16, dtype=torch.uint8), "set_rng_state": None,
    }  # fmt: skip
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    fake_tensor.init_gpu_context = lambda device: None
    driver.set_active(HopperDriver())
    # A GPU would take these ways; the tensors that are traced are on the CPU.
    torch.compiler.is_compiling = lambda: True
    nn.functional.scaled_dot_product_attention = scaled_dot_product_attention
    kernel_regression.fused.scaled_dot_product_attention = scaled_dot_product_attention
    kernel_regression.choose_backend = gpu_backend


def gpu_backend(call, backend=None):
    """PyTorch's attention where it needs no mask, else Triton."""
    fused = kernel_regression.fused
    use_fused = fused.unsupported_reason(call) is None and not fused.needs_mask(call)
    return fused if use_fused else kernel_regression.triton


@contextmanager
def all_on_cuda():
    """Every tensor says that it is on a GPU."""
    kept = torch.Tensor.is_cuda
    torch.Tensor.is_cuda = property(lambda self: True)
    try:
        yield
    finally:
        torch.Tensor.is_cuda = kept


def moved(graph: torch.fx.GraphModule, inputs: list, mode) -> tuple[torch.fx.GraphModule, list]:
    """A copy of a graph, and its inputs, on the GPU."""
    graph = copy.deepcopy(graph)
    for node in graph.graph.nodes:
        if node.kwargs.get("device") is not None:
            node.kwargs = {**node.kwargs, "device": CUDA}
        node.args = tuple(CUDA if isinstance(x, torch.device) else x for x in node.args)
    graph.recompile()
    with mode:
        on = [
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=CUDA) if isinstance(x, Tensor) else x
            for x in inputs
        ]
    return graph, on


def lowered(graph: torch.fx.GraphModule, inputs: list, mode, backward: bool) -> Count:
    """What Inductor makes of a graph."""
    graph, inputs = moved(graph, inputs, mode)
    view_to_reshape(graph)
    with V.set_fake_mode(mode):
        FakeTensorProp(graph, mode).propagate_dont_convert_inputs(*inputs)
        _recursive_post_grad_passes(graph, is_inference=False)
        lowering = GraphLowering(graph, example_inputs=inputs, is_backward=backward)
        debug = V.set_debug_handler(DebugContext())
        with V.set_graph_handler(lowering), V.set_extern_kernel_nodes([]), debug:
            metrics.reset()
            lowering.run(*inputs)
            lowering.codegen()
            nodes = [type(node).__name__ for node in lowering.scheduler.nodes]
            results = sum("MultiOutput" in type(node.node).__name__ for node in lowering.scheduler.nodes)
            calls = nodes.count("ExternKernelSchedulerNode") - results
            return Count(metrics.generated_kernel_count, calls, lowering.count_bytes()[0])


def step(config, context: int) -> list[Count]:
    """The forward and the backward graph of a training step under bfloat16 autocast."""
    with torch.device("meta"):
        model = untrained_model(config).train()
    mode, counts = fake_tensor.FakeTensorMode(), []

    def compiler(backward: bool):
        def compile_graph(graph, inputs):
            kept, torch.Tensor.is_cuda = torch.Tensor.is_cuda, ON_DEVICE
            counts.append(lowered(graph, inputs, mode, backward))
            torch.Tensor.is_cuda = kept
            return make_boxed_func(graph.forward)

        return compile_graph

    with mode, all_on_cuda():
        held = {name: torch.empty(x.shape, dtype=x.dtype).requires_grad_() for name, x in model.named_parameters()}
        held |= {name: torch.empty(x.shape, dtype=x.dtype) for name, x in model.named_buffers()}
        ids = torch.zeros(TOKENS // context, context, dtype=torch.long)

        def loss(ids: Tensor, *tensors: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
                arguments = {"input_ids": ids, "labels": ids}
                return functional_call(model, dict(zip(held, tensors)), (), arguments).loss

        compiled = aot_function(
            loss, compiler(False), compiler(True), min_cut_rematerialization_partition, select_decomp_table()
        )
        compiled(ids, *held.values()).backward()
    return counts


ON_DEVICE = torch.Tensor.is_cuda


def main() -> int:
    """Print a table; 2: this PyTorch knows no CUDA."""
    if torch.version.cuda is None:
        print("benchmarks.compiled_traffic: needs a build of PyTorch for CUDA (a GPU is not needed).")
        return 2
    pretend_hopper()
    print("| model | context | Triton kernels | products and operators | GB forward | GB backward |")
    print("|---|---|---|---|---|---|")
    for name in ("v1", "v2"):
        for context in (512, 4096):
            for kind, config in pair(Settings(torch.device("cpu"), dry=False), name, context).items():
                forward, backward = step(config, context)
                print(
                    f"| {name} {kind} | {context} | {forward.kernels + backward.kernels} | "
                    f"{forward.calls + backward.calls} | {forward.bytes / 1e9:.0f} | {backward.bytes / 1e9:.0f} |",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
