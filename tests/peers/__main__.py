"""`python -m tests.peers`: other libraries' own tests on our models, and the table of docs/reliability.md.

Known failures (`by_design`) are printed with their reasons. Exit status 1 where another test fails, a listed one
passes, or a suite does not run to its end; 0 with one line where the package index does not answer. Names of suites
(transformers, peft, entmax) run those alone. `--quick`: a part of each, in under three minutes on two cores, which
writes nothing.
"""

import os
import re
import subprocess
import sys
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.peers import archive
from tests.peers.by_design import BY_DESIGN

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "reliability.md"
BEGIN, END = "<!-- made by make peers -->", "<!-- end of peers -->"
NAMES = {"V1Test": "v1", "V2Test": "v2", "LinearAttentionTest": "linear attention", "ARMTTest": "ARMT around GPT-2"}
NAMES |= {"RMTTest": "RMT around GPT-2", "PRMTTest": "PRMT around GPT-2"}
NAMES |= {"TestPeftOnV1": "v1", "TestPeftOnV2": "v2", "TestEntmax": "sparsemax, entmax"}
SUITES = ("transformers", "peft", "entmax")
SLOW = ("training_overfit", "bc_torch_dtype")  # half of all the time: `--quick` leaves them out
LIBRARIES = {"TestPeft": "peft", "TestEntmax": "entmax"}  # by the beginning of a suite's name; others: transformers


class Outcomes:
    """A pytest plugin: what became of every test, by its class; a test fails where any of its parts does."""

    def __init__(self) -> None:
        self.by_suite: dict[str, dict[str, str]] = defaultdict(dict)
        self.unread: set[str] = set()  # files whose tests cannot be collected

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """In this process or another one."""
        if report.failed:
            self.unread.add(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of three phases, and of sub-tests."""
        _, suite, test = report.nodeid.split("::")[:3]
        before = self.by_suite[suite].get(test)
        if report.failed or before == "failed":
            self.by_suite[suite][test] = "failed"
        elif report.skipped and not hasattr(report, "context"):  # a part that is skipped leaves the others
            self.by_suite[suite][test] = "skipped"
        elif report.when == "call" and before != "skipped":
            self.by_suite[suite][test] = "passed"


def main() -> int:
    """Fetch, run, compare, write."""
    try:
        archive.fetch()
    except subprocess.CalledProcessError:
        print("peers: skipped, the package index does not give the source archives.")
        return 0
    outcomes = Outcomes()
    options = ["-c", str(HERE / "pytest.ini"), "--rootdir", str(HERE.parents[1])]
    options += "-p no:cacheprovider -W ignore --import-mode=importlib --tb=short --show-capture=no -q".split()
    is_quick, names = "--quick" in sys.argv, [name for name in sys.argv[1:] if name != "--quick"]
    suites = [str(HERE / f"{name}_suite.py") for name in names or SUITES]
    if is_quick:
        os.environ["TESSERA_PEERS_QUICK"] = "1"
        options += ["-k", " and ".join(f"not {slow}" for slow in SLOW)]
    status = pytest.main([*options, "-n", str(min(4, os.cpu_count() or 1)), *suites], plugins=[outcomes])
    known, surprises = compared(outcomes.by_suite)
    print(f"{sum(map(len, known.values()))} known failures:" if known else "no known failure.")
    for reason, tests in known.items():
        print(f"  {reason}:", *(f"    {test}" for test in tests), sep="\n")
    surprises += [f"{name}: cannot be collected." for name in sorted(outcomes.unread)]
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        surprises.append(f"pytest did not run to its end: {pytest.ExitCode(status).name}.")
    for surprise in surprises:
        print(surprise)
    if not surprises and not is_quick:
        _write(outcomes.by_suite)
    return bool(surprises)


def compared(by_suite: dict[str, dict[str, str]]) -> tuple[dict[str, list[str]], list[str]]:
    """Known failures by their reason, and what is none: a sentence each."""
    known: dict[str, list[str]] = defaultdict(list)
    surprises = []
    for suite, results in sorted(by_suite.items()):
        for test, result in results.items():
            if result == "failed" and (reason := BY_DESIGN[suite].get(_listed_as(test))):
                known[reason].append(f"{suite}: {test}")
        failed = {_listed_as(test) for test, result in results.items() if result == "failed"}
        listed = set(BY_DESIGN[suite]) & {_listed_as(test) for test in results}
        surprises += [f"{suite}: {test} fails and is not listed." for test in sorted(failed - listed)]
        surprises += [f"{suite}: {test} is listed and passes." for test in sorted(listed - failed)]
    return known, surprises if by_suite else ["nothing ran."]


def _listed_as(test: str) -> str:
    """How `by_design` names a test: PEFT's by the method that they are given."""
    methods = re.findall(r"\w+Config(?=[-\]])", test)
    return f"PEFT's {methods[0].removesuffix('Config')}" if methods else test


def _write(by_suite: dict[str, dict[str, str]]) -> None:
    """Suites that did not run keep their rows."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    old, _, after = rest.partition(END)
    rows = ["| tests of | on | passed | skipped | by design |", "|---|---|---|---|---|"]
    reasons: dict[str, list[str]] = defaultdict(list)
    for suite, name in NAMES.items():
        library = next((LIBRARIES[start] for start in LIBRARIES if suite.startswith(start)), "transformers")
        if suite in by_suite:
            results = list(by_suite[suite].values())
            counts = [str(results.count(result)) for result in ("passed", "skipped", "failed")]
            rows.append(f"| {library} {version(library)} | {name} | {' | '.join(counts)} |")
        else:
            rows += [row for row in old.splitlines() if row.startswith(f"| {library} ") and f" | {name} | " in row]
        for test, reason in BY_DESIGN[suite].items():
            reasons[f"- `{test}`: {reason}."].append(name)
    lines = [f"{reason} ({', '.join(models)})" for reason, models in reasons.items()]
    table = "\n".join([BEGIN, *rows, "", "By design:", "", *lines, END])
    PAGE.write_text(before + table + after, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
