"""Reading long texts: tokens per second and memory by length, of ARMT and of what it could be replaced by.

    python -m benchmarks.reading [--reference CHECKOUT --reference-python VENV/bin/python]

ARMT around GPT-2 (4 layers, segments of 512, 10 memory tokens, memory width 64) reads one text, and eight side by side;
GPT-2 reads the same in windows of 1,024 tokens that move by 512; Mamba (that of the BABILong experiment) the whole text
in one call. None computes logits, all choose their precision themselves. The published ARMT joins in where its checkout
is given (see `benchmarks.armt`); it has no reading without logits. Weights are by chance. Each is a process of its own;
what would take longer or more memory than the limits, by what it took at the length before, is left out and says so.

`cost_per_token` sets the longest reading's median chunk of 10,240 tokens against readings of such a text alone, half of
them before it and half after.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

from benchmarks.armt import Process
from benchmarks.armt_side import CHUNK, LAYERS, MEMORY_DIM, MEMORY_TOKENS, SEGMENT, TEXTS
from tessera.base.files import write_text_atomically
from tessera.base.precision import resolve_precision
from tessera.evaluation.provenance import provenance
from tessera.papers.tables import markdown

LENGTHS = (CHUNK, 10 * CHUNK, 100 * CHUNK)
# Row -> (process, work, texts).
ROWS = {
    "ARMT": ("armt", "reading", 1),
    f"ARMT, {TEXTS} texts": ("armt", "texts", TEXTS),
    "GPT-2, sliding window": ("gpt2", "sliding", 1),
    "Mamba": ("mamba", "whole", 1),
    "published ARMT, with logits": ("reference", "logits", 1),
}
SLACK_MB = 100.0  # what the first calls take once
SHORT_READINGS = 8  # before the longest, and after it


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", help="checkout of the published code")
    parser.add_argument("--reference-python", default=sys.executable, help="Python with transformers 4.40.2")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS), help="tokens of a text")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--repetitions", type=int, default=3, help="of the shortest length; others are read once")
    parser.add_argument("--most-seconds", type=float, default=100.0, help="of one reading")
    parser.add_argument("--most-mb", type=float, default=4096.0, help="of one process")
    parser.add_argument("--out", type=Path, default=Path("results/armt/reading.json"))
    options = parser.parse_args()
    lengths = sorted(options.lengths)
    sizes = ["--width", str(options.width), "--vocabulary", str(options.vocabulary)]
    sides = {name: Process(sys.executable, ["--model", name, *sizes]) for name in ("armt", "gpt2", "mamba")}
    if options.reference:
        sides["reference"] = Process(options.reference_python, ["--reference", options.reference, *sizes])
    for side, work, _ in ROWS.values():
        if side in sides:
            sides[side].ask(work, 2 * SEGMENT)
    rows = {name: {} for name, (side, _, _) in ROWS.items() if side in sides}
    short = []
    for length in lengths:
        for name, of_row in rows.items():
            side, work, texts = ROWS[name]
            is_longest = name == "ARMT" and length == lengths[-1] >= 2 * CHUNK
            if is_longest:
                short += [sides["armt"].ask("reading", CHUNK) for _ in range(SHORT_READINGS)]
            before = next(reversed(of_row.items()), None)
            of_row[length] = measured(sides[side], work, texts, length, before, options, length == lengths[0])
            if is_longest:
                short += [sides["armt"].ask("reading", CHUNK) for _ in range(SHORT_READINGS)]
            print(f"{name}, {length:,}: {shown(of_row[length])}", file=sys.stderr, flush=True)
    result = {
        "precision": resolve_precision("auto", "cpu"),
        "threads": sides["armt"].ready["threads"],
        "resident_mb_before_reading": {name: side.ready["peak_mb"] for name, side in sides.items()},
        "readings": rows,
        "cost_per_token": cost_per_token(rows["ARMT"][lengths[-1]], short),
    }
    configuration = {"lengths": lengths, "width": options.width, "layers": LAYERS, "vocabulary": options.vocabulary}
    configuration |= {"segment": SEGMENT, "memory_tokens": MEMORY_TOKENS, "memory_dim": MEMORY_DIM}
    result["provenance"] = provenance(configuration=configuration)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(options.out, json.dumps(result, indent=1) + "\n")
    headings = ["tokens per second, peak memory", *(f"{length:,}" for length in lengths)]
    print(markdown(headings, [[name, *map(shown, of_row.values())] for name, of_row in rows.items()]))
    print(json.dumps(result["cost_per_token"]))


def measured(
    side: Process,
    work: str,
    texts: int,
    length: int,
    before: tuple[int, dict] | None,
    options: argparse.Namespace,
    is_shortest: bool,
) -> dict:
    """The median of a few readings; or why there is none, by the reading of a shorter text `before`."""
    reason = left_out(side, length, before, options)
    if reason:
        return {"left_out": reason}
    answers = [side.ask(work, length) for _ in range(options.repetitions if is_shortest else 1)]
    seconds = statistics.median(answer["seconds"] for answer in answers)
    return {
        "seconds": seconds,
        "tokens_per_second": texts * length / seconds,
        "peak_mb": max(answer["peak_mb"] for answer in answers),
        "all": [round(answer["seconds"], 4) for answer in answers],
        "chunks": [round(one, 5) for one in answers[0].get("chunks", [])],
    }


def left_out(side: Process, length: int, before: tuple[int, dict] | None, options: argparse.Namespace) -> str:
    """Why a length is not read, "" if it is: time and memory beyond the resting process grow with the length."""
    if before is None:
        return ""
    shorter, row = before
    if "left_out" in row:
        return row["left_out"]
    times, resting = length / shorter, side.ready["peak_mb"]
    seconds, megabytes = times * row["seconds"], resting + times * max(0.0, row["peak_mb"] - resting - SLACK_MB)
    if seconds > options.most_seconds:
        return f"would take {seconds:.0f} s"
    return f"would take {megabytes:,.0f} MB" if megabytes > options.most_mb else ""


def cost_per_token(longest: dict, short: list[dict]) -> dict:
    """Microseconds per token of the longest reading and of short ones, medians over chunks of the same size."""
    chunks = longest.get("chunks", [])
    if not chunks or not short:
        return {}
    tenth = max(1, len(chunks) // 10)
    alone = statistics.median(answer["seconds"] for answer in short)
    return {
        "short": 1e6 * alone / CHUNK,
        "long": 1e6 * statistics.median(chunks) / CHUNK,
        "ratio": statistics.median(chunks) / alone,
        "last_tenth_to_first_tenth": statistics.median(chunks[-tenth:]) / statistics.median(chunks[:tenth]),
    }


def shown(row: dict) -> str:
    """A cell."""
    return row.get("left_out") or f"{row['tokens_per_second']:,.0f}/s, {row['peak_mb']:,.0f} MB"


if __name__ == "__main__":
    main()
