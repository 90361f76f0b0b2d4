"""Associative retrieval of the ARMT paper with small models: train, measure, draw.

    python -m benchmarks.associative_retrieval --minutes 40

trains ARMT, ARMT without gamma-correction, RMT and PRMT (4 layers, width 128) by a shortened curriculum on rewrite and
on remember, and writes `results/associative_retrieval/results.json` and `figure.png`. A run that the file
holds already, of the same settings, is not repeated. `--plot` only draws.
"""

import argparse
import json
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import tessera.armt as armt
from tessera.evaluation.provenance import provenance
from tessera.tasks.associative_retrieval import RetrievalTask, capacity, chance, exact_match
from tessera.tasks.associative_retrieval.curriculum import Stage, TrainingOptions, predictor, train
from tessera.tasks.associative_retrieval.metrics import standard_error
from tessera.tasks.associative_retrieval.plot import draw

# Share of the whole time; ARMT's rewrite is the one with a target to reach.
RUNS = {
    ("armt", "rewrite"): 15.0,
    ("armt_no_correction", "rewrite"): 7.0,
    ("rmt", "rewrite"): 4.0,
    ("prmt", "rewrite"): 4.0,
    ("armt", "remember"): 5.0,
    ("rmt", "remember"): 3.0,
    ("prmt", "remember"): 3.0,
    ("armt_no_correction", "remember"): 2.0,
}
CURRICULUM = [Stage(1, share=0.5), Stage(3, min_pairs=3, share=4), Stage(5, min_pairs=2, share=2), Stage(10, share=4)]
MEASURED = {"rewrite": [1, 2, 3, 5, 10, 20, 50, 100], "remember": [1, 2, 3, 5, 8, 10, 12, 14, 16]}
OUTPUT = Path("results/associative_retrieval")


def build(name: str, seed: int) -> torch.nn.Module:
    """A model of the paper's appendix A.5: 4 layers, width 128, 4 heads, 4 memory tokens, memory width 32."""
    torch.manual_seed(seed)
    vocabulary = RetrievalTask("rewrite").vocab_size
    sizes = {"n_embd": 128, "n_layer": 4, "n_head": 4, "n_inner": 256, "n_positions": 32}
    # Embeddings of about unit length: with GPT-2's 0.02 the first features of the memory drown in epsilon.
    start = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "initializer_range": 0.1}
    tokens = {"bos_token_id": None, "eos_token_id": None}
    base = GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, **sizes, **start, **tokens))
    if name.startswith("armt"):
        model = armt.wrap(base, 4, 4, memory_dim=32, correction=name == "armt")
    else:
        model = {"rmt": armt.wrap_rmt, "prmt": armt.wrap_prmt}[name](base, 4, 4)
    return easier_start(model)


@torch.no_grad()
def easier_start(model: torch.nn.Module) -> torch.nn.Module:
    """A start from which associations are found in hundreds of steps, where the published one takes many thousands.

    Positions and memory tokens are small, so that what a state says of its key is not drowned in what it always says;
    ARMT's queries start as its keys, so that equal contents match, and its values off zero.
    """
    model.base.transformer.wpe.weight.mul_(0.1)
    for name, parameter in model.named_parameters():
        if name.startswith("memory_tokens"):
            parameter.mul_(0.1)
    for memory in getattr(model, "memories", []):
        memory.query.weight.copy_(memory.key.weight)
        memory.value.weight.normal_(0.0, 0.05)
    return model


def run(name: str, task: str, seconds: float, seed: int, samples: int) -> dict:
    """Train and measure one model on one task."""
    model = build(name, seed)
    options = TrainingOptions(seed=seed)

    def log(record: dict) -> None:
        print(name, task, record, flush=True)

    stages = train(model, task, CURRICULUM, options, seconds, log)
    spec = RetrievalTask(task)
    shares = {n: exact_match(predictor(model, spec), spec, n, samples) for n in MEASURED[task]}
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "seed": seed,
        "budget_seconds": seconds,
        "options": vars(options),
        "stages": stages,
        "samples": samples,
        "exact_match": shares,
        "standard_error": {n: standard_error(share, samples) for n, share in shares.items()},
        "capacity": {n: capacity(share, n, spec.num_symbols) for n, share in shares.items()},
    }


def read(path: Path) -> dict:
    """The results so far."""
    return json.loads(path.read_text()) if path.exists() else {"runs": {}}


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=40.0, help="CPU time of all eight trainings together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samples", type=int, default=1000, help="held-out samples per measured point")
    parser.add_argument("--only", nargs="*", choices=["/".join(run) for run in RUNS], help="these runs alone")
    parser.add_argument("--plot", action="store_true", help="draw what is stored, train nothing")
    options = parser.parse_args()
    OUTPUT.mkdir(parents=True, exist_ok=True)
    path = OUTPUT / "results.json"
    for (name, task), share in {} if options.plot else RUNS.items():
        results = read(path)
        if options.only and f"{name}/{task}" not in options.only:
            continue
        seconds = options.minutes * 60 * share / sum(RUNS.values())
        done = results["runs"].get(f"{name}/{task}")
        if done and done["budget_seconds"] == seconds and done["seed"] == options.seed:
            continue
        record = json.loads(json.dumps(run(name, task, seconds, options.seed, options.samples)))
        results = read(path)  # another process may have added to it
        results["runs"][f"{name}/{task}"] = record
        results["chance"] = chance(RetrievalTask(task))
        results["provenance"] = provenance(
            seed=options.seed, command=f"python -m benchmarks.associative_retrieval --minutes {options.minutes:g}"
        )
        path.write_text(json.dumps(results, indent=1) + "\n")
    draw(read(path), OUTPUT / "figure.png")


if __name__ == "__main__":
    main()
