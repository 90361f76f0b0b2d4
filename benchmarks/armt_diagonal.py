"""Diagonal batching of ARMT against reading segment after segment, on this machine's device.

    python -m benchmarks.armt_diagonal

For several widths and numbers of layers the two take turns, after their logits were found equal. A ratio above 1 means
that the diagonal wins.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import tessera.armt as armt
from tessera.base.files import write_text_atomically
from tessera.evaluation.provenance import provenance
from tessera.models.armt.diagonal import read_diagonally

CASES = [(64, 4, 32), (64, 8, 32), (256, 4, 128), (256, 4, 512)]  # width, layers, segment size
SEGMENTS = 16
CLOSE = 2e-3  # float32 logits of order 1 after sixteen segments


def build(width: int, layers: int, segment: int, device: str) -> armt.ARMTForCausalLM:
    """An ARMT whose memory has an effect."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 1000, "n_embd": width, "n_layer": layers, "n_head": width // 32, "n_positions": segment + 16}
    sizes |= {"bos_token_id": None, "eos_token_id": None}
    model = armt.wrap(GPT2LMHeadModel(GPT2Config(**sizes)), segment, 10, memory_dim=16).eval()
    for memory in model.memories:
        torch.nn.init.normal_(memory.value.weight, 0.0, 0.02)
    return model.to(device)


def seconds(call, device: str) -> float:
    """Of one call, the device's work included."""
    start = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


@torch.no_grad()
def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    out = options.out or Path(f"results/armt/diagonal_{options.device}.json")
    rows = []
    for width, layers, segment in CASES:
        model = build(width, layers, segment, options.device)
        ids = torch.randint(1000, (1, SEGMENTS * segment), device=options.device)
        ways = {
            "segments": lambda m=model, i=ids: m(i).logits,
            "diagonal": lambda m=model, i=ids: read_diagonally(m, i)[0],
        }
        difference = float((ways["segments"]() - ways["diagonal"]()).abs().max())
        if difference > CLOSE:
            raise SystemExit(f"benchmarks.armt_diagonal: logits differ by {difference:.2g}; speeds would mean nothing.")
        times = {name: [] for name in ways}
        for _ in range(options.repetitions):
            for name, way in ways.items():
                times[name].append(seconds(way, options.device))
        medians = {name: statistics.median(all_of) for name, all_of in times.items()}
        row = {"width": width, "layers": layers, "segment": segment, "seconds": medians, "difference": difference}
        rows.append({**row, "ratio": medians["segments"] / medians["diagonal"]})
        print(json.dumps(rows[-1]), flush=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    result = {"device": options.device, "segments": SEGMENTS, "cases": rows, "provenance": provenance()}
    write_text_atomically(out, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
