"""ARMT on language: does what a memory keeps of earlier segments lower the loss of later ones?

The figure of the ARMT paper's appendix on language, on stories, and on novels.
"""

from typing import Any

from tessera.papers.armt_language import report
from tessera.papers.armt_language.settings import MODELS, SegmentSettings, plan
from tessera.papers.armt_language.training import train_and_measure
from tessera.papers.catalogue import LIBRARY
from tessera.papers.experiment import Experiment, Run, RunContext


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Train the base unless another run has, train what starts from it, then measure."""
    return train_and_measure(run.configuration, context)


EXPERIMENT = Experiment(
    LIBRARY["armt_language"],
    settings=SegmentSettings,
    plan=plan,
    execute=execute,
    tables=report.tables,
    plot=report.plot,
    models=MODELS,
    published="The published trainings are recipes: `tessera train gpt2-wikitext-103`, then `armt-wikitext-103`.",
)
