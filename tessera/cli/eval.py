"""Evaluate models: their loss on text, or their scores on tasks.

On text: nats per token, perplexity, bits per byte, and loss by position in the context. --data is what a recipe's
data.source can be: stories, a text file, a folder, a glob, or a Hugging Face dataset. Without it a run folder is
evaluated on its own validation text, or on the questions that it was trained on. Several models are set side by side,
and drawn together by --plot.

On a task (`tessera tasks` lists them): the scores on examples of its test split, at each of --lengths, for example
  tessera eval runs/a runs/b --task mqmtar --lengths 64 128 256

On tasks of EleutherAI's lm-evaluation-harness, its own or from your YAML files (needs tessera[eval]), for example
  tessera eval runs/a --tasks hellaswag,arc_easy
  tessera eval runs/a --tasks my_task --include-path my_tasks
"""

import argparse
import logging

from tessera.base.errors import expect
from tessera.base.files import expect_output
from tessera.cli.options import (
    add_measured_models,
    context_length,
    decay,
    hold_output,
    image_file,
    measured_model,
    num_examples,
    of_each,
    positive_int,
    refuse_options,
    seed,
    whole_number,
    write_json_lines,
)
from tessera.lm_eval import expect_harness


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera eval`."""
    add_measured_models(parser, "sequences (of a task at most 8)")
    meaning = "number format of the products; auto: bf16 where the hardware multiplies in it (default: fp32)"
    parser.add_argument("--precision", choices=("auto", "bf16", "fp32"), default="fp32", help=meaning)
    text = parser.add_argument_group("on text")
    meaning = "the text to read; *.jsonl are JSON lines (default: what the run was validated on)"
    text.add_argument("--data", nargs="+", help=meaning)
    text.add_argument("--split", help="which split of the stories or of a dataset to read (default: validation)")
    meaning = "cut the text into sequences of so many tokens (default: as the run did, else 512)"
    text.add_argument("--context", type=context_length, help=meaning)
    meaning = "read at most so many sequences, spread evenly over the text (default: all)"
    text.add_argument("--sequences", type=positive_int, help=meaning)
    meaning = "draw the loss at each position of a sequence into this image file"
    text.add_argument("--plot", type=image_file, metavar="FILE", help=meaning)
    meaning = "smooth that curve by an exponential moving average with this decay, such as 0.99"
    text.add_argument("--average", type=decay, metavar="DECAY", help=meaning)
    task = parser.add_argument_group("on a task")
    task.add_argument("--task", metavar="NAME", help="score the models on this task; tessera tasks lists them")
    meaning = "make examples of these lengths (default: the task's, or that of the run's training)"
    task.add_argument("--lengths", nargs="+", type=positive_int, help=meaning)
    meaning = "change settings of the task, such as kind=qa2"
    task.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help=meaning)
    meaning = "score so many examples of each length (default: 256)"
    task.add_argument("--examples", type=num_examples, help=meaning)
    task.add_argument("--seed", type=seed, help="another seed draws other examples (default: 0)")
    harness = parser.add_argument_group("on tasks of lm-evaluation-harness")
    meaning = "the tasks, with commas between them, such as hellaswag,arc_easy"
    harness.add_argument("--tasks", metavar="NAMES", help=meaning)
    harness.add_argument("--include-path", metavar="DIR", help="also look for tasks in the YAML files of this folder")
    meaning = "put so many solved examples into each prompt (default: as the task does)"
    harness.add_argument("--num-fewshot", type=whole_number, help=meaning)
    harness.add_argument("--limit", type=positive_int, help="ask at most so many questions of each task (default: all)")
    meaning = "refuse prompts of more tokens, cut texts for perplexity to so many (default: what the model can read)"
    harness.add_argument("--max-length", type=positive_int, help=meaning)


# Which options belong to what is measured.
OPTIONS = {
    "text": ("data", "split", "context", "sequences", "plot", "average"),
    "--task": ("lengths", "set", "examples", "seed"),
    "--tasks": ("include_path", "num_fewshot", "limit", "max_length"),
}


def run(arguments: argparse.Namespace) -> int:
    """Evaluate all models, then print and draw."""
    from tessera.evaluation import display
    from tessera.evaluation.display import is_figure

    expect(not (arguments.task and arguments.tasks), "eval", "--task", "be left out with --tasks", arguments.task)
    chosen = "--task" if arguments.task else "--tasks" if arguments.tasks else "text"
    if chosen == "text" and arguments.data is None:
        arguments.task = _own_task(arguments.models)
        chosen = "--task" if arguments.task else chosen
    for kind in OPTIONS.keys() - {chosen}:
        refuse_options(arguments, "eval", OPTIONS[kind], f"with {chosen}" if kind == "text" else f"without {kind}")
    expect(arguments.average is None or arguments.plot, "eval", "--plot", "name a file for --average", "none")
    expect_output(arguments.plot, "eval", "--plot", is_figure, "a figure")
    expect(chosen != "text" or arguments.output is None, "eval", "--output", "come with --task or --tasks", "a text")
    hold_output(arguments, "eval", "output")
    rows: list[dict] = []
    measure, print_in_words = {
        "text": (_on_text, display.print_text_reports),
        "--task": (_on_task, display.print_task_reports),
        "--tasks": (_on_harness, display.print_harness_reports),
    }[chosen]

    def report(folder: str) -> dict:
        numbers = measure(folder, arguments)
        rows.extend({"model": folder, **row} for row in numbers.pop("samples", ()))
        return {"model": folder, **numbers}

    reports, status = of_each(arguments.models, report)
    if arguments.plot and reports:
        display.draw_text_reports(reports, arguments.plot, arguments.average)
    write_json_lines(arguments.output, rows)
    if reports:
        (display.print_json if arguments.json else print_in_words)(reports)
    return status


def _own_task(folders: list[str]) -> str | None:
    """The task of questions that all these runs were trained on, if any was; None where they read text."""
    from tessera.training.run_data import trained_task

    trained = [trained_task(folder) for folder in folders]
    names = [None if questions is None else str(questions.settings["name"]) for questions in trained]
    kinds = ", ".join(sorted({name or "text" for name in names}))
    expect(len(set(names)) == 1, "eval", "models", "be trained on one kind, or --data or --task be given", kinds)
    return names[0]


def _on_text(folder: str, arguments: argparse.Namespace) -> dict:
    from tessera.evaluation.loss import evaluate_text
    from tessera.models.saving.loading import load_tokenizer
    from tessera.models.transformer import context_limit
    from tessera.training.run_data import evaluation_text

    model, long_term_memory = measured_model(folder, arguments)
    longest = context_limit(model.config)
    text = evaluation_text(folder, arguments.data, split=arguments.split, context=arguments.context, longest=longest)
    options = {"sequences": arguments.sequences, "batch_size": arguments.batch_size, "precision": arguments.precision}
    return {"long_term_memory": long_term_memory, **evaluate_text(model, load_tokenizer(folder), text, **options)}


def _on_task(folder: str, arguments: argparse.Namespace) -> dict:
    from tessera.evaluation.task_scores import expect_tokens_of, make_task, task_report
    from tessera.models.saving.loading import load_tokenizer
    from tessera.tasks.question_answering import QuestionTask
    from tessera.training.run_data import trained_task

    trained, lengths = trained_task(folder), arguments.lengths
    if trained is None or trained.settings["name"] != arguments.task:
        task = make_task(arguments.task, arguments.set)
    else:  # as the run was trained on it, unless --set says otherwise
        task, lengths = make_task(arguments.task, arguments.set, trained.settings), lengths or [trained.longest]
    if isinstance(task, QuestionTask):
        expect_tokens_of(task, load_tokenizer(folder), arguments.task)
    model, long_term_memory = measured_model(folder, arguments)
    options = {name: getattr(arguments, name) for name in ("batch_size", "precision")}
    options |= {"examples": arguments.examples or 256, "seed": arguments.seed or 0}
    rows: list[dict] | None = None if arguments.output is None else []
    report = task_report(model, arguments.task, task, lengths, rows=rows, **options)
    return {"long_term_memory": long_term_memory, **report, "samples": rows or ()}


def _on_harness(folder: str, arguments: argparse.Namespace) -> dict:
    expect_harness("eval --tasks")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    from tessera.base.precision import resolve_precision
    from tessera.evaluation.harness import TesseraLM, expect_tasks, harness_report

    names = [name for name in arguments.tasks.split(",") if name]
    expect_tasks(names, arguments.include_path)
    dtype = {"bf16": "bfloat16", "fp32": "float32"}[resolve_precision(arguments.precision)]
    switch = "off" if arguments.without_long_term_memory else "on"
    options = {"batch_size": arguments.batch_size, "max_length": arguments.max_length, "dtype": dtype}
    model = TesseraLM(folder, long_term_memory=switch, **options)
    settings = {name: getattr(arguments, name) for name in ("include_path", "limit", "num_fewshot")}
    return harness_report(model, names, samples=arguments.output is not None, **settings)
