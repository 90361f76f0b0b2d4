"""On a GPU: check every Triton implementation, compare its speed with other code, write results/gpu/*.json.

    python -m benchmarks.gpu                          # everything that results/gpu lacks, for at most nine minutes
    python -m benchmarks.gpu --stages correct,entmax  # some stages
    python -m benchmarks.gpu --dry-run                # every stage at tiny sizes on a CPU, in Triton's interpreter

One case after the other; each is written when it is done, and what the files hold already is not measured again
(`--again` does). A case is timed only after its operation was compared with the float64 reference in the same process.
Times are medians by device events; what is compared runs in turns; ratios are within one case.
"""

import argparse
import importlib
import json
import os
import sys
import tempfile
import time
from fnmatch import fnmatch
from pathlib import Path

from tessera.base.files import write_text_atomically

STAGES = ("correct", "attention", "entmax", "averages", "tiles", "training", "decoding", "armt", "reproduce")


def main() -> int:
    """Run the chosen stages; 0: all their cases are done, 1: some failed or are left, 2: no GPU."""
    arguments = parse()
    if arguments.dry_run:
        # Before triton is imported, or its kernels would be compiled for a GPU.
        os.environ["TRITON_INTERPRET"] = "1"
    import torch

    if not arguments.dry_run and not torch.cuda.is_available():
        print("benchmarks.gpu: needs a CUDA device, and torch sees none (--dry-run runs every stage on the CPU).")
        return 2
    from benchmarks.gpu_stages.settings import Settings

    settings = Settings.of(dry=arguments.dry_run)
    end = time.monotonic() + 60 * arguments.minutes
    complete = True
    for name in arguments.stages:
        module = importlib.import_module(f"benchmarks.gpu_stages.{name}")
        complete &= run_stage(name, module.cases(settings), arguments, end)
    return 0 if complete else 1


def run_stage(name: str, cases: dict, arguments: argparse.Namespace, end: float) -> bool:
    """Measure the cases that the stage's file lacks, until the time is up; whether none is missing afterwards."""
    from tessera.evaluation.provenance import provenance

    path = arguments.out / f"{name}.json"
    stored = json.loads(path.read_text()) if path.exists() and not arguments.again else {"cases": {}}
    for case, measure in cases.items():
        if not fnmatch(case, arguments.only):
            continue
        if "failed" not in stored["cases"].get(case, {"failed": "not measured"}):
            continue
        if time.monotonic() > end:
            print(f"{name}: time is up; left: {', '.join(c for c in cases if c not in stored['cases'])}")
            break
        began = time.monotonic()
        stored["cases"][case] = outcome(measure)
        stored["provenance"] = provenance(
            seed=0, command=f"python -m benchmarks.gpu --stages {name}", wall_seconds=time.monotonic() - began
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(path, json.dumps(stored, indent=1) + "\n")
        print(f"{name} / {case} ({time.monotonic() - began:.1f} s): {short(stored['cases'][case])}", flush=True)
    return all("failed" not in stored["cases"].get(case, {"failed": ""}) for case in cases)


def outcome(measure) -> dict:
    """What `measure` returns, or the error that stopped it: one broken case must not cost the others their turn."""
    try:
        return measure()
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"[:500]}
    finally:
        import torch

        torch.cuda.empty_cache()


def short(result: dict) -> str:
    """One line of a result: its plain numbers."""
    shown = {key: value for key, value in result.items() if not isinstance(value, dict | list)}
    return ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in shown.items()
    )


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", default=",".join(STAGES), help="comma-separated (default: all, in this order)")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="the cases whose names fit, such as 'v1, *'")
    parser.add_argument("--minutes", type=float, default=9.0, help="start no further case after this long")
    parser.add_argument("--out", type=Path, help="folder of the results (default: results/gpu; dry run: a new one)")
    parser.add_argument("--again", action="store_true", help="measure what is there already as well")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU; the numbers mean nothing")
    arguments = parser.parse_args()
    arguments.stages = arguments.stages.split(",")
    unknown = [stage for stage in arguments.stages if stage not in STAGES]
    if unknown:
        parser.error(f"unknown stage {unknown[0]!r}; known: {', '.join(STAGES)}")
    if arguments.out is None:
        arguments.out = Path(tempfile.mkdtemp(prefix="gpu-dry-run-")) if arguments.dry_run else Path("results/gpu")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
