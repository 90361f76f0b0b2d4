"""RegBench's runs, batches and table; and its smoke budget, end to end."""

import json
import random
from collections import Counter
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
import torch

from tessera.base.dataclass_io import to_json
from tessera.base.errors import TesseraError
from tessera.ops.linear_cross_entropy import IGNORED
from tessera.papers.experiment import Record, RunContext, RunSelection
from tessera.papers.regbench.report import EXPERIMENT, longest_trainings, losses_by_block, tables
from tessera.papers.regbench.run import Batches, loss_by_block, mean_loss, scores_of
from tessera.papers.regbench.task import RegBench, canonical, ngram_log_probabilities, random_automaton
from tests.tasks.cases import VARIANTS

SMALL = VARIANTS["regbench"][1]


class Uniform:
    """A model that predicts every token alike, with the loss that this has."""

    device = "cpu"

    def __call__(self, input_ids, labels=None):
        class Output:
            logits = torch.zeros(*input_ids.shape, SMALL.vocab_size)
            loss = torch.tensor(float(SMALL.vocab_size)).log()

        return Output


def test_an_epoch_takes_every_problem_once_and_the_step_decides():
    examples = SMALL.sample(21, 0)
    batches = Batches(SMALL, examples, 4, seed=5)
    assert batches.per_epoch == 5
    rows = {tuple(row.tolist()): index for index, row in enumerate(examples.tokens)}
    width = examples.tokens.shape[1]
    orders = []
    for epoch in range(2):
        seen = []
        for step in range(epoch * 5, epoch * 5 + 5):
            ids, labels = batches.at(step).tokens, batches.at(step).labels
            assert ((labels == ids) | (labels == IGNORED)).all()
            assert (ids[:, -1] != SMALL.padding).any()
            filled = torch.nn.functional.pad(ids, (0, width - ids.shape[1]), value=SMALL.padding)
            seen += [rows[tuple(row.tolist())] for row in filled]
        assert len(set(seen)) == 20
        orders.append(seen)
    assert orders[0] != orders[1]
    again = Batches(SMALL, examples, 4, seed=5)
    for step in (7, 2, 9):
        assert torch.equal(again.at(step).tokens, batches.at(step).tokens)
    assert not torch.equal(Batches(SMALL, examples, 4, 6).at(0).tokens, batches.at(0).tokens)


def test_batches_hold_problems_of_similar_length():
    examples = RegBench().sample(64, 0)
    batches = Batches(RegBench(), examples, 8, 0)
    read = sum(batches.at(step).tokens.numel() for step in range(8))
    assert read < 1.2 * int(examples.details.lengths.sum())


def test_scores_come_back_in_the_order_of_the_examples():
    examples = SMALL.sample(81, 0)
    scores = scores_of(Uniform(), SMALL, examples)
    expected = SMALL.scores(Uniform()(examples.tokens).logits, examples)
    for name, values in expected.items():
        torch.testing.assert_close(scores[name], values)
    assert mean_loss(Uniform(), SMALL, examples) == pytest.approx(float(torch.tensor(10.0).log()))


def test_a_model_that_predicts_nothing_has_no_scores():
    def unknown(input_ids, **options):
        return SimpleNamespace(logits=torch.full((*input_ids.shape, SMALL.vocab_size), torch.nan))

    unknown.device = "cpu"
    with pytest.raises(TesseraError, match="the model's predictions must be numbers; got NaN"):
        scores_of(unknown, SMALL, SMALL.sample(2, 0))


def test_choices_are_obeyed():
    runs = EXPERIMENT.runs(RunSelection("cpu", ("mosaic_v2", "lstm"), ("biweight",), 1))
    assert [run.key for run in runs] == [
        "mosaic_v2 biweight/1000/seed 0", "lstm/1000/seed 0",
        "mosaic_v2 biweight, 8 epochs/1000/seed 0", "lstm, 8 epochs/1000/seed 0",
        "mosaic_v2 biweight, 3 epochs/2500/seed 0", "lstm, 3 epochs/2500/seed 0", "lstm, 40 epochs/100/seed 0",
    ]  # fmt: skip


def test_counting_is_trained_in_no_budget():
    for budget in EXPERIMENT.budgets:
        runs = [run.configuration for run in EXPERIMENT.runs(RunSelection(budget, ("ngram",)))]
        assert [(settings.fit, settings.symbols) for settings in runs] == [(None, symbols) for symbols in range(4)]


def test_losses_by_block_are_means_over_their_labels():
    examples = SMALL.sample(21, 0)
    tokens = 8

    class Even(torch.nn.Linear):
        """A model whose logits favour the token that it reads."""

        def forward(self, input_ids, use_cache):
            logits = torch.nn.functional.one_hot(input_ids, SMALL.vocab_size).float()
            return type("Output", (), {"logits": logits})

    losses = loss_by_block(Even(1, 1), examples, block=3, tokens=tokens)
    logits = torch.nn.functional.one_hot(examples.tokens, SMALL.vocab_size).float()
    each = torch.nn.functional.cross_entropy(logits[:, :-1].mT, examples.labels[:, 1:], reduction="none")
    scored = examples.labels[:, 1:] >= 0
    for block, loss in enumerate(losses):
        places = slice(3 * block, min(3 * block + 3, tokens - 1))
        assert loss == pytest.approx(float(each[:, places].sum() / scored[:, places].sum()), abs=1e-5)
    assert len(losses) == 3
    assert len(set(losses)) == 3


def test_a_run_trains_and_scores(tmp_path):
    of_counting = []
    for run in EXPERIMENT.runs(RunSelection("smoke", models=("mosaic", "transformer", "ngram"))):
        outcome = to_json(EXPERIMENT.execute(run, RunContext(tmp_path / run.key.replace("/", "_"))))
        json.dumps(outcome, allow_nan=False)
        accuracy, _, problems = outcome["held_out"]["accuracy"]
        assert problems == 4
        if run.configuration.fit:
            assert outcome["training"]["steps"] == run.configuration.fit.steps
            assert len(outcome["held_out_loss_by_block"]) == 20
        else:
            of_counting.append(accuracy)
    assert len(of_counting) == 4
    assert of_counting[0] < of_counting[1] < of_counting[2]


def record(kernel, seed, accuracy, best=1.0, problems=1000, **changes):
    runs = EXPERIMENT.runs(RunSelection("cpu", ("mosaic",), (kernel,), seed + 1))
    run = next(r for r in runs if f"seed {seed}" in r.key)
    values = {"accuracy": accuracy, "tvd": 20.0, "last_accuracy": 97.0}
    scores = {name: [value, 0.3, 500] for name, value in values.items()}
    training = {"best": best, "best_step": 400 + 200 * seed}
    outcome = {"training": training, "epochs": 4.0, "held_out": scores, "in_distribution": scores}
    return Record(replace(run.configuration, num_problems=problems, **changes), outcome, {})


def test_a_longer_training_stands_on_its_own():
    short = record("gaussian", 0, 92.0)
    fit = replace(short.configuration.fit, steps=10**6)
    longer = record("gaussian", 0, 93.5, best=0.9, label="8 epochs", fit=fit)
    for runs in ({"a": short, "b": longer}, {"b": longer, "a": short}):
        assert longest_trainings(runs) == {"mosaic gaussian": {1000: [longer]}}


def test_equally_long_trainings_of_a_model_are_told_apart_and_the_best_on_validation_problems_is_drawn():
    sizes = {label: record("gaussian", 0, 92.0, best=best, label=label) for label, best in (("a", 0.8), ("b", 0.9))}
    lines = tables(sizes)["1,000 training problems"].splitlines()[2:]
    assert [line.split(" | ")[0] for line in lines] == ["| Gaussian, b", "| Gaussian, a"]
    assert longest_trainings(sizes) == {"mosaic gaussian": {1000: [sizes["a"]]}}
    for label, losses in (("a", [2.0]), ("b", [3.0])):
        sizes[label].outcome["held_out_loss_by_block"] = losses
    assert losses_by_block(sizes)[1] == {"mosaic gaussian": [2.0]}


def test_losses_that_are_drawn_together_are_of_equal_trainings():
    """A model trained on 100 problems would look bad beside one trained on 1,000."""
    runs = {"few": record("gaussian", 0, 90.0, problems=100), "knn": record("gaussian_knn", 0, 92.0)}
    runs |= {str(seed): record("gaussian", seed, 92.0) for seed in (0, 1)}
    curves = {"few": [3.0, 2.0], "knn": [2.0, 1.5], "0": [1.0, 0.5], "1": [2.0, 1.0]}
    for key, curve in curves.items():
        runs[key].outcome["held_out_loss_by_block"] = curve
    losses = {"mosaic gaussian": [1.5, 0.75], "mosaic gaussian_knn": [2.0, 1.5]}
    assert losses_by_block(runs) == ((1000, 500), losses)


def is_allowed(automaton, string):
    """Whether the automaton can walk along it."""
    state = 0
    for symbol in string:
        state = dict(automaton.edges[state]).get(symbol)
        if state is None:
            return False
    return True


def drawn(seed):
    """Edges of an automaton that may be reduced."""
    draws = random.Random(seed)
    count = draws.randint(3, 5)
    return [dict(zip(draws.sample(range(3), 2), draws.choices(range(count), k=2), strict=True)) for _ in range(count)]


def test_reduction_keeps_the_language_and_has_no_two_equal_states():
    smaller = 0
    for seed in range(60):
        edges = drawn(seed)
        automaton = canonical(edges)
        assert all(walks(automaton.edges, 0, length) == walks(edges, 0, length) for length in range(6))
        smaller += len(automaton.edges) < len(edges)
        for one, two in product(range(len(automaton.edges)), repeat=2):
            longest = len(automaton.edges)
            assert one == two or walks(automaton.edges, one, longest) != walks(automaton.edges, two, longest)
    assert smaller > 10


def walks(edges, state, length):
    """All strings of a length from a state: what tells two states of as many states apart, if anything does."""
    if not length:
        return {()}
    return {(s, *rest) for s, to in dict(edges[state]).items() for rest in walks(edges, to, length - 1)}


def test_canonical_forms_do_not_depend_on_the_numbers_of_states():
    for seed in range(30):
        edges = drawn(seed)
        others = list(range(1, len(edges)))
        random.Random(seed + 100).shuffle(others)
        place = dict(enumerate([0, *others]))  # the start stays
        moved = [{}] * len(edges)
        for state, out in enumerate(edges):
            moved[place[state]] = {symbol: place[to] for symbol, to in out.items()}
        assert canonical(moved) == canonical(edges)


def test_automata_are_as_the_paper_draws_them():
    draws = random.Random(0)
    actual = [random_automaton(draws, (4, 12), (4, 18), 18, 3) for _ in range(2000)]
    assert max(len(a.edges) for a in actual) == 12
    degrees = Counter(len(edges) for a in actual for edges in a.edges)
    assert set(degrees) == {1, 2, 3}
    alphabets = [{symbol for edges in a.edges for symbol, _ in edges} for a in actual]
    assert set().union(*alphabets) == set(range(18))
    assert max(map(len, alphabets)) > 12


def test_strings_are_uniform_over_what_is_allowed():
    automaton, draws = canonical([{0: 1, 1: 2, 2: 1}, {3: 0}, {4: 0}]), random.Random(1)
    firsts = Counter(automaton.string(3, draws)[0] for _ in range(3000))
    assert all(abs(firsts[symbol] - 1000) < 6 * (3000 * 2 / 9) ** 0.5 for symbol in range(3))
    for _ in range(20):
        assert is_allowed(automaton, automaton.string(30, draws))
    assert not is_allowed(automaton, [3])


def test_problems_have_the_published_sizes():
    task = RegBench()
    assert (task.vocab_size, task.max_tokens) == (20, 949)
    examples = task.sample(150, 0)
    strings, lengths = Counter(), Counter()
    for tokens, automaton, length in zip(examples.tokens.tolist(), examples.details.automata, examples.details.lengths):
        assert set(tokens[length:]) <= {task.padding}
        parts = " ".join(map(str, tokens[:length])).split(f" {task.separator} ")
        parts = [list(map(int, part.split())) for part in parts]
        for part in parts:
            assert is_allowed(automaton, part)
        strings[len(parts)] += 1
        lengths.update(map(len, parts))
    assert (min(strings), max(strings)) == (10, 19)
    assert (min(lengths), max(lengths)) == (1, 49)
    assert (examples.labels != examples.tokens).any()
    assert not ((examples.labels == task.separator) | (examples.labels == task.padding)).any()


def test_fewer_problems_are_the_first_of_more_and_all_differ():
    few, more = SMALL.sample(10, 0), SMALL.sample(60, 0)
    assert more.details.automata[:10] == few.details.automata
    assert torch.equal(more.tokens[:10, : few.tokens.shape[1]], few.tokens)
    assert len(set(more.details.automata)) == 60


def test_fresh_strings_are_other_strings_of_the_same_automata():
    examples = SMALL.sample(20, 0)
    fresh = SMALL.fresh_strings(examples, 1)
    assert fresh.details.automata == examples.details.automata
    width = min(fresh.tokens.shape[1], examples.tokens.shape[1])
    assert (fresh.tokens[:, :width] != examples.tokens[:, :width]).any()
    assert torch.equal(fresh.tokens, SMALL.fresh_strings(examples, 1).tokens)


BINARY = RegBench(states=(2, 2), alphabet=(2, 2), num_symbols=2, max_edges=1, strings=(2, 2), length=(2, 2))


def examples_of(*tokens):
    """One problem of an automaton that goes to its other state, and from there back by 0."""
    return BINARY._examples((canonical([{0: 1, 1: 1}, {0: 0}]),), [tokens])


def test_scores_by_hand():
    examples = examples_of(0, 0, 2, 1, 0)
    logits = torch.zeros(1, 5, 4)  # uniform over four tokens, the first one greedily
    actual = {name: value.item() for name, value in BINARY.scores(logits, examples).items()}
    # Asked: token 1 (state 1, only 0), token 3 (the start: 0 or 1), token 4 (only 0); the separator is not.
    assert actual["accuracy"] == 1.0
    assert actual["tvd"] == pytest.approx((0.75 + 0.5 + 0.75) / 3)
    assert (actual["last_accuracy"], actual["last_tvd"]) == (1.0, pytest.approx(0.75))
    assert set(actual) == {"accuracy", "tvd", "last_accuracy", "last_tvd"}
    logits[0, 3, 1] = 1.0
    wrong = BINARY.scores(logits, examples)
    assert wrong["accuracy"].item() == pytest.approx(2 / 3)
    assert wrong["last_accuracy"].item() == 0.0


def test_counting_in_the_context_by_hand():
    shares = ngram_log_probabilities(BINARY, examples_of(0, 0, 2, 1, 0), 2).exp()[0, :, 0].tolist()
    # Nothing is known; 0 followed 0; the separator and 1 are new, and over all 0, then 0 and 1 came; 0 followed 0.
    assert shares == [0.5, 1.0, 1.0, 0.5, 1.0]
    examples = examples_of(1, 0, 0, 0, 0, 0, 1, 0, 1, 0)
    shares = [ngram_log_probabilities(BINARY, examples, order).exp()[0, 9, 0].item() for order in range(4)]
    assert shares == pytest.approx([7 / 9, 2 / 3, 1 / 2, 0])


def test_counting_without_a_context_is_how_often_each_symbol_occurred():
    task = RegBench()
    examples = task.sample(3, 0, "test")
    place = 100
    # The first token of a text follows nothing.
    occurred = torch.nn.functional.one_hot(examples.tokens[:, 1 : place + 1], task.vocab_size).sum(1)
    expected = occurred[:, : task.num_symbols] / occurred[:, : task.num_symbols].sum(1, keepdim=True)
    actual = ngram_log_probabilities(task, examples, 0).exp()[:, place, : task.num_symbols]
    torch.testing.assert_close(actual, expected.double(), rtol=0, atol=1e-7)
