"""The laws of a state, tried on architectures of transformers with tiny random weights, and on ours.

    python -m benchmarks.state_laws --out results/state_laws/cpu.json

Prints a table in Markdown: one row for each model, one column for each law. Without fused kernels (mamba-ssm,
flash-linear-attention) the recurrent models run transformers' own loops.
"""

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

import tessera
from tessera.base.files import write_text_atomically
from tessera.evaluation.provenance import provenance
from tessera.testing.state_laws import LAWS, Finding, check_state

SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
GROUPED = {**SIZES, "num_key_value_heads": 2}
STATE_SPACE = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_ssm": 64, "mamba_d_state": 8, "mamba_n_groups": 1}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "llama": GROUPED,
    "qwen3": {**GROUPED, "head_dim": 8},
    "gemma3_text": {**GROUPED, "head_dim": 8, "sliding_window": 8},
    "mamba": {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8},
    "mamba2": {
        "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "num_heads": 8, "head_dim": 8,
        "n_groups": 1, "chunk_size": 8,
    },
    "rwkv": {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32},
    "falcon_h1": {**GROUPED, **STATE_SPACE},
    "bamba": {**GROUPED, **{k: v for k, v in STATE_SPACE.items() if k != "mamba_d_ssm"}, "attn_layer_indices": [1]},
    "recurrent_gemma": {**SIZES, "num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 16},
    "qwen3_next": {
        **GROUPED, "num_hidden_layers": 4, "head_dim": 8, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
        "linear_key_head_dim": 8, "linear_value_head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    },
    "lfm2": {**GROUPED, "full_attn_idxs": [1]},
}  # fmt: skip
OURS: dict[str, dict[str, Any]] = {
    "memory_mosaic": {"vocab_size": 64, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "num_persistent_slots": 16},
    "memory_mosaic_v2": {
        "vocab_size": 64, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 32,
        "long_term_delay": 6, "short_term_span": 9,
    },
    "linear_attention": {"vocab_size": 64, "hidden_size": 32, "num_layers": 2, "num_heads": 4},
}  # fmt: skip


def models() -> dict[str, Any]:
    """Name -> a function that makes the model."""
    made = {
        name: (lambda name=name, sizes=sizes: _random(name, sizes)) for name, sizes in {**ARCHITECTURES, **OURS}.items()
    }
    for wrapper in ("wrap", "wrap_rmt", "wrap_prmt"):
        options = {"segment_size": 8, "num_memory_tokens": 2} | ({"memory_dim": 4} if wrapper == "wrap" else {})
        name = {"wrap": "armt", "wrap_rmt": "rmt", "wrap_prmt": "prmt"}[wrapper]
        made[f"{name} around llama"] = lambda wrapper=wrapper, options=options: getattr(tessera, wrapper)(
            _random("llama", GROUPED), **options
        )
    return made


def _random(model_type: str, sizes: dict[str, Any]) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **sizes)).eval()


def cell(finding: Finding) -> str:
    if finding.holds:
        return "holds"
    return (
        "-"
        if finding.note.startswith("not tried")
        else f"{finding.error:.0e}"
        if finding.error is not None
        else "error"
    )


def main() -> None:
    """Try every model; print the table; write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a JSON file for what came out")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    began, record = time.perf_counter(), {}
    print("| model | " + " | ".join(LAWS) + " |")
    print("|---|" + "---|" * len(LAWS))
    for name, make in models().items():
        findings = check_state(make())
        record[name] = [vars(finding) | {"holds": finding.holds} for finding in findings]
        print(f"| {name} | " + " | ".join(cell(finding) for finding in findings) + " |", flush=True)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        stored = {"models": record, "provenance": provenance(wall_seconds=time.perf_counter() - began)}
        write_text_atomically(arguments.out, json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
