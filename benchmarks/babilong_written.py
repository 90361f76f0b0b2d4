"""What a trained ARMT writes while it reads books without facts, and how many facts the borders of its segments cut.

    tessera reproduce babilong --models armt_mosaic_uncut --only "armt_mosaic_uncut/qa1/seed 33"
    OMP_NUM_THREADS=1 python -m benchmarks.babilong_written --model armt_mosaic_uncut --seed 33 --out F

Books and segments are those of the tests of `tessera reproduce babilong`; the books are the validation's unless
`--split test` is given. A text that is longer than they are reads them again.
"""

import argparse
import json
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import torch
from transformers import PreTrainedModel

from benchmarks.babilong_millions import TRAININGS, planned, trained
from tessera.base.files import write_text_atomically
from tessera.evaluation.provenance import provenance
from tessera.models.armt.modeling import ARMTState
from tessera.models.recurrence.segmented_input import SegmentCut
from tessera.models.recurrence.stream import parts_of
from tessera.papers.babilong.run import MODELS
from tessera.papers.babilong.sample import RESERVED, hide
from tessera.papers.babilong.task import BABILong
from tessera.training.staged_data import StagedQuestions

CONTEXTS, FACTS, LENGTH = 60, 20, 16_384


def main() -> None:
    """Add the record of a training to --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, choices=[name for name in MODELS if name.startswith("armt")])
    parser.add_argument("--kind", default="qa1", help="of questions (default: qa1)")
    parser.add_argument("--seed", type=int, help="of the training (default: the model's first)")
    parser.add_argument("--budget", default="cpu", help="of the training (default: cpu)")
    parser.add_argument("--trainings", type=Path, default=TRAININGS, help=f"their folder (default: {TRAININGS})")
    parser.add_argument("--split", default="validation", choices=["validation", "test"])
    parser.add_argument("--tokens", type=int, default=250_000, help="of books to read (default: 250,000)")
    parser.add_argument("--out", type=Path, required=True, help="a JSON file for what came out")
    arguments = parser.parse_args()
    run = planned(parser, arguments)
    model, data = trained(run, arguments.trainings / arguments.budget)
    task = data.task
    assert isinstance(task, BABILong)
    record: dict[str, Any] = {"cut_facts": cut_facts(model, task, arguments.split)}
    record |= written(model, data, arguments.split, arguments.tokens)
    record["provenance"] = provenance(seed=run.configuration.seed)
    stored = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    stored[f"{run.key}/{arguments.split}/{arguments.tokens} tokens"] = record
    write_text_atomically(arguments.out, json.dumps(stored, indent=1) + "\n")


def cut_facts(model: PreTrainedModel, task: BABILong, split: str) -> dict[str, int]:
    """How many of `of` facts in books the borders of the model's segments cut in two."""
    random, facts, books = Random("cut facts"), task.possible_facts(), task.books(split)
    cut, cut_in_two = SegmentCut.of(model.config), 0
    for _ in range(CONTEXTS):
        context = hide([random.choice(facts) for _ in range(FACTS)], books, LENGTH, random)
        borders = np.cumsum([len(part) for part in parts_of(context.tokens().tolist(), cut)])
        for end, fact in zip(context.fact_ends(), context.facts):
            cut_in_two += bool(((borders > end - len(fact)) & (borders < end)).any())
    return {"cut": cut_in_two, "of": CONTEXTS * FACTS}


@torch.no_grad()
def written(model: PreTrainedModel, data: StagedQuestions, split: str, tokens: int) -> dict[str, Any]:
    """The segments without facts that change an association matrix, by how much, and how large it is at the end.

    Lengths of matrices are Frobenius norms, a number for each layer.
    """
    task, cut = cast("BABILong", data.task), SegmentCut.of(model.config)
    context = hide((), task.books(split), tokens + RESERVED, Random("books alone"))
    memory, segments, changes = cast("ARMTState", model.empty_memory(1)), 0, []
    for part in parts_of(context.tokens().tolist(), cut):
        before, segments = memory, segments + 1
        memory = model(input_ids=torch.tensor([part]), memory_state=before, skip_logits=True).memory_state
        if (memory.A != before.A).any():
            change = (memory.A - before.A).flatten(1).norm(dim=1).tolist()
            changes.append({"segment": segments, "change": change, "text": data.tokenizer.decode(part)})
    return {"segments": segments, "written": changes, "length_at_the_end": memory.A.flatten(1).norm(dim=1).tolist()}


if __name__ == "__main__":
    main()
