"""One side of `benchmarks.armt`: a process that builds its model once and does what single lines on stdin ask for.

Runs under two Pythons, so it imports nothing of the library unless it is the library's side. Every answer is one JSON
line: `{"seconds": ..., "cpu_seconds": ..., "peak_mb": ...}`.
"""

import argparse
import itertools
import json
import resource
import sys
import time
import types
from contextlib import contextmanager
from pathlib import Path

import torch

LAYERS, POSITIONS = 4, 1024
DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": None, "eos_token_id": None}
SEGMENT, MEMORY_TOKENS, MEMORY_DIM = 512, 10, 64
CHUNK = 20 * SEGMENT
TEXTS = 8


def gpt2_sizes(width: int, layers: int = LAYERS) -> dict:
    """Of GPT-2, with two segments in its positions."""
    return {"n_embd": width, "n_layer": layers, "n_head": max(1, width // 64), "n_positions": POSITIONS}


def reference_model(folder: str, vocabulary: int, width: int):
    """The published wrapper around GPT-2, its values' projections off zero."""
    sys.path.insert(0, folder)
    sys.modules["wandb"] = types.ModuleType("wandb")  # imported by the published file, used nowhere in it
    from modeling_amt.language_modeling import AssociativeMemoryCell, AssociativeRecurrentWrapper
    from transformers import GPT2Config, GPT2LMHeadModel

    base = GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, **gpt2_sizes(width), **DROPOUT))
    cell = AssociativeMemoryCell(base, MEMORY_TOKENS, MEMORY_DIM, wrap_pos=False)
    with torch.no_grad():
        for layer in cell.layers:
            layer.W_mv.weight.normal_(0.0, 0.02)
    return AssociativeRecurrentWrapper(cell, segment_size=SEGMENT)


def tessera_model(checkpoint: Path, vocabulary: int, width: int):
    """The same checkpoint as our model."""
    from safetensors.torch import load_file

    from tessera.interop import from_reference

    base = {"class": "GPT2LMHeadModel", "vocab_size": vocabulary, **gpt2_sizes(width), **DROPOUT}
    memory = {"num_mem_tokens": MEMORY_TOKENS, "d_mem": MEMORY_DIM, "wrap_pos": False, "correction": True}
    return from_reference("armt", load_file(checkpoint), {"base_model": base, "segment_size": SEGMENT, **memory})


def own_model(kind: str, vocabulary: int, width: int, layers: int):
    """Ours with weights by chance: ARMT around GPT-2, a GPT-2, or a Mamba (that of the BABILong experiment)."""
    from transformers import GPT2Config, GPT2LMHeadModel, MambaConfig, MambaForCausalLM

    import tessera.armt as armt

    if kind == "mamba":
        sizes = {"hidden_size": width, "num_hidden_layers": layers, "state_size": 16}
        return MambaForCausalLM(MambaConfig(vocab_size=vocabulary, **sizes))
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, **gpt2_sizes(width, layers), **DROPOUT))
    if kind == "gpt2":
        return gpt2
    model = armt.wrap(gpt2, SEGMENT, MEMORY_TOKENS, MEMORY_DIM)
    for memory in model.memories:
        torch.nn.init.normal_(memory.value.weight, 0.0, 0.02)
    return model


class Side:
    """The workloads. `ids` are the same on both sides."""

    def __init__(self, model, ours: bool, vocabulary: int):
        self.model, self.ours = model.eval(), ours
        self.vocabulary = vocabulary

    def ids(self, tokens: int) -> torch.Tensor:
        """Random tokens (1, tokens), equal in both processes."""
        return torch.randint(self.vocabulary, (1, tokens), generator=torch.Generator().manual_seed(0))

    @torch.no_grad()
    def logits(self, tokens: int) -> torch.Tensor:
        """Logits of every token."""
        ids = self.ids(tokens)
        return self.model(ids).logits if self.ours else self.model(ids, attention_mask=torch.ones_like(ids)).logits

    def memory(self, tokens: int) -> None:
        """What `read_stream` does; the published code has no reading without logits."""
        from tessera.models.recurrence import read_stream

        read_stream(self.model, self.stream(tokens))

    def stream(self, tokens: int, times: list[float] | None = None):
        """Tokens one by one, as from a file: a list of them would be the text in memory.

        `times` gets the clock at every `CHUNK`-th token, at which the model has read all before.
        """
        for i in range(tokens):
            if times is not None and i % CHUNK == 0:
                times.append(time.perf_counter())
            yield 7 * i % self.vocabulary

    def reading(self, tokens: int) -> dict:
        """`memory` in automatic precision; the seconds of each `CHUNK` tokens."""
        from tessera.models.recurrence import read_stream

        times: list[float] = []
        read_stream(self.model, self.stream(tokens, times), precision="auto")
        times.append(time.perf_counter())
        return {"chunks": [after - before for before, after in itertools.pairwise(times)]}

    def texts(self, tokens: int) -> None:
        """`TEXTS` texts of so many tokens, side by side."""
        from tessera.models.recurrence import read_streams

        read_streams(self.model, [self.stream(tokens) for _ in range(TEXTS)], precision="auto")

    def sliding(self, tokens: int) -> None:
        """GPT-2: every segment behind the one before it, which is computed again. No logits."""
        ids = self.ids(tokens)
        with self.automatic():
            for start in range(0, tokens, SEGMENT):
                window = ids[:, max(0, start - SEGMENT) : start + SEGMENT]
                self.model.base_model(window, use_cache=False)

    def whole(self, tokens: int) -> None:
        """Mamba: the whole text in one call, as its implementation asks for. No logits."""
        with self.automatic():
            self.model.base_model(self.ids(tokens), use_cache=False)

    @contextmanager
    def automatic(self):
        """Without gradients, in automatic precision."""
        from tessera.base.precision import autocast, resolve_precision

        with torch.no_grad(), autocast(resolve_precision("auto", "cpu"), "cpu"):
            yield

    def train(self, tokens: int) -> None:
        """Loss and gradients through all segments."""
        ids = self.ids(tokens)
        self.model.train()
        more = {} if self.ours else {"attention_mask": torch.ones_like(ids)}
        self.model(ids, labels=ids, **more).loss.backward()
        self.model.zero_grad(set_to_none=True)
        self.model.eval()

    def logits_bfloat16(self, tokens: int) -> None:
        """`logits` with products in bfloat16."""
        with torch.autocast("cpu", torch.bfloat16):
            self.logits(tokens)

    def train_bfloat16(self, tokens: int) -> None:
        """`train` with products in bfloat16."""
        with torch.autocast("cpu", torch.bfloat16):
            self.train(tokens)


def measure(work, *arguments) -> dict:
    """Seconds, seconds of processor time, and the peak resident memory of one call."""
    reset = Path("/proc/self/clear_refs")
    if reset.exists():
        reset.write_text("5")  # forget the peak so far
    start, worked = time.perf_counter(), time.process_time()
    more = work(*arguments)
    times = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - worked}
    return {**times, "peak_mb": peak_mb(), **(more if isinstance(more, dict) else {})}


def peak_mb() -> float:
    """Peak resident memory, of this call where the system can forget older peaks."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Build, say so, then answer lines `WORK TOKENS [FILE]`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--reference")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--vocabulary", type=int, required=True)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--model", choices=("armt", "gpt2", "mamba"), help="ours, without a checkpoint")
    options = parser.parse_args()
    from safetensors.torch import save_file

    torch.manual_seed(0)
    if options.reference:
        model = reference_model(options.reference, options.vocabulary, options.width)
        kept = {k: v.clone() for k, v in model.state_dict().items() if "memory_cell.model." in k and "lm_head" not in k}
        if options.checkpoint:
            save_file({**kept, "memory_cell.memory": model.memory_cell.memory.detach().clone()}, options.checkpoint)
    elif options.model:
        model = own_model(options.model, options.vocabulary, options.width, options.layers)
    else:
        model = tessera_model(options.checkpoint, options.vocabulary, options.width)
    side = Side(model, not options.reference, options.vocabulary)
    print(json.dumps({"ready": True, "threads": torch.get_num_threads(), "peak_mb": peak_mb()}), flush=True)
    for line in sys.stdin:
        work, tokens, *file = line.split()
        if file:
            save_file({"logits": side.logits(int(tokens)).contiguous()}, file[0])
            print(json.dumps({"saved": file[0]}), flush=True)
        else:
            print(json.dumps(measure(getattr(side, work), int(tokens))), flush=True)


if __name__ == "__main__":
    main()
