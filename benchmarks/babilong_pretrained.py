"""BABILong asked of a pretrained model as it is: samples as text, a few stories with their answers before each.

    tessera models get smollm2 --output smollm2
    OMP_NUM_THREADS=1 python -m benchmarks.babilong_pretrained smollm2 --out results/pretrained/babilong.json

Noise is the bundled test books, stories are as long as bAbI's as far as they fit into a fifth of a sample; every sample
has its own story, and its own place in the books. Samples are written as the benchmark's files, and scored
as `tessera ask MODEL --samples` scores them. What is killed goes on behind the last file that was scored.
"""

import argparse
import json
import math
import tempfile
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

from tessera.base.files import write_text_atomically
from tessera.evaluation.provenance import provenance
from tessera.generation.sampling import Sampling
from tessera.models.saving.loading import load_model, load_tokenizer
from tessera.papers.babilong.asking import score_samples
from tessera.papers.babilong.stories import LENGTHS
from tessera.papers.babilong.task import BABILong

SEED = 1
SAMPLING = Sampling(max_new_tokens=15, temperature=0.0)


def rows_of(task: BABILong, tokenizer: Any, texts: int) -> list[dict[str, str]]:
    """Samples of the test split as rows of the benchmark's files."""
    samples = islice(task.samples(SEED, "test"), texts)
    return [
        {
            "input": tokenizer.decode(sample.context.tokens()),
            "question": sample.question.text,
            "target": sample.question.answer,
        }
        for sample in samples
    ]


def per_cent(flags: list[bool]) -> dict[str, float]:
    """Mean and its standard error over texts."""
    share = sum(flags) / len(flags)
    return {"mean": 100 * share, "standard_error": 100 * math.sqrt(share * (1 - share) / max(1, len(flags) - 1))}


def main() -> None:
    """Score what is not in --out yet; print a line for each file of samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a causal language model with its tokenizer")
    parser.add_argument("--kinds", nargs="+", default=list(LENGTHS), choices=list(LENGTHS))
    parser.add_argument("--lengths", nargs="+", type=int, default=[512, 1024, 2048], help="tokens of a sample")
    parser.add_argument("--shots", nargs="+", type=int, default=[0, 2], help="stories before a sample")
    parser.add_argument("--texts", type=int, default=24, help="for each kind and length (default: 24)")
    parser.add_argument("--out", type=Path, required=True, help="a JSON file for what came out")
    arguments = parser.parse_args()
    model, tokenizer, began = load_model(arguments.model), load_tokenizer(arguments.model), time.perf_counter()
    record = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"texts": arguments.texts}
    if record["texts"] != arguments.texts:
        parser.error(f"{arguments.out} was made with --texts {record['texts']}")
    cases = record.setdefault("cases", {})
    for length in arguments.lengths:
        for kind in arguments.kinds:
            task = BABILong(kind, length=length, tokenizer=arguments.model, test_noise="test_books")
            rows = rows_of(task, tokenizer, arguments.texts)
            for shots in arguments.shots:
                label = f"{kind}, {length} tokens, {shots} shots"
                if label not in cases:
                    with tempfile.TemporaryDirectory() as folder:
                        file = Path(folder, f"{kind}.json")
                        file.write_text(json.dumps(rows))
                        start = time.process_time()
                        scored, _ = score_samples(model, tokenizer, file, SAMPLING, shots)
                        seconds = time.process_time() - start
                    most_frequent = max(Counter(row["target"] for row in rows).values())
                    cases[label] = {
                        "exact_match": per_cent([row["exact_match"] for row in scored]),
                        "published_match": per_cent([row["published_match"] for row in scored]),
                        "always_the_most_frequent_answer": 100 * most_frequent / len(rows),
                        "cpu_seconds_per_text": seconds / len(rows),
                        "answers": [[row["target"], row["answer"]] for row in scored],
                    }
                    record["provenance"] = provenance(seed=SEED, wall_seconds=time.perf_counter() - began)
                    write_text_atomically(arguments.out, json.dumps(record, indent=1) + "\n")
                case = cases[label]
                exact, published = (
                    "{mean:3.0f} ± {standard_error:.0f}".format(**case[name])
                    for name in ("exact_match", "published_match")
                )
                print(
                    f"{label:<28} exact match {exact}, benchmark's rule {published}, always the most frequent answer "
                    f"{case['always_the_most_frequent_answer']:.0f} %; {case['cpu_seconds_per_text']:.1f} s a text",
                    flush=True,
                )


if __name__ == "__main__":
    main()
