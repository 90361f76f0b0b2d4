"""The public benchmark of BABILong: its files, its labels, and both scorers."""

import json
from pathlib import Path

import pytest

from tessera.papers.babilong.benchmark import benchmark_labels, exact_match, published_match, read_samples, results_file
from tessera.papers.babilong.stories import labels
from tests.refusals import refused, refused_in_a_line


@pytest.mark.parametrize(
    ("output", "right", "published"),
    [
        (" Garden ", True, True),
        ("garden. then the kitchen", False, True),
        ("The garden or the kitchen", False, False),
        ("the office", False, False),
        ("between the hallway and the garden", False, True),
    ],
)
def test_both_scorers(output, right, published):
    question = "What is north of the hallway?"
    assert exact_match(output, "garden") == right
    assert published_match(output, question, "garden", labels("qa4")) == published


def test_public_files(tmp_path):
    rows = [{"input": "a b", "question": "q?", "target": "t"}] * 2
    (tmp_path / "list.json").write_text(json.dumps(rows))
    (tmp_path / "lines.json").write_text("\n".join(map(json.dumps, rows)) + "\n")
    for name in ("list.json", "lines.json"):
        assert [(one.input, one.target) for one in read_samples(tmp_path / name)] == [("a b", "t")] * 2
    (tmp_path / "bad.json").write_text('[{"input": "a"}]')
    (tmp_path / "separator.json").write_text(
        "\ufeff" + json.dumps({**rows[0], "input": "a\u2028b"}, ensure_ascii=False)
    )
    assert read_samples(tmp_path / "separator.json")[0].input == "a\u2028b"
    for wrong in ({"input": "a"}, {**rows[0], "target": " "}, {**rows[0], "question": "\ud800"}, "a\nb", 3, None):
        (tmp_path / "bad.json").write_text(json.dumps([wrong]))
        refused_in_a_line("row 1 must hold", read_samples, tmp_path / "bad.json")
    (tmp_path / "bad.json").write_text("[" * 200_000)
    refused("must be a JSON list", read_samples, tmp_path / "bad.json")


def test_the_benchmarks_rule_takes_its_own_labels():
    """Its files write names and lists of things as these."""
    people = ["Bill", "Fred", "football "]
    assert published_match("Bill", "Who gave the apple to Fred?", "Bill", people)
    assert not published_match("Jeff", "Who gave the apple to Fred?", "Bill", people)
    assert published_match(
        "the milk, the apple. Bill", "What is Mary carrying?", "apple,milk", ["apple", "milk", "Bill"]
    )
    assert not published_match("the milk", "What is Mary carrying?", "apple,milk", ["apple", "milk"])
    assert published_match("n,e", "How do you go there?", "n,e", ["n,e", "s,w"])


@pytest.mark.parametrize("targets", [["office"], ["office", "garden"], list(labels("qa1"))])
def test_what_the_benchmark_looks_for_are_the_answers_of_the_task(targets):
    """However few of them a file holds: else a model that names two places is right in small files."""
    for path, kind in (("qa1/4k.json", "qa1"), ("my.json", "qa1"), ("data/qa3_2k.jsonl", "qa3")):
        known, answers = benchmark_labels(Path(path), targets)
        assert (known, set(answers)) == (kind, set(labels(kind)))
        said = "Mary went from the kitchen to the office."
        assert not published_match(said, "Where is Mary?", "office", answers)
        assert published_match("She is in the office.", "Where is Mary?", "office", answers)
    assert benchmark_labels(Path("my.json"), ["Bill", "apple"])[0] == "qa5"
    assert benchmark_labels(Path("qa12/1k.json"), ["yes", "no"]) == ("qa12", {"yes", "no"})
    assert benchmark_labels(Path("own.json"), ["desk,bed", "shed"]) == ("", {"desk", "bed", "shed"})


def test_a_file_is_of_the_task_and_length_that_its_path_names_last():
    assert benchmark_labels(Path("qa1-runs/qa5/4k.json"), ["Bill"])[0] == "qa5"
    assert benchmark_labels(Path("qa1-runs/qa10/4k.json"), ["yes"]) == ("qa10", {"yes"})
    assert results_file(Path("out"), Path("up-to-10M/qa5/4k.json"), "qa5", False).name.startswith("qa5_4k_")


def test_a_named_task_is_not_guessed():
    """A file of QA11 in which all answers are places was scored as QA1, and its results replaced those of QA1."""
    path = Path("data/qa11/4k.json")
    kind, answers = benchmark_labels(path, ["kitchen"])
    assert (kind, answers) == ("qa11", {"kitchen"})
    assert results_file(Path("out"), path, kind, False).name.startswith("qa11_4k_")
