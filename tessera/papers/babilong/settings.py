"""What each budget trains: a recipe for each model and kind of question, and the lengths that are measured."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tessera.base.dataclass_io import from_json
from tessera.papers.babilong.models import GATED, LAST_SEGMENT, NAMES, THRESHOLD, WHOLE_TEXT, section
from tessera.papers.babilong.sample import RESERVED
from tessera.papers.babilong.stories import LENGTHS, PLAIN_FACT
from tessera.papers.experiment import Run
from tessera.recipes.sections import Recipe

SHORTEST_STORY = {kind: PLAIN_FACT[kind] * shortest for kind, (shortest, _) in LENGTHS.items()}  # tokens
PUBLISHED_SHARE = 0.2  # of facts in a sample, at most
FEWEST_CONTEXTS = 4


@dataclass(frozen=True)
class BabilongSettings:
    """One training by a recipe with a curriculum, and its tests.

    Attributes:
        model: one of `NAMES`. recipe: plain values of a `tessera.recipes.sections.Recipe`. measured: segments of the
            tested samples. test_tokens: tokens to read at each of them, in at least `fewest_contexts` and at most
            `test_contexts` contexts.
    """

    model: str
    kind: str
    seed: int
    recipe: dict
    measured: tuple[int, ...]
    test_tokens: int
    test_contexts: int
    fewest_contexts: int

    @property
    def segment(self) -> int:
        """Tokens of a segment."""
        return self.recipe["data"]["context"]

    def plan(self) -> Recipe:
        """The recipe, checked."""
        return from_json(Recipe, self.recipe, "babilong")

    def contexts(self, segments: int) -> int:
        """How many contexts of so many segments are read."""
        return max(self.fewest_contexts, min(self.test_contexts, self.test_tokens // (segments * self.segment)))


@dataclass(frozen=True)
class GatedStage:
    """A stage that charges for writing, `cost` times the probability that a token writes.

    Attributes:
        threshold: of strengths, from this stage on; None: as before. noise: where it differs from the other stages'.
        rate: of learning, as a share of the first stage's.
    """

    segments: int
    steps: int
    cost: float
    threshold: float | None = None
    noise: Mapping[str, float] = field(default_factory=dict)
    rate: float = 0.5


@dataclass(frozen=True)
class Harder:
    """What the training of a kind of question, or of a model, has of its own.

    Attributes:
        first_steps, memory_steps: of the first stage and of the one from memory; None: the budget's.
        stages: (segments, steps) in place of the budget's; None: these.
        layers: of the base of the model that learns this kind; None: as for QA1.
        also_asked: kinds whose questions training asks too, and questions: how many of all of them to each context.
            asked_alone: from stages of so many segments on only the kind itself is asked.
        short_share: of facts in contexts of one segment, where that is not the kind's share of facts.
        fewest_facts: of a story in training, where those of tests have more.
        gated_stages, threshold_stages, gated_noise: in place of the budget's; None: these.
        last_noise: what the task has besides in the last stage before these.
    """

    first_steps: int | None = None
    memory_steps: int | None = None
    stages: tuple[tuple[int, int], ...] | None = None
    layers: int | None = None
    also_asked: tuple[str, ...] = ()
    asked_alone: int | None = None
    questions: int | None = None
    short_share: float | None = None
    fewest_facts: int | None = None
    gated_stages: tuple[GatedStage, ...] | None = None
    threshold_stages: tuple[GatedStage, ...] | None = None
    gated_noise: Mapping[str, float] | None = None
    last_noise: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Budget:
    """A setting of all runs.

    Attributes:
        stages: (segments, steps) of each stage; the first learns at `rate`, the others at half of it.
        memory_steps: of a stage between the first, if that has one segment, and the second: one whole segment, asked
            from memory alone.
        harder: kind of question, model, or "model/kind" -> what it needs beyond the others. own_rates: model -> its
            `rate`. own_widths: model -> its `width`, so that all bases inside ARMT make as many parameters.
        gated_stages: the further stages of models whose strengths reach 0. threshold_stages: those that the models with
            a threshold have after these.
        gated_backprop: segments at the end of their texts that gradients flow through. gated_noise: what the
            task has in these stages besides: `lookalikes`, `near_facts`, `split_facts`.
        longest_whole_text: segments of the longest sample that models without segments are tested on.
        more_contexts: model -> how many contexts at least, where that is more than `FEWEST_CONTEXTS`.
    """

    width: int
    segment: int
    memory_tokens: int
    memory_dim: int
    vocab_size: int
    stages: tuple[tuple[int, int], ...]
    rate: float
    batch_size: int
    questions: int
    target: float
    measured: tuple[int, ...]
    longest_whole_text: int
    test_tokens: int
    test_contexts: int
    kinds: tuple[str, ...]
    seeds: int
    early_questions: int = 1
    memory_steps: int = 0
    harder: Mapping[str, Harder] = field(default_factory=dict)
    own_rates: Mapping[str, float] = field(default_factory=dict)
    own_widths: Mapping[str, int] = field(default_factory=dict)
    gated_stages: tuple[GatedStage, ...] = ()
    threshold_stages: tuple[GatedStage, ...] = ()
    gated_backprop: int = 8
    gated_noise: Mapping[str, float] = field(default_factory=lambda: {"lookalikes": 0.05})
    evaluate_every: int = 50
    evaluate_sequences: int = 32
    more_contexts: Mapping[str, int] = field(default_factory=dict)
    models: tuple[str, ...] = tuple(NAMES)

    def run(self, model: str, kind: str, seed: int) -> Run:
        """One training and its measurement."""
        own = self._own(model, kind)
        width = self.own_widths.get(model, self.width)
        model_section = section(model, width, self.segment, self.memory_tokens, self.memory_dim)
        if own.layers is not None and "base" in model_section:  # models that read the whole text have four
            model_section["base"] = {**model_section["base"], "num_layers": own.layers}
        task = {
            "name": "babilong",
            "kind": kind,
            "vocab_size": self.vocab_size,
            "facts_share": self._facts_share(kind),
        }
        if own.also_asked:
            task["also_asked"] = list(own.also_asked)
        if own.fewest_facts is not None:
            task["fewest_facts"] = own.fewest_facts
        recipe = {
            "name": f"{model}-{kind}",
            "seed": seed,
            "model": model_section,
            "data": {
                "context": self.segment,
                "questions": own.questions or self.questions,
                "early_questions": self.early_questions,
                "task": task,
            },
            "training": {
                "batch_size": self.batch_size,
                "betas": [0.9, 0.999],
                "weight_decay": 0.01,
                "scalar_learning_rate_scale": 4.0,
                "precision": "fp32",
                "evaluate_every": self.evaluate_every,
                "evaluate_sequences": self.evaluate_sequences,
                "checkpoint_every": 100,
                "curriculum": self._curriculum(model, kind),
            },
        }
        measured = tuple(n for n in self.measured if model not in WHOLE_TEXT or n <= self.longest_whole_text)
        contexts = self.more_contexts.get(model, FEWEST_CONTEXTS)
        if own.layers is not None:
            contexts = max(FEWEST_CONTEXTS, contexts // 2)  # twice the time each
        tests = (self.test_tokens, self.test_contexts, contexts)
        settings = BabilongSettings(model, kind, seed, recipe, measured, *tests)
        return Run(f"{model}/{kind}/seed {seed}", settings, COSTS.get(model, 1.0))

    def _own(self, model: str, kind: str) -> Harder:
        """What this training has of its own, beyond what its model has, or else its kind."""
        usual = self.harder.get(model, self.harder.get(kind, Harder()))
        own = vars(self.harder.get(f"{model}/{kind}", Harder())).items()
        return replace(usual, **{name: value for name, value in own if value != getattr(Harder(), name)})

    def _facts_share(self, kind: str, segments: int = 2) -> float:
        """The published fifth where it holds the shortest stories; in small segments more."""
        if SHORTEST_STORY[kind] <= PUBLISHED_SHARE * self.segment:
            return PUBLISHED_SHARE
        usual = 0.25 if kind == "qa4" else 0.5
        return (self.harder.get(kind, Harder()).short_share or usual) if segments == 1 else usual

    def _curriculum(self, model: str, kind: str) -> list[dict[str, Any]]:
        """Stages as plain values. Where training begins with one segment, every later step has at least two.

        Stages whose contexts do not hold the shortest stories are left out; a context of several segments may end
        right behind the last border between them.
        """
        own = self._own(model, kind)
        memory_steps = self.memory_steps if own.memory_steps is None else own.memory_steps
        first_rate = self.own_rates.get(model, self.rate)
        fewest = 2 if self.stages[0][0] == 1 else 1
        while not self._holds_a_story(fewest, kind):
            fewest += 1
        stages: list[dict[str, Any]] = []
        for length, steps in own.stages or self.stages:
            if length < fewest and not (length == 1 and self._holds_a_story(1, kind)):
                continue
            rate = first_rate if not stages else first_rate / 2
            if not stages and own.first_steps is not None:
                steps = own.first_steps
            stage: dict[str, Any] = {"length": length, "steps": steps, "learning_rate": rate, "target": self.target}
            if length > 1 and fewest > 1:
                stage["min_length"] = fewest
            if length == 1 and own.short_share is not None:
                stage["settings"] = {"facts_share": own.short_share}
            if own.asked_alone is not None and length >= own.asked_alone:
                stage.setdefault("settings", {})["also_asked"] = []
            stages.append(stage)
            if length == 1 and memory_steps:
                alone = {"steps": memory_steps, "learning_rate": first_rate / 2}
                stages.append({**stage, **alone, "settings": {**stage.get("settings", {}), "from_memory": True}})
        stages[-1]["target"] = 2.0  # all of its steps
        if own.last_noise:
            stages[-1]["settings"] = {**stages[-1].get("settings", {}), **own.last_noise}
        gated_stages = self.gated_stages if own.gated_stages is None else own.gated_stages
        threshold_stages = self.threshold_stages if own.threshold_stages is None else own.threshold_stages
        noise = self.gated_noise if own.gated_noise is None else own.gated_noise
        gated: tuple[GatedStage, ...] = ()
        if model in (GATED, THRESHOLD):
            gated += gated_stages
        if model == THRESHOLD:
            gated += threshold_stages
        held: dict[str, Any] = {}
        for one in gated:
            stage = {
                "length": one.segments,
                "min_length": max(fewest, self.gated_backprop) if one.segments > self.gated_backprop else fewest,
                "steps": one.steps,
                "learning_rate": first_rate * one.rate,
                "target": 2.0,  # gates need all steps
                "settings": {**noise, **one.noise},
            }
            if own.asked_alone is not None:
                stage["settings"]["also_asked"] = []
            adjusted = {"gate_penalty": one.cost, "backprop_segments": min(one.segments, self.gated_backprop)}
            if one.threshold is not None:
                adjusted["strength_threshold"] = one.threshold
            if changed := {name: value for name, value in adjusted.items() if held.get(name) != value}:
                stage["model"] = changed
            held |= adjusted
            stages.append(stage)
        return stages

    def _holds_a_story(self, segments: int, kind: str) -> bool:
        """Whether the shortest contexts of so many segments hold the shortest stories."""
        left_out = self.segment - RESERVED if segments > 1 else 0
        fewest = self.harder.get(kind, Harder()).fewest_facts
        shortest = SHORTEST_STORY[kind] if fewest is None else PLAIN_FACT[kind] * fewest
        return shortest <= self._facts_share(kind, segments) * (segments * self.segment - left_out)


COSTS = {"armt": 1.3, "armt_mosaic_v2": 1.3, "mamba": 2.5, "mosaic": 1.5, "mosaic_v2": 1.5, LAST_SEGMENT: 0.3}
# QA2 chains two facts, who has a thing and where that person is, and QA3 three. A step of four layers takes twice the
# time, so there are fewer.
CHAINED = Harder(
    memory_steps=600,
    stages=((1, 1200), (2, 600), (3, 300), (8, 300), (16, 150)),
    layers=4,
    questions=6,
    short_share=0.7,
)
# Gates that are to stay shut leave out what looks like half of a fact. With up to half of the facts across borders
# they learn to write both halves, if the model has learned before what the first is for; a higher cost, or more noise
# that looks like facts, makes them leave halves out again. Then they take any "to the garden" at the border of a
# segment for the end of a fact. So some segments begin or end like that without a fact. Gradients flow through the
# last eight segments: in longer texts the first writes cost nothing, and gates may learn to shut because of what
# those left in the memory. Once that is overwritten, noise opens them. So these texts have two to eight segments.
LAST_GATED_NOISE = {"half_facts": 0.2, "cut_facts": 0.1}
SPLIT_FACTS = Harder(
    gated_stages=(GatedStage(8, 100, 0.2), GatedStage(8, 100, 0.7), GatedStage(8, 200, 2.0)),
    threshold_stages=(GatedStage(8, 400, 2.0, 0.6, LAST_GATED_NOISE),),
    gated_noise={"lookalikes": 0.02, "near_facts": 0.002, "split_facts": 0.5, "half_facts": 0.1},
    last_noise={"split_facts": 0.5},
)
SPLIT_QA1 = replace(SPLIT_FACTS, stages=((1, 200), (2, 600), (3, 300), (5, 300), (8, 300), (16, 200)))
# A fact is worth less where it takes two or three to answer, so a write costs less. At a constant rate the scores go up
# and down by ten points from one evaluation to the next; so the last steps take an eighth of it.
SPLIT_QA2 = replace(
    SPLIT_FACTS,
    memory_steps=1000,
    stages=((1, 1200), (2, 1000), (4, 500), (8, 300), (16, 150)),
    asked_alone=4,
    gated_stages=(GatedStage(8, 100, 0.2),),
    threshold_stages=(
        GatedStage(8, 300, 0.5, 0.6, LAST_GATED_NOISE),
        GatedStage(8, 200, 0.5, 0.6, LAST_GATED_NOISE, rate=0.125),
    ),
)
SPLIT_QA3 = replace(SPLIT_QA2, stages=((1, 1200), (3, 800), (5, 400), (8, 300), (16, 150)))
SMOKE = Budget(
    width=16,
    segment=64,
    memory_tokens=2,
    memory_dim=4,
    vocab_size=250,
    stages=((1, 1), (2, 1)),
    memory_steps=1,
    gated_stages=(GatedStage(3, 1, 0.5),),
    threshold_stages=(GatedStage(3, 1, 1.0, 0.6),),
    gated_backprop=2,
    rate=2e-3,
    batch_size=2,
    questions=2,
    target=0.93,
    measured=(2, 3),
    longest_whole_text=3,
    test_tokens=512,
    test_contexts=4,
    kinds=("qa1", "qa4"),
    seeds=1,
    evaluate_sequences=2,
)
CPU = Budget(
    width=128,
    segment=64,
    memory_tokens=10,
    memory_dim=64,
    vocab_size=1510,
    stages=((1, 200), (2, 600), (3, 300), (5, 300), (8, 300), (16, 300)),
    rate=2e-3,
    batch_size=32,
    questions=4,
    early_questions=4,
    memory_steps=300,
    harder={
        "qa4": Harder(1000, 600),
        "qa5": Harder(600, 600, short_share=0.7, fewest_facts=3),  # a segment does not hold six
        "qa2": replace(CHAINED, also_asked=("qa1",), fewest_facts=3),
        "qa3": replace(CHAINED, also_asked=("qa1", "qa2"), fewest_facts=4),
        f"{THRESHOLD}/qa1": SPLIT_QA1,
        f"{THRESHOLD}/qa2": SPLIT_QA2,
        f"{THRESHOLD}/qa3": SPLIT_QA3,
        f"{THRESHOLD}/qa4": SPLIT_FACTS,
        f"{THRESHOLD}/qa5": SPLIT_FACTS,
        "armt": Harder(1000, 600),  # GPT-NeoX takes 1,000 steps to learn who is where, a mosaic 50 to 150
    },
    own_rates={"armt": 1e-3},
    own_widths={"armt": 100, "armt_mosaic_v2": 120},
    gated_stages=(GatedStage(32, 50, 0.2), GatedStage(32, 50, 0.7), GatedStage(32, 150, 2.0)),
    target=0.95,
    measured=(2, 4, 8, 16, 64, 256, 1024, 4096, 15625),
    longest_whole_text=64,
    test_tokens=1_000_000,
    test_contexts=128,
    kinds=("qa1", "qa4", "qa5", "qa2", "qa3"),
    seeds=3,
    evaluate_sequences=64,
    # The goal is a million tokens, where four contexts tell to ± 7 points.
    more_contexts={GATED: 16, THRESHOLD: 16},
)
# Stages and steps as published. Not as published: bases (a GPT-NeoX of 4 layers, or a mosaic of 2) start from random
# weights, words are tokens, noise comes from the bundled tales, the first rate is 2e-4, questions share a reading.
FULL = Budget(
    width=768,
    segment=512,
    memory_tokens=10,
    memory_dim=64,
    vocab_size=30_000,
    stages=((2, 10_000), (3, 10_000), (5, 10_000), (8, 10_000), (16, 10_000), (32, 30_000)),
    gated_stages=(GatedStage(8, 10_000, 0.2), GatedStage(8, 10_000, 0.7), GatedStage(8, 30_000, 2.0)),
    threshold_stages=(GatedStage(8, 20_000, 5.0, 0.6),),
    rate=2e-4,
    batch_size=64,
    questions=4,
    target=0.95,
    measured=(32, 125, 250, 1000, 2000, 20_000),
    longest_whole_text=250,
    test_tokens=100_000_000,
    test_contexts=1000,
    kinds=("qa1", "qa2", "qa3", "qa4", "qa5"),
    seeds=3,
    evaluate_every=250,
    evaluate_sequences=256,
)
BUDGETS = {"smoke": SMOKE, "cpu": CPU, "full": FULL}
