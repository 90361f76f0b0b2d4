"""Loss of a model on text: nats per token, perplexity, bits per byte, and loss by position in the context.

--data is what a recipe's data.source can be: stories (their validation book), a text file, a folder, a glob, or a
Hugging Face dataset. A run folder is evaluated on its own recipe's validation text when --data is left out.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

from tessera.cli.arguments import context_length, image_file, positive_int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera eval`."""
    parser.add_argument("model", help="folder of the model")
    parser.add_argument("--data", nargs="+", help="text to evaluate on (default: the run's validation text)")
    parser.add_argument("--context", type=context_length, help="tokens per sequence (default: the run's, else 512)")
    parser.add_argument(
        "--sequences", type=positive_int, help="evaluate at most so many, spread over the text (default: all)"
    )
    parser.add_argument("--batch-size", type=positive_int, default=8, help="sequences per forward pass (default: 8)")
    parser.add_argument("--precision", choices=("auto", "bf16", "fp32"), default="fp32", help="default: fp32")
    parser.add_argument(
        "--without-long-term-memory", action="store_true", help="switch the long-term memories off (v2 models)"
    )
    parser.add_argument("--split", help="split of stories or of a dataset (default: validation)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON, with provenance")
    parser.add_argument("--plot", type=image_file, metavar="FILE", help="draw loss by position into this image file")


def run(arguments: argparse.Namespace) -> int:
    """Evaluate and print."""
    from tessera.evaluation.figures import position_curves

    report = evaluate(arguments)
    if arguments.plot:
        position_curves(arguments.plot, {Path(arguments.model).name: report["loss_by_position"]}, "Loss by position")
    if arguments.json:
        print(json.dumps(report, indent=1, allow_nan=False))
    else:
        _print(report)
    return 0


def evaluate(arguments: argparse.Namespace) -> dict:
    """All numbers as a JSON-ready record. `loss_by_position[t]` is about tokens with t + 1 tokens before them."""
    import math
    import tempfile
    import time
    from functools import partial

    from tessera.data.windows import ValidationWindows
    from tessera.errors import TesseraError
    from tessera.evaluation.loss import bits_per_byte, loss_by_position, perplexity
    from tessera.evaluation.provenance import provenance
    from tessera.models.loading import load_model, load_tokenizer
    from tessera.models.precision import autocast, resolve_precision
    from tessera.models.transformer import context_limit

    began = time.time()
    model, tokenizer = load_model(arguments.model), load_tokenizer(arguments.model)
    if arguments.without_long_term_memory:
        if not getattr(model.config, "long_term_memory", False):
            raise TesseraError(f"eval: --without-long-term-memory must be left out; {arguments.model} has none.")
        model.disable_long_term_memory()
    data = _data(arguments)
    with tempfile.TemporaryDirectory() as cache:
        split = _split(data, arguments, tokenizer, Path(cache))
        largest, size = split.store.description.largest_token, model.config.vocab_size
        if largest >= size:
            raise TesseraError(f"eval: the tokenizer must fit the model (vocab_size {size}); got token id {largest}.")
        longest = context_limit(model.config)
        if longest is not None and data.context > longest:
            raise TesseraError(f"eval: --context must be at most {longest} for this model; got {data.context}.")
        windows = ValidationWindows(split, data.context, arguments.sequences, data.document_ids)
        context = partial(autocast, resolve_precision(arguments.precision), model.device.type)
        result = loss_by_position(model, windows, max(1, arguments.batch_size), context=context)
        ratio = split.tokens_per_byte
    return {
        "model": str(arguments.model),
        "long_term_memory": _long_term_memory(model, arguments),
        "data": data.source,
        "context": data.context,
        "sequences": len(windows),
        "tokens": int(result.count.sum()),
        "loss": result.mean,
        "perplexity": perplexity(result.mean),
        "bits_per_byte": bits_per_byte(result.mean, ratio),
        "loss_by_position": [None if math.isnan(value) else value for value in result.by_position().tolist()],
        "provenance": provenance(configuration=model.config.to_diff_dict(), wall_seconds=time.time() - began),
    }


def _long_term_memory(model, arguments: argparse.Namespace) -> bool | None:
    """Whether long-term memories took part; None for models that have no such thing."""
    present = getattr(model.config, "long_term_memory", None)
    return present if present is None else present and not arguments.without_long_term_memory


def _data(arguments: argparse.Namespace):
    """The data section to evaluate with: the run's own, changed by the arguments."""
    import yaml

    from tessera.errors import TesseraError
    from tessera.training.sections import DataSection

    saved = Path(arguments.model) / "recipe.yaml"
    section = DataSection(**yaml.safe_load(saved.read_text())["data"]) if saved.is_file() else None
    if arguments.data:
        source = arguments.data[0] if len(arguments.data) == 1 else arguments.data
        section = replace(section or DataSection(), source=source, validation=source)
    if section is None:
        raise TesseraError(
            f"eval: --data must name text; {arguments.model} is not a run folder with a recipe of its own."
        )
    section = replace(section, context=arguments.context or section.context)
    problems = [f"eval: data.{name} {message}" for name, message in section.problems()]
    if problems:
        raise TesseraError("\n".join(problems))
    return section


def _split(data, arguments: argparse.Namespace, tokenizer, cache: Path):
    """The tokens to evaluate on. A run without validation text of its own held out the end of its training text."""
    from tessera.data.sources import text_source
    from tessera.data.store import open_or_build
    from tessera.data.windows import Split

    split = arguments.split or data.validation_split
    source = text_source(data.validation if data.validation is not None else data.source, split, **data.text_options)
    held_out = data.validation is None and not source.has_splits
    store = open_or_build(source, tokenizer, cache, begin_token=data.begin_token, end_token=data.end_token)
    whole = Split.whole(store)
    return whole.divided(data.validation_fraction)[1] if held_out else whole


def _print(report: dict) -> None:
    import numpy as np

    from tessera.evaluation.figures import binned

    print(f"{report['tokens']:,} tokens of {report['data']} in {report['sequences']} sequences of {report['context']}")
    print(f"loss           {report['loss']:.4f} nats/token")
    print(f"perplexity     {report['perplexity']:.2f}")
    print(f"bits per byte  {report['bits_per_byte']:.4f}")
    print("loss by position (tokens of context: nats/token)")
    curve = np.array([np.nan if value is None else value for value in report["loss_by_position"]])
    for place, loss in zip(*binned(curve, per_octave=1)):
        print(f"  {place:8.0f}: {loss:.4f}")
