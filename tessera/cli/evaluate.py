"""Evaluate models: their loss on text, or their scores on a task.

On text: nats per token, perplexity, bits per byte, and loss by position in the context. --data is what a recipe's
data.source can be: stories, a text file, a folder, a glob, or a Hugging Face dataset. Without it a run folder is
evaluated on its own validation text. Several models are set side by side, and drawn together by --plot.

On a task (`tessera tasks` lists them): the scores on examples of its test split, at each of --lengths, for example
  tessera eval runs/a runs/b --task mqmtar --lengths 64 128 256
"""

import argparse
from pathlib import Path

from tessera.cli.arguments import context_length, decay, image_file, positive_int, seed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera eval`."""
    parser.add_argument("models", nargs="+", metavar="model", help="folder of a model")
    parser.add_argument("--batch-size", type=positive_int, default=8, help="sequences per forward pass (default: 8)")
    parser.add_argument("--precision", choices=("auto", "bf16", "fp32"), default="fp32", help="default: fp32")
    parser.add_argument(
        "--without-long-term-memory", action="store_true", help="switch the long-term memories off (v2 models)"
    )
    parser.add_argument("--json", action="store_true", help="print as JSON, with provenance; several models: a list")
    text = parser.add_argument_group("on text")
    text.add_argument("--data", nargs="+", help="text to evaluate on (default: the run's validation text)")
    text.add_argument("--split", help="split of stories or of a dataset (default: validation)")
    text.add_argument("--context", type=context_length, help="tokens per sequence (default: the run's, else 512)")
    text.add_argument(
        "--sequences", type=positive_int, help="evaluate at most so many, spread over the text (default: all)"
    )
    text.add_argument("--plot", type=image_file, metavar="FILE", help="draw loss by position into this image file")
    text.add_argument(
        "--average",
        type=decay,
        metavar="DECAY",
        help="draw the exponential moving average of the loss over positions, with this decay, such as 0.99",
    )
    task = parser.add_argument_group("on a task")
    task.add_argument("--task", metavar="NAME", help="score the models on this task instead of a text")
    task.add_argument("--lengths", nargs="+", type=positive_int, help="lengths of the examples (default: the task's)")
    task.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of the task")
    task.add_argument("--examples", type=positive_int, default=256, help="examples per length (default: 256)")
    task.add_argument("--seed", type=seed, default=0, help="seed of the examples (default: 0)")


def run(arguments: argparse.Namespace) -> int:
    """Evaluate all models, then print and draw."""
    from tessera.errors import expect
    from tessera.evaluation.report import print_task_reports, print_text_reports
    from tessera.files import expect_writable

    of_text = ("data", "split", "context", "sequences", "plot", "average")
    of_task = ("lengths", "set")
    for option in of_text if arguments.task else of_task:
        where = "with --task" if arguments.task else "without --task"
        value = getattr(arguments, option)
        expect(value in (None, []), "eval", f"--{option}", f"be left out {where}", value)
    expect(arguments.average is None or arguments.plot, "eval", "--plot", "name a file for --average", None)
    if arguments.plot:
        expect_writable(Path(arguments.plot), "eval", "--plot")
    if arguments.task:
        print_task_reports([_on_task(model, arguments) for model in arguments.models], arguments.json)
    else:
        reports = [_on_text(model, arguments) for model in arguments.models]
        if arguments.plot:
            _plot(reports, arguments)
        print_text_reports(reports, arguments.json)
    return 0


def _model(folder: str, arguments: argparse.Namespace):
    """(the model, whether long-term memories take part: None for models that have no such thing)."""
    from tessera.errors import TesseraError
    from tessera.models.loading import load_model

    model = load_model(folder)
    present = getattr(model.config, "long_term_memory", None)
    if not arguments.without_long_term_memory:
        return model, present
    if not present:
        raise TesseraError(f"eval: --without-long-term-memory must be left out; {folder} has none.")
    model.disable_long_term_memory()
    return model, False


def _on_text(folder: str, arguments: argparse.Namespace) -> dict:
    from tessera.evaluation.text import evaluate_text
    from tessera.models.loading import load_tokenizer
    from tessera.models.transformer import context_limit
    from tessera.training.evaluation_text import evaluation_text

    model, long_term_memory = _model(folder, arguments)
    longest = context_limit(model.config)
    text = evaluation_text(folder, arguments.data, split=arguments.split, context=arguments.context, longest=longest)
    options = {"sequences": arguments.sequences, "batch_size": arguments.batch_size, "precision": arguments.precision}
    report = evaluate_text(model, load_tokenizer(folder), text, **options)
    return {"model": str(folder), "long_term_memory": long_term_memory, **report}


def _on_task(folder: str, arguments: argparse.Namespace) -> dict:
    from tessera.evaluation.task import make_task, task_report

    task = make_task(arguments.task, arguments.set)
    model, long_term_memory = _model(folder, arguments)
    options = {name: getattr(arguments, name) for name in ("examples", "batch_size", "seed", "precision")}
    report = task_report(model, arguments.task, task, arguments.lengths, **options)
    return {"model": str(folder), "long_term_memory": long_term_memory, **report}


def _plot(reports: list[dict], arguments: argparse.Namespace) -> None:
    from tessera.evaluation.figures import position_curves
    from tessera.evaluation.report import short_names

    names = short_names([report["model"] for report in reports])
    curves = {name: report["loss_by_position"] for name, report in zip(names, reports)}
    texts = sorted({f"{report['data']} ({report['part']})" for report in reports})
    title = f"Loss by position: {texts[0]}" if len(texts) == 1 else "Loss by position"
    position_curves(Path(arguments.plot), curves, title, average=arguments.average)
