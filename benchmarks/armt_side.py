"""One side of `benchmarks.armt`: a process that builds its model once and does what single lines on stdin ask for.

Runs under two Pythons, so it imports nothing of the library unless it is the library's side. Every answer is one JSON
line: `{"seconds": ..., "cpu_seconds": ..., "peak_mb": ...}`.
"""

import argparse
import json
import resource
import sys
import time
import types
from pathlib import Path

import torch

SIZES = {"n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 1024}
DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": None, "eos_token_id": None}
SEGMENT, MEMORY_TOKENS, MEMORY_DIM = 512, 10, 64


def reference_model(folder: str, vocabulary: int):
    """The published wrapper around GPT-2, its values' projections off zero."""
    sys.path.insert(0, folder)
    sys.modules["wandb"] = types.ModuleType("wandb")  # imported by the published file, used nowhere in it
    from modeling_amt.language_modeling import AssociativeMemoryCell, AssociativeRecurrentWrapper
    from transformers import GPT2Config, GPT2LMHeadModel

    base = GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, **SIZES, **DROPOUT))
    cell = AssociativeMemoryCell(base, MEMORY_TOKENS, MEMORY_DIM, wrap_pos=False)
    with torch.no_grad():
        for layer in cell.layers:
            layer.W_mv.weight.normal_(0.0, 0.02)
    return AssociativeRecurrentWrapper(cell, segment_size=SEGMENT)


def tessera_model(checkpoint: Path, vocabulary: int):
    """The same checkpoint as our model."""
    from safetensors.torch import load_file

    from tessera.interop import from_reference

    base = {"class": "GPT2LMHeadModel", "vocab_size": vocabulary, **SIZES, **DROPOUT}
    memory = {"num_mem_tokens": MEMORY_TOKENS, "d_mem": MEMORY_DIM, "wrap_pos": False, "correction": True}
    return from_reference("armt", load_file(checkpoint), {"base_model": base, "segment_size": SEGMENT, **memory})


def small_model(vocabulary: int):
    """An ARMT of 2 layers x 64: a million tokens take a minute, and what grows with the text shows here too."""
    from transformers import GPT2Config, GPT2LMHeadModel

    import tessera.armt as armt

    sizes = {"vocab_size": vocabulary, "n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 1024}
    return armt.wrap(GPT2LMHeadModel(GPT2Config(**sizes, **DROPOUT)), SEGMENT, MEMORY_TOKENS, 16)


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

        # The tokens come one by one, as from a file: a list of them would be the text in memory.
        read_stream(self.model, (7 * i % self.vocabulary for i in range(tokens)))

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
    work(*arguments)
    times = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - worked}
    return {**times, "peak_mb": peak_mb()}


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
    parser.add_argument(
        "--small", action="store_true", help="a small model of our side: only its memory is of interest"
    )
    options = parser.parse_args()
    from safetensors.torch import save_file

    torch.manual_seed(0)
    if options.reference:
        model = reference_model(options.reference, options.vocabulary)
        kept = {k: v.clone() for k, v in model.state_dict().items() if "memory_cell.model." in k and "lm_head" not in k}
        save_file({**kept, "memory_cell.memory": model.memory_cell.memory.detach().clone()}, options.checkpoint)
    elif options.small:
        model = small_model(options.vocabulary)
    else:
        model = tessera_model(options.checkpoint, options.vocabulary)
    side = Side(model, not options.reference, options.vocabulary)
    print(json.dumps({"ready": True, "threads": torch.get_num_threads()}), flush=True)
    for line in sys.stdin:
        work, tokens, *file = line.split()
        if file:
            save_file({"logits": side.logits(int(tokens)).contiguous()}, file[0])
            print(json.dumps({"saved": file[0]}), flush=True)
        else:
            print(json.dumps(measure(getattr(side, work), int(tokens))), flush=True)


if __name__ == "__main__":
    main()
