"""What the demo writes: a figure, samples, a table, and a story as it is generated."""

import json
from dataclasses import asdict
from pathlib import Path

import torch

from tessera.base.files import write_text_atomically
from tessera.evaluation.figures import training_curves
from tessera.evaluation.provenance import provenance
from tessera.generation.sampling import Sampling, continuation
from tessera.models.saving.loading import load_model, load_tokenizer
from tessera.models.transformer import context_limit
from tessera.training.metrics import MetricsFile
from tessera.training.summary import RunSummary

SAMPLES, SAMPLE_TOKENS, STREAM_TOKENS = 3, 160, 160


def write_report(summaries: dict[str, RunSummary], output: Path, prompt: str) -> None:
    """Write loss.png, samples.txt and demo.json into `output`; print the table; stream the first model's story."""
    curves = {name: MetricsFile(Path(summary.folder) / "metrics.jsonl").read() for name, summary in summaries.items()}
    training_curves(output / "loss.png", curves, "Bundled stories, same batches")
    models = {name: load_model(summary.folder) for name, summary in summaries.items()}
    tokenizer = load_tokenizer(next(iter(summaries.values())).folder)
    length = len(tokenizer(prompt, add_special_tokens=False)["input_ids"])
    limits = [context_limit(model.config) for model in models.values()]
    tokens = min([SAMPLE_TOKENS, *(limit - length for limit in limits if limit is not None)])
    texts = [_samples(name, model, tokenizer, prompt, tokens) for name, model in models.items()]
    write_text_atomically(output / "samples.txt", "\n".join(texts))
    results = {"provenance": provenance(), "models": {name: asdict(summary) for name, summary in summaries.items()}}
    write_text_atomically(output / "demo.json", json.dumps(results, indent=1) + "\n")
    print("\n" + table(summaries) + f"\n\nfigure, samples, checkpoints and metrics are in {output}\n")
    name, model = next(iter(models.items()))
    print(f"{name}:", flush=True)
    continuation(model, tokenizer, prompt, Sampling(STREAM_TOKENS, seed=1), stream=True)


def table(summaries: dict[str, RunSummary]) -> str:
    """Parameters, final validation loss and speed, one model a line."""
    header = f"{'model':<15}{'parameters':>12}{'nats/token':>12}{'bits/byte':>11}{'tokens/s':>11}"
    lines = [
        f"{name:<15}{s.parameters:>12,}{s.validation_loss:>12.4f}{s.validation_bits_per_byte:>11.4f}"
        f"{s.tokens_per_second or 0:>11,.0f}"
        for name, s in summaries.items()
    ]
    return "\n".join([header, "-" * len(header), *lines])


def _samples(name: str, model, tokenizer, prompt: str, tokens: int) -> str:
    torch.manual_seed(0)
    inputs = tokenizer([prompt] * SAMPLES, return_tensors="pt", add_special_tokens=False)
    options = {"do_sample": True, "temperature": 0.8, "top_k": 50, "max_new_tokens": tokens}
    ids = model.generate(**inputs, pad_token_id=tokenizer.pad_token_id, **options)
    texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
    return "\n".join([f"=== {name} ===", *(f"{text}\n---" for text in texts), ""])
