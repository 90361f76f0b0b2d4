"""What a training step, and a decoded token, ask of a GPU, counted without one: launches, bytes, operations.

    python -m benchmarks.traffic        # v1 against GPT-2 and v2 against Llama at 512 and 4,096 tokens

The models run uncompiled on a device that holds no data (`pretend_gpu`), under bfloat16 autocast. Bytes are those of
all inputs and outputs of each operation, each read or written once (the library's own operators and PyTorch's attention
count as one launch, though they are a few); `ms` are those bytes at COPIES and the products at PRODUCTS, the ceilings
that benchmarks/gpu-notes.md assumes. This measures no time: it shows where a step's memory traffic comes from, and
whether a change takes some away.
"""

import argparse
from collections import Counter

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM

from benchmarks.gpu_stages.models import pair
from benchmarks.gpu_stages.settings import Settings
from benchmarks.pretend_gpu import PretendGPU, pretend_gpu
from tessera.models.sizes import flops_per_token

TOKENS = 32_768
COPIES = 4.3e12  # bytes per second
PRODUCTS = 790e12  # floating-point operations per second
UNCOUNTED = ("device", "_unsafe_view")
PURE_WRITES = ("copy_", "zero_", "fill_")


class Traffic(TorchDispatchMode):
    """Bytes and launches of every operation that is not a view, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()
        self.launches: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function._schema.name.split("::")[1]
        returns = function._schema.returns
        view = any(each.alias_info is not None and not each.alias_info.is_write for each in returns)
        if not view and name not in UNCOUNTED and not name.startswith(("empty", "new_empty")):
            written = {id(x): x for x in tree_leaves(result)}
            only = written if name in PURE_WRITES or "out" in (kwargs or {}) else {}
            read = {id(x): x for x in tree_leaves((args, kwargs)) if id(x) not in only}
            self.bytes[name] += sum(map(size, (*read.values(), *written.values())))
            self.launches[name] += 1
        return result


def size(x: object) -> int:
    """Bytes that a tensor occupies; broadcast dimensions once."""
    if not isinstance(x, torch.Tensor):
        return 0
    entries = 1
    for length, stride in zip(x.shape, x.stride()):
        entries *= length if stride else 1
    return entries * x.element_size()


def on(gpu: PretendGPU, config) -> nn.Module:
    """The model on the device, without ever holding its weights."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model._apply(lambda x: torch.empty(x.shape, dtype=x.dtype, device=gpu.device))
    return model.train()


def step(config, context: int) -> Traffic:
    """Forward and backward of TOKENS tokens."""
    with pretend_gpu() as gpu:
        model = on(gpu, config)
        ids = torch.zeros(TOKENS // context, context, dtype=torch.long, device=gpu.device)
        with Traffic() as traffic:
            with torch.autocast("gpu", torch.bfloat16):
                loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
    return traffic


@torch.inference_mode()
def token(config, context: int) -> Traffic:
    """The second of two tokens behind a context, in bfloat16."""
    with pretend_gpu() as gpu:
        model = on(gpu, config).eval().to(gpu.device, torch.bfloat16)
        ids = torch.zeros(1, context, dtype=torch.long, device=gpu.device)
        output = model(input_ids=ids, use_cache=True, logits_to_keep=1)
        output = model(input_ids=ids[:, :1], past_key_values=output.past_key_values, use_cache=True)
        with Traffic() as traffic:
            model(input_ids=ids[:, :1], past_key_values=output.past_key_values, use_cache=True)
    return traffic


def main() -> None:
    """Print two tables, and with --operations the largest of each step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=0, help="show so many operations of each step")
    shown = parser.parse_args().operations
    print("| model | context | launches | GB | ms of copies | TFLOP | ms of products |\n|---|---|---|---|---|---|---|")
    for name in ("v1", "v2"):
        for context in (512, 4096):
            for kind, config in pair(Settings(torch.device("meta"), dry=False), name, context).items():
                traffic = step(config, context)
                moved, flops = sum(traffic.bytes.values()), 3 * flops_per_token(config, context) * TOKENS
                print(
                    f"| {name} {kind} | {context} | {sum(traffic.launches.values())} | {moved / 1e9:.0f} | "
                    f"{1e3 * moved / COPIES:.0f} | {flops / 1e12:.1f} | {1e3 * flops / PRODUCTS:.0f} |",
                    flush=True,
                )
                for operation, count in traffic.bytes.most_common(shown):
                    print(f"    {operation:36} {count / 1e9:7.1f} GB {traffic.launches[operation]:6}")
    print("\n| model, one token behind 1,024 | launches | MB |\n|---|---|---|")
    for name in ("v1", "v2"):
        for kind, config in pair(Settings(torch.device("meta"), dry=False), name, 1027).items():
            traffic = token(config, 1024)
            print(f"| {name} {kind} | {sum(traffic.launches.values())} | {sum(traffic.bytes.values()) / 1e6:.0f} |")


if __name__ == "__main__":
    main()
