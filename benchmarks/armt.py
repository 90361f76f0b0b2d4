"""Speed and memory of ARMT against the published wrapper, in one run.

    python -m benchmarks.armt --reference CHECKOUT --reference-python VENV/bin/python

CHECKOUT is RodkinIvan/associative-recurrent-memory-transformer, VENV an environment with transformers 4.40.2 (later
ones do not run it). Both sides are processes of their own with the same weights, their logits are compared first, and
then they take turns. GPT-2 of 4 layers x 256, segments of 512 tokens, 10 memory tokens, memory width 64, float32; the
rows named bfloat16 have the products of both sides in bfloat16 (autocast) and are left out on a processor without
instructions for it. Without --reference only our side is measured, with the weights of --checkpoint.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors.torch import load_file

from tessera.base.files import write_text_atomically
from tessera.base.precision import has_fast_bfloat16
from tessera.evaluation.provenance import provenance

TRAIN, CHECK = 16 * 512, 3 * 512 + 100
LARGEST_DIFFERENCE = 1e-3  # float32 logits of order 1 after four segments; the golden files are compared in float64


class Process:
    """A side that answers one line at a time."""

    def __init__(self, python: str, arguments: list[str]):
        command = [python, str(Path(__file__).with_name("armt_side.py")), *arguments]
        # Started from its file, the script would see its folder's modules as packages of the same name.
        code = "import runpy, sys; sys.path.pop(0); runpy.run_path(sys.argv.pop(1), run_name='__main__')"
        self.pipe = subprocess.Popen(
            [python, "-W", "ignore", "-c", code, *command[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.ready = self._answer()

    def ask(self, *words: object) -> dict:
        """The answer to one line."""
        self.pipe.stdin.write(" ".join(map(str, words)) + "\n")
        self.pipe.stdin.flush()
        return self._answer()

    def _answer(self) -> dict:
        for line in self.pipe.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"benchmarks.armt: a side stopped with status {self.pipe.wait()}; its message is above.")


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", help="checkout of the published code")
    parser.add_argument("--reference-python", default=sys.executable, help="Python with transformers 4.40.2")
    parser.add_argument("--checkpoint", type=Path, help="weights to use without --reference (made by a run with it)")
    parser.add_argument("--vocabulary", type=int, default=4096, help="small enough for the published code's logits")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--read", type=int, default=65_536, help="tokens to read (default: 65,536)")
    parser.add_argument("--out", type=Path, default=Path("results/armt/speed.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = compare(options, Path(folder))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(options.out, json.dumps(result, indent=1) + "\n")
    print(json.dumps({name: row for name, row in result.items() if name != "provenance"}, indent=1))


def compare(options: argparse.Namespace, folder: Path) -> dict:
    """Start both sides, compare logits, take turns."""
    shared = ["--checkpoint", str(options.checkpoint or folder / "weights.safetensors")]
    shared += ["--vocabulary", str(options.vocabulary)]
    sides = {}
    if options.reference:
        sides["reference"] = Process(options.reference_python, [*shared, "--reference", options.reference])
    sides["tessera"] = Process(sys.executable, shared)
    files = {name: folder / f"{name}.safetensors" for name in sides}
    for name, side in sides.items():
        side.ask("logits", CHECK, files[name])
    logits = [load_file(file)["logits"] for file in files.values()]
    difference = float((logits[0] - logits[-1]).abs().max())
    if difference > LARGEST_DIFFERENCE:
        raise SystemExit(f"benchmarks.armt: the sides' logits differ by {difference:.2g}; speeds would mean nothing.")
    result = {"largest_difference_of_logits": difference, "threads": sides["tessera"].ready["threads"]}
    works = {"logits": options.read, "train": TRAIN}
    if has_fast_bfloat16("cpu"):  # a quarter of the text suffices for what is only an extra
        works |= {"logits_bfloat16": options.read // 4, "train_bfloat16": TRAIN}
    for work, tokens in works.items():
        result[work] = take_turns(sides, work, tokens, options.repetitions)
    result["memory"] = take_turns({"tessera": sides["tessera"]}, "memory", options.read, options.repetitions)
    if options.reference:
        result["memory"]["ratio_to_reference_logits"] = (
            result["logits"]["reference"]["seconds"] / result["memory"]["tessera"]["seconds"]
        )
    sizes = ["--width", "64", "--layers", "2", "--vocabulary", str(options.vocabulary)]
    small = Process(sys.executable, ["--model", "armt", *sizes])  # what grows with the text shows here too
    peaks = {tokens: small.ask("memory", tokens)["peak_mb"] for tokens in (100_000, 1_000_000)}
    result["peak_of_reading"] = {**peaks, "ratio": peaks[1_000_000] / peaks[100_000]}
    result["provenance"] = provenance(
        configuration={"vocabulary": options.vocabulary, "read": options.read, "train": TRAIN}
    )
    return result


def take_turns(sides: dict[str, Process], work: str, tokens: int, repetitions: int) -> dict:
    """Medians of each side, which alternate after a short warm-up."""
    answers = {name: [] for name in sides}
    for side in sides.values():
        side.ask(work, 1024)
    for _ in range(repetitions):
        for name, side in sides.items():
            answers[name].append(side.ask(work, tokens))
    row = {}
    for name, all_of in answers.items():
        seconds = statistics.median(answer["seconds"] for answer in all_of)
        spread = [round(answer["seconds"], 3) for answer in all_of]
        peak = max(answer["peak_mb"] for answer in all_of)
        # With one thread, processor time tells what a machine that does other things too cannot tell by the clock.
        cpu = statistics.median(answer["cpu_seconds"] for answer in all_of)
        row[name] = {"seconds": seconds, "tokens_per_second": tokens / seconds, "all": spread}
        row[name] |= {"cpu_seconds": cpu, "peak_mb": peak}
    if "reference" in row:
        row["speed_ratio"] = row["reference"]["seconds"] / row["tessera"]["seconds"]
        row["cpu_ratio"] = row["reference"]["cpu_seconds"] / row["tessera"]["cpu_seconds"]
        row["peak_ratio"] = row["tessera"]["peak_mb"] / row["reference"]["peak_mb"]
    return row


if __name__ == "__main__":
    main()
