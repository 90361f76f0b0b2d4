"""BABILong, trained by a curriculum and measured far past the trained length (ARMT, section 4).

Which recipe each run is trained by, the lengths that are measured, and what an ARMT writes of books and of facts.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tessera.evaluation.questions import right_answers
from tessera.models.adjusting import adjust_model
from tessera.models.armt.modeling import ARMTForCausalLM, ARMTState
from tessera.models.sizes import num_parameters
from tessera.papers.babilong.sample import RESERVED, Context, hide
from tessera.papers.babilong.stories import LENGTHS, PLAIN_FACT
from tessera.papers.babilong.task import BABILong
from tessera.papers.experiment import PAPER_KERNELS, Run, RunContext, RunSelection
from tessera.papers.recipe_settings import RecipeSettings
from tessera.recipes.recipe_files import SHIPPED, recipe_mapping
from tessera.recipes.sections import Stage
from tessera.tasks.question_answering import QuestionBatch, question_task
from tessera.tasks.task import estimate
from tessera.training.fit import train_recipe_stages
from tessera.training.initial_model import starting_model
from tessera.training.staged_data import StagedQuestions

RECIPES = Path(__file__).parent / "recipes"
QA1 = SHIPPED / "armt-babilong-qa1.yaml"
WHOLE_UNSEEN = "mosaic_unseen"
# The compact kernel of the first was the first that was tried on validation books.
WHOLE_UNSEEN_KERNELS = {WHOLE_UNSEEN: "biweight"} | {
    f"{WHOLE_UNSEEN}_{kernel}": kernel for kernel in ("gaussian", "sparsemax", "relumax", "gaussian_knn")
}
WHOLE_UNSEEN_V2 = f"{WHOLE_UNSEEN}_v2"
LAST_SEGMENT = "last_segment"
THRESHOLD = "armt_mosaic_threshold"
SHUT = "armt_mosaic_shut"
UNSEEN = "armt_mosaic_unseen"

# Around a Memory Mosaic, and what memory tokens alone have of it.
ARMT = recipe_mapping(QA1)["model"]
MEMORY_TOKENS = {key: value for key, value in ARMT.items() if key != "memory_dim"}
MOSAIC = ARMT["base"]
MOSAIC_V2 = {
    "type": "memory_mosaic_v2",
    "hidden_size": 128,
    "num_layers": 4,
    "num_heads": 4,
    "intermediate_size": 128,
    "short_term_span": 16,
    "long_term_delay": 4,
    "training_long_term_delay": [4, 16],
    "initializer_range": 128**-0.5,
    "tie_word_embeddings": True,
}
# Of width 120, so that ARMT has as many parameters as around a mosaic.
V2_BASE = {**MOSAIC_V2, "num_layers": 2, "hidden_size": 120, "intermediate_size": 120, "initializer_range": 120**-0.5}
TRANSFORMER = {"type": "transformer", "positions": "rope", "hidden_size": 128, "num_layers": 4, "num_heads": 4}
MAMBA = {"type": "mamba", "hidden_size": 128, "num_hidden_layers": 4, "state_size": 16}
AS_RECIPE = "as the recipe"
AROUND = "ARMT around a Memory Mosaic"
CHAINED = ("qa2", "qa3")  # with four layers, a context takes twice the time
SMALL = {
    **dict.fromkeys(("hidden_size", "intermediate_size", "num_persistent_slots"), 16),
    **dict.fromkeys(("num_memory_tokens", "batch_size", "questions", "evaluate_sequences"), 2),
    **{"memory_dim": 4, "vocab_size": 250},
}
READ_AT_ONCE = 1 << 22  # tokens of the contexts that are read side by side, segment by segment or the last alone
NOISE_SEGMENTS = 1024
PUBLISHED_SHARE = 0.2  # of facts in a sample, at most
WHOLE_AT_ONCE = 1 << 18  # by a model that reads the whole text, times its questions


class Model(NamedTuple):
    """A model that is compared.

    Attributes:
        label: in tables and figures. model: what is other in a recipe's section of the model; with a `type`, all of it.
            cost: of a run, in any unit. contexts: the fewest that are read of each length. recipes: kind of question ->
            file. first_seed: of its runs. test_noise: books of its tests, in place of its recipe's (`AS_RECIPE`); None:
            the test book of the others. longest_whole_text: segments of the longest sample in tests of a model that
            reads whole texts; None: it reads segments. test_tokens: at most so many, see `Budget`. sentence_ends:
            what segments of tests end behind; "": they are equally long.
    """

    label: str
    model: Mapping[str, Any] = {}
    cost: float = 1.0
    contexts: int = 4
    recipes: Mapping[str, Path] = {"qa1": QA1}
    first_seed: int = 0
    test_noise: str | None = AS_RECIPE
    longest_whole_text: int | None = None
    test_tokens: int = 1_000_000
    sentence_ends: str = ""


OTHER_KINDS = ("qa2", "qa3", "qa4", "qa5")
LONG = {kind: RECIPES / f"{kind}-long.yaml" for kind in ("qa1", *OTHER_KINDS)}
WHOLE = {"qa1": QA1} | {kind: RECIPES / f"{kind}-whole.yaml" for kind in OTHER_KINDS}
# Of models that read whole texts of unseen books.
UNSEEN_BOOKS: dict[str, Any] = {"cost": 1.5, "recipes": WHOLE, "first_seed": 31, "test_noise": "test_books"}
UNSEEN_BOOKS |= {"longest_whole_text": 1024, "test_tokens": 250_000}
LONGER: dict[str, Any] = {"contexts": 8, "recipes": {"qa1": SHIPPED / "armt-babilong-qa1-long.yaml"}, "first_seed": 25}
UNCUT = {kind: RECIPES / f"{kind}-uncut.yaml" for kind in ("qa1", *OTHER_KINDS)}
MODELS = {
    # Tested with seeds and on books of no earlier design. All but the first were chosen on validation books.
    SHUT: Model(
        f"{AROUND}, shut gates write nothing (unseen books)", {"gate_normalizer": True}, 1.0, 8, LONG, first_seed=11
    ),
    UNSEEN: Model(
        f"{AROUND}, cost of writes, then a threshold (unseen books)", contexts=8, recipes=LONG, first_seed=21
    ),
    "armt_mosaic_longer": Model(
        f"{AROUND}, cost of writes, then a threshold, longer first stages (unseen books)", **LONGER
    ),
    "armt_mosaic_sentences": Model(  # the same trainings
        f"{AROUND}, as before, read in segments that end at sentences (unseen books)",
        **LONGER | {"first_seed": 27, "sentence_ends": "."},
    ),
    "armt_mosaic_uncut": Model(
        f"{AROUND}, facts uncut in training too, read in segments that end at sentences (unseen books)",
        contexts=8,
        recipes=UNCUT,
        first_seed=32,
        sentence_ends=". ! ?",
    ),
    "armt_mosaic": Model(AROUND),
    THRESHOLD: Model(f"{AROUND}, cost of writes, then a threshold", contexts=16, recipes=LONG, test_noise=None),
    "armt": Model("ARMT around GPT-NeoX", cost=1.3, recipes={"qa1": RECIPES / "qa1-neox.yaml"}),
    "armt_mosaic_v2": Model(f"{AROUND} v2", {"base": V2_BASE}, 1.3),
    "armt_no_correction": Model(f"{AROUND}, no correction", {"correction": False}),
    "rmt": Model("RMT around a Memory Mosaic", {**MEMORY_TOKENS, "type": "rmt"}),
    "prmt": Model("PRMT around a Memory Mosaic", {**MEMORY_TOKENS, "type": "prmt"}),
    "mamba": Model("Mamba", MAMBA, 2.5, longest_whole_text=64),
    "mosaic": Model("Memory Mosaic", {**MOSAIC, "num_layers": 4}, 1.5, longest_whole_text=64),
    **{
        name: Model(
            f"Memory Mosaic, {PAPER_KERNELS[kernel]} (unseen books)",
            {**MOSAIC, "num_layers": 4} | ({} if kernel == "gaussian" else {"kernel": kernel}),
            **UNSEEN_BOOKS,
        )
        for name, kernel in WHOLE_UNSEEN_KERNELS.items()
    },
    WHOLE_UNSEEN_V2: Model("Memory Mosaic v2, Gaussian (unseen books)", MOSAIC_V2, **UNSEEN_BOOKS),
    "mosaic_v2": Model("Memory Mosaic v2", MOSAIC_V2, 1.5, longest_whole_text=64),
    LAST_SEGMENT: Model("transformer, last segment only", TRANSFORMER, 0.3),
}
WHOLE_TEXT = [name for name, model in MODELS.items() if model.longest_whole_text]


@dataclass(frozen=True)
class BabilongSettings(RecipeSettings):
    """One training by a recipe with a curriculum, and its tests.

    Attributes:
        model: one of `MODELS`. measured: segments of the tested samples. test_tokens: tokens to read at each of them,
            in at least `fewest_contexts` and at most `test_contexts` contexts.
    """

    model: str
    kind: str
    recipe: dict
    measured: tuple[int, ...]
    test_tokens: int
    test_contexts: int
    fewest_contexts: int

    @property
    def longest(self) -> int:
        """Tokens of the longest text in training."""
        return max(stage["length"] for stage in self.recipe["training"]["curriculum"]) * self.context

    def contexts(self, segments: int) -> int:
        """How many contexts of so many segments are read."""
        return max(self.fewest_contexts, min(self.test_contexts, self.test_tokens // (segments * self.context)))


@dataclass(frozen=True)
class Budget:
    """What runs have in common.

    Attributes:
        measured, test_tokens, test_contexts: see `BabilongSettings`. kinds: of questions; the first is asked of all
            models.
        sizes: other values of these keys, wherever in the recipe they stand. at_most: the same of what is larger.
    """

    measured: tuple[int, ...]
    test_tokens: int
    test_contexts: int
    kinds: tuple[str, ...]
    seeds: int
    sizes: Mapping[str, int] = field(default_factory=dict)
    at_most: Mapping[str, int] = field(default_factory=dict)

    def run(self, model: str, kind: str, seed: int) -> Run:
        """One training and its measurement."""
        of_model = MODELS[model]
        recipe = recipe_mapping(of_model.recipes[kind]) | {"name": f"{model}-{kind}", "seed": seed}
        recipe["model"] = {**({} if "type" in of_model.model else recipe["model"]), **of_model.model}
        if of_model.test_noise != AS_RECIPE:
            task = {key: value for key, value in recipe["data"]["task"].items() if key != "test_noise"}
            own = {} if of_model.test_noise is None else {"test_noise": of_model.test_noise}
            recipe["data"] = {**recipe["data"], "task": task | own}
        recipe = self._resized(recipe)
        contexts = of_model.contexts // 2 if kind in CHAINED else of_model.contexts
        longest = of_model.longest_whole_text or max(self.measured)
        measured = tuple(segments for segments in self.measured if segments <= longest)
        tokens = min(self.test_tokens, of_model.test_tokens)
        settings = BabilongSettings(model, kind, recipe, measured, tokens, self.test_contexts, contexts)
        return Run(f"{model}/{kind}/seed {seed}", settings, of_model.cost)

    def _resized(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._resized(item) for item in value]
        if not isinstance(value, dict):
            return value
        resized = {key: self.sizes.get(key, self._resized(item)) for key, item in value.items()}
        return resized | {key: min(most, resized[key]) for key, most in self.at_most.items() if key in resized}


BUDGETS = {
    "smoke": Budget(
        measured=(2, 3),
        test_tokens=512,
        test_contexts=4,
        kinds=("qa1", "qa4"),
        seeds=1,
        sizes=SMALL,
        at_most={"steps": 1, "length": 3, "min_length": 3},
    ),
    "cpu": Budget(
        measured=(2, 4, 8, 16, 64, 256, 1024, 4096, 15625),
        test_tokens=1_000_000,
        test_contexts=128,
        kinds=("qa1", "qa4", "qa5", "qa2", "qa3"),
        seeds=3,
    ),
}


def plan(selection: RunSelection) -> list[Run]:
    """QA1 of all models first; the other kinds by the model that is best in long texts, or else by the first."""
    budget = BUDGETS[selection.budget]
    names = selection.models or tuple(MODELS)
    best = UNSEEN if UNSEEN in names else names[0]
    others = [kind for kind in budget.kinds[1:] if kind in MODELS[best].recipes]
    runs = [*((name, budget.kinds[0]) for name in names), *((best, kind) for kind in others)]
    seeds = range(selection.seeds or budget.seeds)
    return [budget.run(name, kind, MODELS[name].first_seed + index) for index in seeds for name, kind in runs]


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Train through the curriculum, then measure."""
    settings = run.configuration
    recipe = settings.read_recipe()
    task = question_task(recipe.data.task or {})
    questions = LastSegment if settings.model == LAST_SEGMENT else StagedQuestions
    data = questions(recipe, settings.context, task)
    model = starting_model(recipe, data.tokenizer, context=settings.longest).to(context.device)
    stages = train_recipe_stages(model, recipe, data, context.folder, context.report)
    outcome: dict[str, Any] = {"parameters": num_parameters(model), "stages": stages}
    outcome |= {"exact_match": {}, "seconds_per_token": {}}
    if isinstance(model, ARMTForCausalLM) and isinstance(task, BABILong):
        context.report(1.0, "measuring what is written")
        segments = min(NOISE_SEGMENTS, max(settings.measured))
        books = task.books("test")
        outcome["test_noise"] = {"books": len(books), "tokens": sum(len(book.tokens) for book in books)}
        outcome["written_noise"] = written_noise(model, task, settings.seed, segments=segments)
        outcome["written_facts"] = written_facts(model, task, settings.seed)
    read_as_tested(model, settings.model, data)
    for segments in settings.measured:
        context.report(1.0, f"measuring {segments * settings.context:,} tokens")
        measured = _measure(model, data, settings, segments)
        outcome["exact_match"][str(segments)], outcome["seconds_per_token"][str(segments)] = measured
    return outcome


def read_as_tested(model: PreTrainedModel, name: str, data: StagedQuestions) -> None:
    """From now on `model` reads as tests of the model `name` ask for."""
    if marks := MODELS[name].sentence_ends:
        adjust_model(model, {"segment_end_ids": data.tokenizer.encode(marks)})


@dataclass(frozen=True)
class LastSegment(StagedQuestions):
    """The same contexts, of which only the last segment is read."""

    def batch(self, stage: Stage, count: int, tokens: int, seed: int, split: str, early: int = 0) -> QuestionBatch:
        """Contexts cut to what stands behind the last border of segments; no early questions."""
        batch = super().batch(stage, count, tokens, seed, split)
        last = batch.contexts.shape[1] % self.segment or self.segment
        return replace(batch, contexts=batch.contexts[:, -last:])


def _measure(model: torch.nn.Module, data: StagedQuestions, settings: BabilongSettings, segments: int):
    """Exact match of held-out samples (published form: `segments` segments with the question in the last), and time.

    Stories have the lengths of `LENGTHS`, whatever training had. Facts take at most a fifth of a sample where that
    holds the shortest of them, else what training allows.
    """
    tokens, count = segments * settings.context, settings.contexts(segments)
    is_long = PLAIN_FACT[settings.kind] * LENGTHS[settings.kind][0] <= PUBLISHED_SHARE * tokens
    share = {"facts_share": PUBLISHED_SHARE} if is_long else {}
    stage = Stage(segments, 1, settings={"fewest_facts": None, **share})
    # What is drawn depends on the number of texts, not on the model: models that read as many read the same ones.
    drawn = max(1, min(count, READ_AT_ONCE // tokens))
    read = drawn
    if settings.model in WHOLE_TEXT:
        read = max(1, min(drawn, WHOLE_AT_ONCE // (settings.recipe["data"]["questions"] * tokens)))
    shares, sources, began = [], [], time.perf_counter()
    are_unseen = "test_noise" in settings.recipe["data"]["task"]
    for first in range(0, count, drawn):
        texts, seed = min(drawn, count - first), 1_000_000 * settings.seed + first
        batch = data.batch(stage, texts, tokens - RESERVED, seed, "test")
        if are_unseen and batch.sources is not None:
            sources.append(batch.sources)
        shares += [right_answers(model, batch.rows(row, row + read)) for row in range(0, len(batch.contexts), read)]
    seconds = time.perf_counter() - began
    groups = torch.cat(sources) if sources else None  # texts that begin in the same book are not independent
    return estimate(torch.cat(shares), groups), seconds / (count * (tokens - RESERVED))


@torch.no_grad()
def written_noise(
    model: ARMTForCausalLM, task: BABILong, seed: int, *, texts: int = 4, segments: int = 1024
) -> dict[str, Any]:
    """What segments of the test's books do, read behind each other.

    `in_text`: the share that changes an association matrix. `normaliser`: the mean of |z| over layers, features and
    texts after 1, 2, 4, ... segments.
    """
    length, random = segments * model.config.segment_size + RESERVED, Random(f"noise {seed}")
    contexts = [hide((), task.books("test"), length, random) for _ in range(texts)]
    written, normaliser = 0.0, {}
    for number, (memory, changed) in enumerate(_writes(model, contexts), 1):
        written += changed.sum().item()
        if number.bit_count() == 1:
            normaliser[str(number)] = memory.z.abs().mean().item()
    return {"in_text": written / (texts * segments), "normaliser": normaliser}


@torch.no_grad()
def written_facts(model: ARMTForCausalLM, task: BABILong, seed: int, *, texts: int = 1024) -> dict[str, float]:
    """The shares of facts for which an association matrix changes: one fact in two segments of the test's books each.

    `whole`: of the facts that lie in one segment. Of those that lie across the border, `first_part`: in the first
    segment, and `second_part`: in the second. A kind of which there was none is left out.
    """
    segment, random = model.config.segment_size, Random(f"facts {seed}")
    books, facts = task.books("test"), task.possible_facts()
    written: dict[str, list[bool]] = {"whole": [], "first_part": [], "second_part": []}
    for share in (0.0, 1.0):  # by chance too few facts lie across the border
        contexts = [
            hide((random.choice(facts),), books, 2 * segment + RESERVED, random, segment=segment, split_facts=share)
            for _ in range(texts // 2)
        ]
        changes = [changed.tolist() for _, changed in _writes(model, contexts)]
        for context, first, second in zip(contexts, *changes):
            in_first, in_second = (part.any() for part in np.split(context.is_fact(), 2))
            if in_first and in_second:
                written["first_part"].append(first)
                written["second_part"].append(second)
            else:
                written["whole"].append(first if in_first else second)
    return {part: float(np.mean(changed)) for part, changed in written.items() if changed}


def _writes(model: ARMTForCausalLM, contexts: Sequence[Context]) -> Iterator[tuple[ARMTState, Tensor]]:
    """Read B contexts: the memory behind each segment, and (B,) whether an association matrix has changed."""
    tokens = torch.from_numpy(np.stack([context.tokens() for context in contexts]).astype(np.int64)).to(model.device)
    memory = cast("ARMTState", model.empty_memory(len(tokens)))
    for segment in tokens.split(model.config.segment_size, 1):
        before, memory = memory, model(input_ids=segment, memory_state=memory, skip_logits=True).memory_state
        yield memory, (before.A != memory.A).flatten(2).any(2).any(0)
