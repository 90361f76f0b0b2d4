"""Many-shot classification: prompts, files, episodes, and how accuracy on new classes is measured."""

from collections import Counter
from random import Random

import pytest

from tessera.papers.experiment import RunSelection
from tessera.papers.many_shot.report import BUDGETS, EXPERIMENT, build, evaluate
from tessera.papers.many_shot.task import (
    BANKING77,
    STRATEGIES,
    TEMPLATES,
    Example,
    ManyShot,
    by_label,
    draw_episode,
    read_examples,
)
from tests.refusals import refused
from tests.tasks.cases import case_of

SHOWN = [
    Example("I am still waiting on my card?", "city_arrival"),
    Example("My card has been found. Is there any way for me to put it back into the app?", "city_linking"),
]
QUERY = Example("Can I get a card even if I live outside the UK?", "?")


def test_prompts_are_those_of_appendix_g():
    head = (
        "Given a customer service query, please predict the intent of the query. The predict answer must come from the "
        "demonstration examples with the exact format. The examples are as follows:"
    )
    assert TEMPLATES["banking77"].prompt(SHOWN, QUERY, "newline") == head + (
        " service query:\nI am still waiting on my card?\nintent category:\ncity_arrival\n"
        "service query:\nMy card has been found. Is there any way for me to put it back into the app?\n"
        "intent category:\ncity_linking\n"
        "service query:\nCan I get a card even if I live outside the UK?\nintent category:"
    )
    assert TEMPLATES["banking77"].prompt(SHOWN, QUERY, "space") == head + (
        "\nservice query: I am still waiting on my card?\nintent category: city_arrival\n"
        "service query: My card has been found. Is there any way for me to put it back into the app?\n"
        "intent category: city_linking\n"
        "service query: Can I get a card even if I live outside the UK?\nintent category:"
    )
    assert TEMPLATES["goemotions"].question(Example("Oh.", "joy"), "space") == "comment: Oh.\nemotion category:"
    refused("delimiter must be newline or space; got 'tab'", TEMPLATES["banking77"].prompt, SHOWN, QUERY, "tab")


def test_the_bundled_files_are_the_published_ones():
    train, test = (by_label(read_examples("banking77", BANKING77 / f"{name}.csv")) for name in ("train", "test"))
    assert sum(map(len, train.values())) == 10_003
    assert {len(examples) for examples in test.values()} == {40}
    assert len(test) == 77
    assert list(train) == list(test)
    assert min(map(len, train.values())) == 35


def test_goemotions_takes_the_rows_with_one_label(tmp_path):
    (tmp_path / "labels.txt").write_text("admiration\namusement\nanger")
    path = tmp_path / "test.tsv"
    path.write_text('text\tlabel\tid\n"Quoted\t2\tab\nTwo labels\t0,1\tcd\nPlain \t0\tef\n')
    assert read_examples("goemotions", path) == [Example('"Quoted', "anger"), Example("Plain", "admiration")]
    path.write_text("text without a label\n")
    refused("line 1 must be text, labels below 3 and id", read_examples, "goemotions", path)
    path.write_text("text\t3\tid\n")
    refused("line 1 must be", read_examples, "goemotions", path)
    refused("cannot be read", read_examples, "goemotions", tmp_path / "none.tsv")
    (tmp_path / "labels.txt").unlink()
    refused("test.tsv: labels.txt or emotions.txt must lie beside it", read_examples, "goemotions", path)


def test_a_row_ends_at_a_line_feed_alone(tmp_path):
    path = tmp_path / "train.csv"
    for mark in ("", "\ufeff"):
        path.write_text(mark + 'text,category\nOne\u2028text,a\n"Two\nlines",b\n', encoding="utf-8")
        assert read_examples("banking77", path) == [Example("One text", "a"), Example("Two lines", "b")]


GROUPS = {name: [Example(f"{name} {number}", name) for number in range(5)] for name in "abc"}


@pytest.mark.parametrize("order", ["fixed", "shuffled", "mixed"])
def test_a_shot_is_one_example_of_every_class(order):
    episode = draw_episode(GROUPS, GROUPS, "abc", 4, order, True, Random(1), num_queries=2)
    texts = [one.text for one in episode.demonstrations]
    assert len(set(texts)) == 12
    assert not {query.text for query in episode.queries} & set(texts)
    shown = dict(zip(episode.classes, episode.labels))
    assert sorted(shown.values()) == ["class 1", "class 2", "class 3"]
    for one in (*episode.demonstrations, *episode.queries):
        assert one.label == shown[one.text[0]]
    shots = [tuple(one.label for one in episode.demonstrations[place : place + 3]) for place in range(0, 12, 3)]
    if order == "fixed":
        assert shots == [episode.labels] * 4
    elif order == "shuffled":
        assert all(Counter(shot) == Counter(episode.labels) for shot in shots)
        assert len(set(shots)) > 1
    else:
        assert any(Counter(shot) != Counter(episode.labels) for shot in shots)


def test_semantic_labels_are_the_classes():
    episode = draw_episode(GROUPS, GROUPS, "abc", 2, "fixed", False, Random(0))
    assert episode.labels == episode.classes
    too_many = (GROUPS, GROUPS, "abc", 6, "fixed", False, Random(0))
    refused("shots must be at most the examples of the class", draw_episode, *too_many)
    without_b = ({name: GROUPS[name] for name in "ac"}, GROUPS, "abc", 1, "fixed", False, Random(0))
    refused(r"the examples of the class 'b' \(0\)", draw_episode, *without_b)


def test_a_row_is_the_prompt_with_one_token_for_each_label():
    task = ManyShot(shots=2, num_classes=4, order="mixed", dense=True, vocab_size=400)
    examples = task.sample(6, 0)
    for row, labels, episode in zip(examples.tokens, examples.labels, examples.details):
        targets = labels[labels >= 0].tolist()
        shown = [one.label for one in episode.demonstrations][4:] + [episode.queries[0].label]
        assert targets == [task.label(label) for label in shown]
        text = task.vocabulary.decode(row.tolist())
        assert text.count("service query:") == 9


def test_the_likeliest_label_is_chosen_among_the_labels_of_the_context():
    task = ManyShot(shots=1, num_classes=2, vocab_size=400)
    examples = task.sample(4, 0)
    logits = case_of(task).oracle(examples)
    logits[..., 7] = 2.0  # some word is likelier than every label
    scores = task.scores(logits, examples)
    assert scores["exact_match"].tolist() == [0.0] * 4
    assert scores["likeliest_label"].tolist() == [1.0] * 4


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("banking77", b"text,category\n\xff,a\n", "text must be UTF-8"),
        ("banking77", b"question,intent\na,b\n", r"header text,category; got \['question', 'intent'\]"),
        ("banking77", b"text,category\nonly text\n", "line 2 must hold a text and a category"),
        ("banking77", b"text,category\n", "must hold labelled texts; got none"),
        ("goemotions", b"\xff\t0\ta\n", "text must be UTF-8"),
        ("goemotions", b"", "must hold labelled texts; got none"),
        ("goemotions", "a\t²\tid\n".encode(), "line 1 must be text, labels below 1 and id"),
    ],
)
def test_files_without_labelled_texts(kind, content, message, tmp_path):
    (tmp_path / "labels.txt").write_text("joy\n")
    (tmp_path / "file").write_bytes(content)
    refused(message, read_examples, kind, tmp_path / "file")


@pytest.mark.parametrize("distinct", [1, 2])
def test_repeated_texts_take_turns_and_queries_are_among_them(distinct):
    task = ManyShot(shots=4, num_classes=3, distinct=distinct, order="fixed")
    for episode in task.episodes(5, 0, num_queries=3):
        for label in episode.labels:
            texts = [one.text for one in episode.demonstrations if one.label == label]
            assert texts == texts[:distinct] * (4 // distinct)
            assert len(set(texts)) == distinct
        assert {(one.text, one.label) for one in episode.queries} <= {
            (one.text, one.label) for one in episode.demonstrations
        }


SMOKE = BUDGETS["smoke"]


def test_every_number_of_shots_and_strategy_is_tested():
    scores = evaluate(build(SMOKE).eval(), SMOKE, type("Context", (), {"report": staticmethod(lambda *_: None)}))
    assert list(scores) == ["1", "2"]
    for by_strategy in scores.values():
        assert tuple(by_strategy) == STRATEGIES
        for one in by_strategy.values():
            assert one["exact_match"][2] == SMOKE.contexts
            assert 0 <= one["exact_match"][0] <= one["likeliest_label"][0] <= 1


def test_models_of_a_budget_have_one_size():
    counts = []
    for run in EXPERIMENT.runs(RunSelection("cpu", seeds=1)):
        counts.append(sum(parameter.numel() for parameter in build(run.configuration).parameters()))
    assert max(counts) / min(counts) < 1.02
    assert max(counts) < 2_000_000
