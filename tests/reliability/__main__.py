"""`make torture`: the whole harness, and its table in docs/reliability.md.

python -m tests.reliability [--inputs 10000] [--kills 100] [--pairs 20] [--share 1.0] [--seed 0] [--page FILE]
Exits with 1 when a promise was broken; the causes are printed, each with the input that showed it first.
"""

import argparse
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from random import Random

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

from tessera.evaluation.provenance import commit, hardware
from tests.reliability.fuzz import FUZZERS
from tests.reliability.scenarios import kill_at_random, limit_files, scenarios, strike_everywhere, two_in_one_folder
from tests.reliability.verdict import Tally
from tests.reliability.workshop import make_workshop

# Of all inputs; loading a model or resuming a run costs a hundred times what reading a recipe does.
SHARES = {
    "recipes": 0.25,
    "stages": 0.05,
    "command_lines": 0.3,
    "configurations": 0.14,
    "files": 0.05,
    "memories": 0.1,
    "run_files": 0.01,
    "samples": 0.05,
    "calls": 0.05,
}
LIMITS = [10, 100, 1000, 3000, 10_000, 20_000]
MEMORY = 16 << 30  # bytes of address space: a huge number must not take the machine's memory
BEGIN, END = "<!-- made by make torture -->", "<!-- end -->"


def main() -> int:
    """Run everything, print the table, write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--share", type=float, default=1.0, help="of the file operations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", type=Path, default=Path("docs/reliability.md"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    began, tallies = time.time(), []
    with tempfile.TemporaryDirectory() as name:
        for tally in tortures(Path(name), arguments):
            print(
                f"{time.time() - began:6.0f} s  {tally.name}: {tally.tried:,} tried, {tally.failed:,} failed",
                flush=True,
            )
            tallies.append(tally)
    text = table(tallies, arguments.seed, time.time() - began)
    print("\n" + text + "\n" + "\n".join(tally.report() for tally in tallies if tally.failed))
    if arguments.page.is_file():
        before, rest = arguments.page.read_text(encoding="utf-8").split(BEGIN)
        arguments.page.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    return int(any(tally.failed for tally in tallies))


def tortures(folder: Path, arguments: argparse.Namespace):
    """One tally after another."""
    shop = make_workshop(folder / "shop")
    expected = shop.run / "model.safetensors"
    for name, fuzz in FUZZERS.items():
        place = folder / name
        place.mkdir()
        yield fuzz(shop, place, max(1, round(arguments.inputs * SHARES[name])), Random(f"{arguments.seed} {name}"))
    chance = Random(arguments.seed)
    yield from strike_everywhere(scenarios(shop, expected), folder / "work", arguments.share, chance)
    yield limit_files(scenarios(shop, expected), folder / "work", LIMITS)
    yield kill_at_random(shop, expected, folder / "work", arguments.kills, chance)
    yield two_in_one_folder(shop, expected, folder / "work", arguments.pairs, chance)


def table(tallies: list[Tally], seed: int, seconds: float) -> str:
    """Markdown."""
    rows = [tally.row() for tally in tallies]
    tried, failed, kinds = (sum(numbers) for numbers in zip(*((t.tried, t.failed, len(t.causes)) for t in tallies)))
    total = f"| all | {tried:,} | {failed:,} | {kinds} |"
    causes = [f"- {tally.name}: {cause}: {count}" for tally in tallies for cause, count in tally.causes.most_common()]
    machine = hardware()
    note = (
        f"Seed {seed}, {seconds / 60:.0f} minutes on {machine['cores']} cores of {machine['processor']}, "
        f"torch {torch.__version__}, Python {sys.version.split()[0]}, commit {(commit() or 'unknown')[:7]}."
    )
    head = ["| what | tried | failed | causes |", "|---|---|---|---|"]
    return "\n".join([*head, *rows, total, "", note, *(["", "Failed:", "", *causes] if causes else [])])


if __name__ == "__main__":
    sys.exit(main())
