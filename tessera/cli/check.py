"""Check that a model gives the same logits however a text is cut, padded, batched, copied or reordered.

MODEL: any causal language model of transformers, or a run. Texts have 24 tokens, then more than its windows, spans,
chunks and segments. Exit status 1 if a law does not hold.
"""

import argparse
import json
from dataclasses import asdict

from tessera.base.errors import expect
from tessera.cli.options import real


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera check`."""
    add = parser.add_argument
    add("model", help="folder of a model or a run")
    meaning = "the largest difference that still counts as equal, as a share of the largest logit (default: 1e-4)"
    add("--allowed", type=real(0.0), help=meaning)
    add("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Try every law and print what came."""
    from tessera.models.saving.loading import load_model
    from tessera.testing.state_laws import check_state

    model = load_model(arguments.model)
    findings = check_state(model, arguments.allowed)
    tried = [finding for finding in findings if not finding.note.startswith("not tried")]
    expect(bool(tried), "check", "the model", "return a state", f"{type(model).__name__}, of which no law can be tried")
    failed = [finding for finding in tried if not finding.holds]
    if arguments.json:
        print(json.dumps([{**asdict(finding), "holds": finding.holds} for finding in findings], indent=1))
        return bool(failed)
    for finding in findings:
        error = finding.note if finding.error is None else f"{finding.error:.1e}"
        verdict = "holds" if finding.holds else "FAILS" if finding in failed else "-"
        print(f"{finding.law:<46}{verdict:<7}{error}")
    return bool(failed)
