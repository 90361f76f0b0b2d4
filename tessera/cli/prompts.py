"""Score models on prompts: classification from many examples, or questions about one of many documents.

Both come from the Memory Mosaics v2 paper. Classification (--files names the examples and the queries; Banking77 comes
with the library):
  tessera prompts runs/a runs/b --many-shot banking77 --shots 1 2 4
  tessera prompts runs/a --many-shot goemotions --files train.tsv test.tsv --shots 4 --anonymous
Questions about one of many documents (--files: SQuAD's or HotpotQA's file), in prompts of so many tokens:
  tessera prompts runs/a --documents squad --files dev-v1.1.json --lengths 4096 8192
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tessera.base.dataclass_io import to_json
from tessera.base.errors import TesseraError, did_you_mean, expect
from tessera.base.files import expect_plain_file
from tessera.cli.options import (
    add_measured_models,
    hold_output,
    measured_model,
    num_examples,
    of_each,
    positive_int,
    refuse_options,
    seed,
    write_json_lines,
)

# Of each kind of prompt. They are filled in late, so that an option of the other kind is noticed.
DEFAULTS: dict[str, dict[str, Any]] = {
    "many_shot": {"shots": [1, 2, 4], "anonymous": False, "contexts": 10, "queries": 10},
    "documents": {"lengths": [4096], "questions": 100},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera prompts`."""
    add = parser.add_argument
    add_measured_models(parser, "prompts")
    add("--files", nargs="+", type=Path, help="files of the data set; Banking77 comes with the library")
    add("--seed", type=seed, default=0, help="another seed draws other examples and questions (default: 0)")
    shots = parser.add_argument_group("many-shot classification")
    shots.add_argument("--many-shot", metavar="DATA", help="the data set: banking77 or goemotions")
    meaning = "show so many examples of each class (default: 1 2 4)"
    shots.add_argument("--shots", nargs="+", type=positive_int, help=meaning)
    meaning = 'call the classes "class 1", "class 2", ... so that their names tell nothing'
    shots.add_argument("--anonymous", action="store_true", help=meaning)
    meaning = "make so many prompts for each number of examples (default: 10)"
    shots.add_argument("--contexts", type=num_examples, help=meaning)
    shots.add_argument("--queries", type=num_examples, help="ask so many questions after each prompt (default: 10)")
    documents = parser.add_argument_group("questions about documents")
    documents.add_argument("--documents", metavar="DATA", help="the data set: squad or hotpotqa")
    meaning = "fill prompts with documents up to so many tokens (default: 4096)"
    documents.add_argument("--lengths", nargs="+", type=positive_int, help=meaning)
    documents.add_argument("--questions", type=num_examples, help="ask so many questions at each length (default: 100)")


def run(arguments: argparse.Namespace) -> int:
    """Check all models, then ask one after the other."""
    from tessera.models.saving.loading import load_config, load_tokenizer

    chosen = [name for name in ("many_shot", "documents") if getattr(arguments, name)]
    expect(len(chosen) == 1, "prompts", "--many-shot or --documents", "be given, one of them", chosen or "neither")
    for group in DEFAULTS.keys() - chosen:
        refuse_options(arguments, "prompts", DEFAULTS[group], "with --" + chosen[0].replace("_", "-"))
    for name, default in DEFAULTS[chosen[0]].items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, default)
    hold_output(arguments, "prompts", "output")
    for path in arguments.files or ():
        expect_plain_file(path, "prompts", "--files")
    measurement = (_many_shot if arguments.many_shot else _documents)(arguments)
    _, status = of_each(
        arguments.models,
        lambda folder: measurement.check(load_config(folder), load_tokenizer(folder), **measurement.options),
    )
    if status:
        return status
    rows: list[dict[str, Any]] = []
    reports, status = of_each(arguments.models, lambda folder: _report(folder, arguments, measurement, rows))
    if arguments.json:
        print(json.dumps(to_json(reports), indent=1, allow_nan=False))
    return status


class _Measurement(NamedTuple):
    """A data set, the options that are stored, what scores a model, and what checks one beforehand."""

    data: str
    options: dict[str, Any]
    measure: Callable[..., dict[str, Any]]
    check: Callable[..., None]


def _many_shot(arguments: argparse.Namespace) -> _Measurement:
    from tessera.papers.many_shot.prompting import LabelledTexts, expect_room, many_shot_scores
    from tessera.papers.many_shot.task import BANKING77, READERS, TEMPLATES, by_label, read_examples

    data, bundled = arguments.many_shot, [BANKING77 / "train.csv", BANKING77 / "test.csv"]
    files = bundled if arguments.files is None and data == "banking77" else arguments.files
    paths = _files(data, READERS, files, 2, "name two files, examples and queries")
    demonstrations, queries = (by_label(read_examples(data, path)) for path in paths)
    texts = LabelledTexts(demonstrations, queries, TEMPLATES[data])
    options = {name: getattr(arguments, name) for name in ("anonymous", "contexts", "queries", "batch_size", "seed")}
    settings = {"texts": texts, "shots": arguments.shots}
    return _Measurement(data, options, partial(many_shot_scores, **settings), partial(expect_room, **settings))


def _documents(arguments: argparse.Namespace) -> _Measurement:
    from tessera.papers.document_qa.prompting import READERS, document_scores, expect_room, read_questions

    data = arguments.documents
    (path,) = _files(data, READERS, arguments.files, 1, "name one file")
    options = {"questions": arguments.questions, "seed": arguments.seed}
    settings = {"file": read_questions(data, path), "lengths": arguments.lengths}
    return _Measurement(data, options, partial(document_scores, **settings), partial(expect_room, **settings))


def _files(data: str, known: Iterable[str], files: list[Path] | None, count: int, requirement: str) -> list[Path]:
    if data not in known:
        raise TesseraError(f"prompts: unknown data set {data!r}. {did_you_mean(data, known)}")
    got = "nothing" if files is None else " ".join(map(str, files))
    expect(files is not None and len(files) == count, "prompts", "--files", requirement, got)
    return files or []


def _report(
    folder: str, arguments: argparse.Namespace, measurement: _Measurement, rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """A JSON-ready record with scores, options and provenance, printed; `rows`, with its questions, are stored."""
    from tessera.evaluation.display import print_prompt_report
    from tessera.evaluation.provenance import provenance
    from tessera.models.saving.loading import load_tokenizer

    began = time.time()
    model, long_term_memory = measured_model(folder, arguments)
    own: list[dict[str, Any]] = []
    scores = measurement.measure(
        model, load_tokenizer(folder), **measurement.options, progress=sys.stderr.isatty(), rows=own
    )
    rows += [{"model": folder, **row} for row in own]
    configuration = {"model": model.config.to_diff_dict(), "data": measurement.data, "options": measurement.options}
    made_with = provenance(configuration=configuration, seed=arguments.seed, wall_seconds=time.time() - began)
    about = {"model": folder, "data": measurement.data, "long_term_memory": long_term_memory}
    report = {**about, "scores": scores, "provenance": made_with}
    if not arguments.json:
        print_prompt_report(report)
    write_json_lines(arguments.output, rows)
    return report
