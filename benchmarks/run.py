"""`make bench`: every speed benchmark of a CPU, one after the other, into results/.

    python -m benchmarks.run [--reference-mosaics PATH] [--reference-armt PATH --armt-python PATH]

Each is a command of its own (its docstring says which), so that one that fails leaves the others standing. The
published code joins in where its checkout is given; ARMT's benchmark needs it. All of them take about an hour.
"""

import argparse
import subprocess
import sys

BENCHMARKS = ("language_models", "kernels", "v2", "armt", "reading")


def main() -> int:
    """Run them; exit status 1 when one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS))
    parser.add_argument("--reference-mosaics", help="a checkout of facebookresearch/MemoryMosaics")
    parser.add_argument("--reference-armt", help="a checkout of RodkinIvan/associative-recurrent-memory-transformer")
    parser.add_argument("--armt-python", help="a Python with transformers 4.40, which that code needs")
    arguments = parser.parse_args()
    options = {"language_models": ["--out", "results/language_models/cpu.json"]}
    if arguments.reference_mosaics:
        options["language_models"] += ["--reference", arguments.reference_mosaics]
    if arguments.reference_armt:
        python = arguments.armt_python or sys.executable
        options["armt"] = ["--reference", arguments.reference_armt, "--reference-python", python]
        options["reading"] = options["armt"]
    failed = []
    for name in arguments.only:
        print(f"=== {name}", flush=True)
        if name == "armt" and not arguments.reference_armt:
            print("left out: it compares with the published code (--reference-armt, --armt-python)")
            continue
        command = [sys.executable, "-m", f"benchmarks.{name}", *options.get(name, [])]
        if subprocess.run(command).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
