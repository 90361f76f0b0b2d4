"""BABILong beyond the longest texts of `tessera reproduce babilong`: a memory reads more of the unseen books.

    tessera reproduce babilong --models armt_mosaic_unseen --seeds 1 --only "armt_mosaic_unseen/qa1/*"
    OMP_NUM_THREADS=1 python -m benchmarks.babilong_millions --out results/millions/babilong.json
    OMP_NUM_THREADS=1 python -m benchmarks.babilong_millions --model mosaic_unseen --tokens 262144 --together 1 --out F

The training of that command is used, and gone on with where it is not done; texts are drawn and asked as it draws and
asks them. A mosaic that keeps every pair reads through an index where its kernel is compact and its pairs are many. A
text that is longer than the bundled books reads them again: the record says how often. Some texts are read
side by side and stored when all of them are answered: what is killed goes on behind the last that was stored.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from transformers import PreTrainedModel

from tessera.base.files import write_text_atomically
from tessera.evaluation.provenance import provenance
from tessera.evaluation.questions import right_answers
from tessera.papers.babilong.run import (
    MODELS,
    PUBLISHED_SHARE,
    UNSEEN,
    WHOLE_UNSEEN,
    BabilongSettings,
    read_as_tested,
)
from tessera.papers.babilong.sample import RESERVED
from tessera.papers.babilong.task import BABILong
from tessera.papers.experiment import EXPERIMENTS, Run, RunSelection
from tessera.papers.runner import Job
from tessera.recall import PairIndex, Recall
from tessera.recipes.sections import Stage
from tessera.tasks.question_answering import question_task
from tessera.tasks.task import estimate
from tessera.training.fit import train_recipe_stages
from tessera.training.initial_model import starting_model
from tessera.training.staged_data import StagedQuestions

TRAININGS = Path("runs/reproduce/babilong")
CHOICES = [name for name in MODELS if name.startswith(("armt", WHOLE_UNSEEN))]


@contextmanager
def counted_reading() -> Iterator[dict[str, int]]:
    """Of queries (of a layer and head) that an index answers: how many, the pairs that they read and that there are."""
    counts = {"queries": 0, "pairs_read": 0, "pairs": 0}
    recall = PairIndex.recall

    def counted(index: PairIndex, queries: torch.Tensor, **options: Any) -> Recall:
        answer = recall(index, queries, **options)
        counts["queries"] += answer.certificate.pairs_read.numel()
        counts["pairs_read"] += int(answer.certificate.pairs_read.sum())
        counts["pairs"] += len(index) * answer.certificate.pairs_read.numel()
        return answer

    with patch.object(PairIndex, "recall", counted):
        yield counts


def main() -> None:
    """Ask what is not in --out yet; print the share of right answers after each group of texts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=UNSEEN, choices=CHOICES)
    parser.add_argument("--kind", default="qa1", help="of questions (default: qa1)")
    parser.add_argument("--seed", type=int, help="of the training (default: the model's first)")
    parser.add_argument("--budget", default="cpu", help="of the training (default: cpu)")
    parser.add_argument("--trainings", type=Path, default=TRAININGS, help=f"their folder (default: {TRAININGS})")
    parser.add_argument("--tokens", type=int, default=10_000_000, help="of a text (default: ten millions)")
    parser.add_argument("--texts", type=int, default=4, help="(default: 4)")
    parser.add_argument("--together", type=int, default=4, help="texts that are read side by side (default: 4)")
    parser.add_argument("--out", type=Path, required=True, help="a JSON file for what came out")
    arguments = parser.parse_args()
    run = planned(parser, arguments)
    model, data = trained(run, arguments.trainings / arguments.budget)
    ask(run, model, data, arguments)


def planned(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Run:
    """The run of `tessera reproduce babilong` that the arguments name."""
    seed = MODELS[arguments.model].first_seed if arguments.seed is None else arguments.seed
    wanted = f"{arguments.model}/{arguments.kind}/seed {seed}"
    seeds = max(1, 1 + seed - MODELS[arguments.model].first_seed)
    runs = EXPERIMENTS["babilong"].runs(RunSelection(arguments.budget, seeds=seeds, models=(arguments.model,)))
    run = next((run for run in runs if run.key == wanted), None)
    if run is None:
        parser.error(f"--kind and --seed must be of a run of `tessera reproduce babilong`; got {wanted}")
    return run


def trained(run: Run, trainings: Path) -> tuple[PreTrainedModel, StagedQuestions]:
    """The model of a planned run and what draws its texts; a training that is not done goes on."""
    settings: BabilongSettings = run.configuration
    recipe = settings.read_recipe()
    data = StagedQuestions(recipe, settings.context, question_task(recipe.data.task or {}))
    torch.manual_seed(settings.seed)
    longest = max(stage.length for stage in recipe.training.curriculum) * settings.context
    model = starting_model(recipe, data.tokenizer, context=longest)
    folder = Job("babilong", trainings).folder(run)
    train_recipe_stages(model, recipe, data, folder, lambda share, note: print(f"{share:.1%}: {note}", flush=True))
    read_as_tested(model, settings.model, data)
    return model, data


def ask(run: Run, model: PreTrainedModel, data: StagedQuestions, arguments: argparse.Namespace) -> None:
    """Read the texts that are not stored yet, and store what was answered after each group of them."""
    seed, segments = run.configuration.seed, -(-arguments.tokens // run.configuration.context)
    tokens = segments * run.configuration.context
    key = f"{run.key}/{tokens} tokens"
    stored = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    before = stored[key] if "asked" in stored.get(key, {}) else {}  # earlier versions did not count the questions
    shares, asked, sources, seconds, indexed = (
        before.get(name, []) for name in ("shares", "asked", "books", "seconds", "through_the_index")
    )
    stage = Stage(segments, 1, settings={"fewest_facts": None, "facts_share": PUBLISHED_SHARE})
    assert isinstance(data.task, BABILong)
    of_books = sum(len(book.tokens) for book in data.task.books("test"))
    for first in range(len(shares), arguments.texts, arguments.together):
        count, began = min(arguments.together, arguments.texts - first), time.perf_counter()
        drawn = data.batch(stage, count, tokens - RESERVED, 1_000_000 * seed + first, "test")
        assert drawn.sources is not None
        with counted_reading() as reading:
            shares += right_answers(model, drawn).tolist()
        asked += drawn.counts.sum(1).tolist()  # a story answers few questions
        sources += drawn.sources.tolist()
        seconds.append(time.perf_counter() - began)
        indexed.append(reading)
        mean, error, _ = estimate(torch.tensor(shares), torch.tensor(sources))  # texts of one book are not independent
        stored[key] = {
            "exact_match": mean,
            "standard_error": None if math.isnan(error) else error,
            "shares": shares,
            "books": sources,
            "asked": asked,
            "times_that_the_books_are_read": tokens / of_books,
            "side_by_side": arguments.together,
            "seconds": seconds,
            "through_the_index": indexed,
            "provenance": provenance(seed=seed, wall_seconds=sum(seconds)),
        }
        write_text_atomically(arguments.out, json.dumps(stored, indent=1) + "\n")
        print(f"{key}: {100 * mean:.1f} ± {100 * error:.1f} %, {len(shares)} texts, {sum(seconds):.0f} s", flush=True)


if __name__ == "__main__":
    main()
