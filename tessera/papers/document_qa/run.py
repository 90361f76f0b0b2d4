"""Document questions: trained on short samples, asked about longer ones, tuned at a long one, asked again."""

from typing import Any

from transformers import PreTrainedModel

from tessera.models.sizes import num_parameters
from tessera.papers.catalogue import LIBRARY
from tessera.papers.document_qa import report
from tessera.papers.document_qa.settings import BUDGETS, MODELS, SEEDS, DocumentSettings
from tessera.papers.experiment import Experiment, Run, RunContext, RunSelection
from tessera.papers.task_stage import held_out_scores, small_model, train_stages


def plan(selection: RunSelection) -> list[Run]:
    """Seed by seed, all models of a seed."""
    seeds = range(selection.seeds or SEEDS[selection.budget])
    return [BUDGETS[selection.budget].run(name, seed) for seed in seeds for name in selection.models or MODELS]


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Train, test, tune and test; v2 each time once more with its long-term memories off."""
    settings = run.configuration
    vocab_size = settings.task_at(settings.length).vocab_size
    model = small_model(settings, settings.model, vocab_size=vocab_size, max_positions=16 * settings.span)
    model.to(context.device)

    def test(stage: str) -> dict[str, Any]:
        """The scores after a stage; none after the early ones."""
        lengths = {"training": settings.test_lengths, "tuning": settings.tuned_test_lengths}.get(stage)
        if lengths is None:
            return {}
        outcome = {"scores": _scores(model, settings, lengths, context)}
        if settings.model == "mosaic_v2":
            model.disable_long_term_memory()
            outcome["without_long_term_memory"] = _scores(model, settings, lengths, context)
            model.enable_long_term_memory()
        return outcome

    return {"parameters": num_parameters(model), **train_stages(model, settings.stages(), context, test)}


def _scores(
    model: PreTrainedModel, settings: DocumentSettings, lengths: tuple[int, ...], context: RunContext
) -> dict[str, list[float]]:
    """Length -> mean, standard error over samples and count of the share of right answers."""
    fewest, most = settings.test_samples
    scores = {}
    for length in lengths:
        count = max(fewest, min(most, settings.test_tokens // length))
        estimates = held_out_scores(model, settings.task_at(length), count, length, context.device)
        scores[str(length)] = list(estimates["exact_match"])
    return scores


# Memory Mosaics v2, tables 3, 4 and 7 at small size.
EXPERIMENT = Experiment(
    LIBRARY["document_qa"],
    settings=DocumentSettings,
    plan=plan,
    execute=execute,
    tables=report.tables,
    plot=report.plot,
    models=MODELS,
)
