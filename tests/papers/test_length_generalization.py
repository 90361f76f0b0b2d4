"""Length generalization: the layout of MQMTAR, words and lengths; the evaluation, and the numbers of the table."""

import math
from dataclasses import replace
from itertools import permutations
from types import SimpleNamespace

import pytest
import torch

from tessera.models.memory_mosaic import MemoryMosaicConfig, MemoryMosaicForCausalLM
from tessera.ops.linear_cross_entropy import IGNORED
from tessera.papers.experiment import RunSelection
from tessera.papers.length_generalization.report import EXPERIMENT, FACTORS, SETTINGS, _row, evaluate, half, sharper
from tessera.papers.length_generalization.task import MultiQueryRecall, Sort, distinct, num_pairs, vocabularies
from tessera.tasks.task import TokenExamples
from tests.tasks.cases import case_of

SMALL = MultiQueryRecall(length=40, spread=20, num_symbols=16, num_words=50)


def rows(task, count=60, seed=0):
    """Source and target of each example, and what follows them."""
    special = task.special
    examples = task.sample(count, seed)
    for tokens, labels in zip(examples.tokens.tolist(), examples.labels.tolist()):
        assert tokens[0] == special["bos"]
        sep, eos = tokens.index(special["sep"]), tokens.index(special["eos"])
        assert tokens[eos + 1 :] == [special["pad"]] * (len(tokens) - eos - 1)
        assert labels == [IGNORED] * (sep + 1) + tokens[sep + 1 : eos + 1] + [IGNORED] * (len(tokens) - eos - 1)
        yield tokens[1:sep], tokens[sep + 1 : eos]


@pytest.mark.parametrize("task", [SMALL, MultiQueryRecall()])
def test_layout_of_mqmtar(task):
    keys, values = (
        {tuple(word) for word in words.tolist()} for words in vocabularies(task.num_symbols, task.num_words, 0)
    )
    for source, target in rows(task):
        context, queries = source[:-12], source[-12:]
        stored = {}
        separators = [place for place, token in enumerate(context) if token == 1]
        for separator in separators:
            block = context[separator - 2 : separator + 4]
            assert tuple(block[:2]) in keys
            assert tuple(block[3:5]) in values
            assert block[5] == 0
            stored[tuple(block[:2])] = block[3:5]
        assert len(stored) == len(separators) == int(0.8 * len(context) // 6)
        assert len({tuple(value) for value in stored.values()}) == len(separators)
        assert sum(token == 0 for token in context) == len(context) - 5 * len(separators)
        assert queries[::3] == [2] * 4
        assert target == [token for j in range(0, 12, 3) for token in (2, *stored[tuple(queries[j + 1 : j + 3])])]


def test_filler_and_queries_are_spread_evenly():
    task = replace(SMALL, length=30, spread=0)  # 4 pairs and 6 spare fillers
    first, questions, count = [], torch.zeros(4), 4000
    for source, _ in rows(task, count):
        separators = [place for place, token in enumerate(source[:-12]) if token == 1]
        first.append(separators[0] - 2)
        keys = [tuple(source[separator - 2 : separator]) for separator in separators]
        for place in range(30, 42, 3):
            questions[keys.index(tuple(source[place + 1 : place + 3]))] += 1
    # 10 units in random order: 6 fillers fall into 5 gaps alike.
    before = torch.tensor(first, dtype=torch.float64)
    assert abs(before.mean() - 6 / 5) < 6 * before.std() / count**0.5
    assert before.max() == 6
    assert (questions / (4 * count) - 1 / 4).abs().max() < 6 * (0.25 * 0.75 / (4 * count)) ** 0.5


def test_lengths_are_uniform_and_exact_in_tests():
    lengths = torch.tensor([len(source) for source, _ in rows(Sort(6, 2, 4), 3000)])
    counts = torch.bincount(lengths, minlength=9)[4:]
    assert len(counts) == 5
    assert (counts / 3000 - 1 / 5).abs().max() < 6 * (0.2 * 0.8 / 3000) ** 0.5
    assert {len(source) for source, _ in rows(Sort().at_length(70))} == {70}
    assert {len(source) for source, _ in rows(MultiQueryRecall().at_length(64))} == {64 + 12}


@pytest.mark.parametrize(("of", "count"), [(12, 2), (4, 2)])
def test_distinct_numbers_are_uniform_in_every_order(of, count):
    total = 30_000
    drawn = distinct(total, count, of, torch.Generator().manual_seed(0))
    codes = torch.bincount(drawn[:, 0] * of + drawn[:, 1], minlength=of * of)
    pairs = [a * of + b for a, b in permutations(range(of), 2)]
    assert codes[pairs].sum() == total
    share = 1 / len(pairs)
    assert (codes[pairs] / total - share).abs().max() < 6 * (share * (1 - share) / total) ** 0.5


def test_words_are_fixed_and_distinct():
    keys, values = vocabularies(256, 10_000, 0)
    for words in (keys, values):
        assert words.shape == (10_000, 2)
        assert len(words.unique(dim=0)) == 10_000
        assert (words.min(), words.max()) == (3, 258)
    assert not torch.equal(keys, values)
    assert not torch.equal(keys, vocabularies(256, 10_000, 1)[0])
    assert [num_pairs(n) for n in (8, 15, 64, 4096)] == [1, 2, 8, 546]


def test_one_wrong_value_is_no_match_and_a_wrong_separator_is_not_asked():
    examples = SMALL.sample(4, 0)
    logits = case_of(SMALL).oracle(examples)
    sep = examples.tokens.tolist()[0].index(SMALL.special["sep"])
    logits[0, sep] = 0  # the first "2"
    assert SMALL.scores(logits, examples)["exact_match"].tolist() == [1, 1, 1, 1]
    logits[0, sep + 1] = 0
    scores = SMALL.scores(logits, examples)
    assert scores["exact_match"].tolist() == [0, 1, 1, 1]
    assert scores["token_accuracy"].tolist() == [7 / 8, 1, 1, 1]


def test_second_symbols_by_whether_their_first_is_shared():
    task = MultiQueryRecall(length=8, spread=0, num_symbols=4, num_words=16, num_queries=2)
    examples = task.sample(200, 0)
    logits = case_of(task).oracle(examples)
    logits[:, -3] = 0  # predicts the second symbol of the second value
    scores = task.scores(logits, examples)
    assert (scores["first_symbol"] == 1).all()
    assert (scores["second_symbol"] == 0.5).all()
    for tokens, alone, shared in zip(examples.tokens.tolist(), scores["second_alone"], scores["second_shared"]):
        counts = tokens[1:9].count(tokens[-3])
        assert (alone if counts == 1 else shared) == 0.5
        assert (shared if counts == 1 else alone).isnan()


def settings_of(budget, task):
    return next(settings for settings in SETTINGS[budget] if settings.key == task)


class Knowing(torch.nn.Module):
    """The oracle as a model; below `longest` tokens it knows, beyond it guesses."""

    def __init__(self, task, longest):
        super().__init__()
        self.case, self.longest, self.rows, self.seen = case_of(task), longest, [], []

    def forward(self, input_ids, use_cache):
        self.rows.append(len(input_ids))
        self.seen += input_ids.tolist()
        examples = TokenExamples(input_ids, input_ids)
        knows = input_ids.shape[1] < self.longest
        return SimpleNamespace(logits=self.case.oracle(examples) if knows else self.case.guess(examples, 0))


@pytest.mark.parametrize("task", ["mqmtar", "sort", "reverse"])
def test_evaluation_is_batched_and_counts(task):
    setting = settings_of("smoke", task)
    model = Knowing(setting.trained_task, longest=setting.task_at(2).sample(1, 0).tokens.shape[1])
    short, long = (evaluate(model, setting, factor, "cpu") for factor in (1, 2))
    assert short["exact_match"] == [1.0, 0.0, 20]
    assert long["token_accuracy"][0] < 0.8
    assert 4 <= long["exact_match"][2] <= 20


def test_rows_of_one_batch_hold_no_more_than_16384_tokens():
    setting = settings_of("cpu", "mqmtar")
    model = Knowing(setting.trained_task, longest=10**6)
    tested = evaluate(model, setting, 16, "cpu")["exact_match"][2]
    assert sum(model.rows) == tested == 60_000 // 1045
    assert max(model.rows) == 16_384 // 1045
    assert len({tuple(row) for row in model.seen}) == tested


def test_sharper_memories_at_the_longest_length_that_still_works():
    setting = settings_of("smoke", "reverse")
    config = MemoryMosaicConfig(vocab_size=12, hidden_size=16, num_layers=2, num_heads=2, num_persistent_slots=4)
    model = MemoryMosaicForCausalLM(config).eval()
    scores = {"1": {"token_accuracy": [0.9, 0.0, 20]}, "2": {"token_accuracy": [0.6, 0.0, 20]}}
    before = evaluate(model, setting, 2, "cpu")
    sharp = sharper(model, setting, scores, "cpu")["sharper"]
    assert set(sharp) == {"2"}
    assert sharp["2"].keys() == before.keys()
    for layer in model.model.layers:
        slopes = [memory.bandwidth(memory.kernel)[0] for memory in (layer.contextual, layer.persistent)]
        assert torch.allclose(slopes[0], torch.tensor(2 * math.e**2))
        assert torch.allclose(slopes[1], torch.tensor(math.e**2))
    scores["2"]["token_accuracy"][0] = 0.4
    assert set(sharper(model, setting, scores, "cpu")["sharper"]) == {"1"}
    assert sharper(torch.nn.Linear(1, 1), setting, scores, "cpu") == {}


def test_a_length_that_not_all_seeds_have_says_so():
    cells = _row("sort", "triweight", [{"1": (0.5, 0.1), "2": (0.25, 0.1)}, {"1": (0.75, 0.1)}], [1.0, 2.0, 4.0])
    assert cells[1] == "2"
    assert "(1 of 2 seeds)" in cells[3]
    assert "seeds" not in cells[2] + cells[4]


def test_where_a_curve_falls_below_one_half():
    assert half({1: 1.0, 2: 0.75, 4: 0.25}) == "2.83x"
    assert half({2: 0.9, 1: 1.0}) == "> 2x"
    assert half({1: 0.2, 2: 0.9}) == "< 1x"


def test_kernels_alone_leave_the_transformer_out():
    keys = {run.key for run in EXPERIMENT.runs(RunSelection("cpu", kernels=("biweight",)))}
    assert keys == {f"{task}/biweight/seed 0" for task in (*FACTORS, "sort_long")}
    keys = {run.key for run in EXPERIMENT.runs(RunSelection("cpu", models=("transformer",)))}
    assert keys == {f"{task}/transformer/seed 0" for task in (*FACTORS, "sort_long")}
