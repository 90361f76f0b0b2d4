"""A model is trained on questions and asked, from the command line alone."""

import io
import json
import re
from contextlib import redirect_stdout

import pytest
import torch

from tessera.cli.main import main
from tessera.data.encoding import token_stream
from tessera.data.text_files import text_of_files
from tessera.memory_files.answering import Answer
from tessera.memory_files.certainty import Certainty
from tessera.memory_files.memory import memory_of
from tessera.memory_files.planting import PlantedText
from tessera.models.saving.loading import load_model, load_tokenizer
from tests.refusals import refused

BOOK = "It was a dark night, and nobody had gone to bed in the old house. " * 40
FACTS = ("Mary went to the kitchen.", "Mary went to the garden.")


@pytest.fixture(scope="module")
def run(tmp_path_factory, short_books):
    """The README's first command, small: the folder of its run."""
    stages = "training.curriculum=[{length: 1, steps: 2}, {length: 2, steps: 1}]"
    small = ("model.base.hidden_size=16", "model.base.num_heads=2", "model.memory_dim=4", "training.batch_size=2")
    small += ("training.evaluate_sequences=2", "model.base.num_persistent_slots=8", stages)
    folder, printed = tmp_path_factory.mktemp("runs") / "run", io.StringIO()
    with redirect_stdout(printed):
        assert main(["train", "armt-babilong-qa1", *small, "--output", str(folder)]) == 0
    assert "% of the answers are right" in printed.getvalue()
    assert "nats/token of the answers (mean of batches)" in printed.getvalue()
    assert "nats per token of the answers, mean of batches" in (folder / "README.md").read_text()
    return folder


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text(BOOK)
    return path


def expected_answers(run, tokens, questions):
    """What `ask` prints, from the model's own logits behind `tokens`."""
    model, tokenizer = load_model(run), load_tokenizer(run)
    for question in questions:
        prompt = tokenizer(f"{question} <generate>", return_tensors="pt", add_special_tokens=False).input_ids
        assert prompt.shape[1] == 5
        memory = model(input_ids=tokens).memory_state
        with torch.no_grad():
            logits = model(input_ids=prompt, memory_state=memory, use_cache=True).logits[:, -1]
            without = model(input_ids=prompt, use_cache=True).logits[:, -1]
        probability, word = logits.softmax(-1).max(-1)
        certainty = float(Certainty.of(model).probabilities(logits, without, tokenizer.unk_token_id))
        yield Answer(tokenizer.decode(word), float(probability), prompt[0], word, certainty=certainty)


def test_the_second_command_prints_the_likeliest_word(done, run, book):
    """After reading the planted text, with its probability."""
    questions = ("Where is Mary?", "Where is John?")
    planting = [word for fact in FACTS for word in ("--plant", fact)]
    out, err = done("ask", run, *questions, "--text", book, *planting)
    planted = PlantedText(text_of_files([book]), book.stat().st_size, FACTS, 0)
    tokens = torch.tensor([list(token_stream(planted, load_tokenizer(run)))])
    assert f"book.txt: {tokens.shape[1]:,} tokens read" in err
    assert err.count("planted after") == 2
    answers = expected_answers(run, tokens, questions)
    assert out.splitlines() == [line for q, a in zip(questions, answers) for line in (f"> {q}", a.said())]
    assert "whether a text answers at all: measured on" in err
    assert 'run knows questions such as "Where is Daniel?"' in err
    assert "guess" not in err


def test_what_the_model_cannot_know_is_refused_or_said(tessera, run, book):
    reading = ("--text", book)
    unknown = "got 'Where is Bob or Eve?': it does not know Bob, Eve"
    status, out, err = tessera("ask", run, "Where is Bob or Eve?", *reading)  # behind what the run knows
    assert (status, out, unknown in err.splitlines()[-1]) == (2, "", True)
    status, out, err = tessera("ask", run, "Where is Mary?", *reading, "--plant", "Mary went to the moonbase.")
    assert (status, out, "--plant must be of words that the model knows" in err) == (2, "", True)
    _, _, err = tessera("ask", run, "Where is Mary?", *reading, "--plant", "Mary went to the kitchen.")
    assert "trained on no such sentence" not in err
    _, _, err = tessera("ask", run, "Where is Mary?", *reading, "--plant", "Mary was in the kitchen.")
    assert "trained on no such sentence, and may misread it: Mary was in the kitchen." in err
    status, out, err = tessera("ask", run, "Who was in the house?", *reading)
    assert (status, "trained on no such question; its answer is a guess" in err) == (0, True)
    status, _, err = tessera("ask", run, "Where is Mary?", *reading, "--temperature", 0.5)
    assert (status, "--temperature must be left out: this model answers questions" in err) == (2, True)
    refused("it does not know Bob, Eve", memory_of(run).expect_answers, ["Where is Bob or Eve?"])


@pytest.mark.parametrize("times", [4, 6])
def test_a_text_far_longer_than_what_was_measured_is_said(tessera, typed, run, tmp_path, times):
    text, measured = tmp_path / "long.txt", Certainty.of(load_model(run)).tokens
    text.write_text("rain " * (times * measured))
    _, _, of_ask = tessera("ask", run, "Where is Mary?", "--text", text)
    _, _, of_chat = typed(f"/read {text}\n", "chat", run)
    for err in (of_ask, of_chat):
        assert (f"{times} times as many tokens were read as those texts have" in err) == (times > 4)


def test_an_empty_text_is_named_by_the_option_that_named_it(tessera, typed, run, tmp_path):
    empty = tmp_path / "empty.txt"
    empty.touch()
    assert f"chat: /read must hold text; got {str(empty)!r}" in typed(f"/read {empty}\n", "chat", run)[2]
    assert "ask: --text must hold text; got 'empty.txt'" in tessera("ask", run, "Where is Mary?", "--text", empty)[2]


def test_questions_that_are_typed_are_answered_and_stored(typed, run, book, tmp_path):
    command, stored = ("ask", run, "--interactive", "--text", book), tmp_path / "answers.jsonl"
    status, out, err = typed("Where is Bob?\nWhere is Mary?\n", *command, "--output", stored)
    assert (status, len(out.splitlines()), "it does not know Bob" in err) == (0, 1, True)
    (row,) = [json.loads(line) for line in stored.read_text().splitlines()]
    assert row["question"] == "Where is Mary?"
    assert f"{row['answer']} ({100 * row['probability']:.1f} %" in out
    assert ("not in this text" in out) == (row["in_text"] < 0.5)


def test_other_verbs_know_what_the_run_was_trained_on(tessera, done, run):
    status, out, err = tessera("info", run)
    assert (status, 'it knows questions such as "Where is Daniel?"' in out) == (0, True), err
    status, out, err = tessera("generate", run, "--prompt", "Where is Mary?", "--max-new-tokens", 2)
    assert (status, "answers questions about a text: see tessera ask" in err) == (0, True)
    out, _ = done("eval", run, "--examples", 4)
    assert "run: babilong, 4 examples per length" in out
    assert "length 128 " in out  # what the last stage read: two segments of 64
    status, out, err = tessera("eval", run, "--task", "babilong", "--lengths", 100, "--examples", 4)
    assert (status, "length 100 " in out) == (0, True), err


def test_files_of_samples_are_scored(tessera, done, run, book, tmp_path):
    plain = re.search(r"(\S+) \(\d+\.\d %", tessera("ask", run, "Where is Mary?", "--text", book)[1])[1]
    samples, stored = tmp_path / "own.json", tmp_path / "samples.jsonl"
    rows = [{"input": BOOK, "question": "Where is Mary?", "target": target} for target in (plain, plain, "nowhere")]
    samples.write_text(json.dumps(rows))
    out, _ = done("ask", run, "--samples", samples, "--output", stored)
    assert out.splitlines() == [
        "3 samples of own.json, right in per cent:",
        "exact match       66.7",
        "benchmark's rule  66.7  (answers of the file, which is of none of its tasks)",
    ]
    rows = [json.loads(line) for line in stored.read_text().splitlines()]
    assert [row["target"] for row in rows] == [plain, plain, "nowhere"]
    assert [(row["prompt"], row["answer"]) for row in rows] == [(BOOK, plain)] * 3
    assert [row["exact_match"] for row in rows] == [True, True, False]


@pytest.mark.usefixtures("short_books")
def test_questions_of_ones_own_from_a_file_to_an_answer(tessera, typed, done, refused, tmp_path, monkeypatch):
    """From the command line alone, of a document too; afterwards the file may be gone."""
    rows = [{"text": f"Box {n} is dark red.", "question": f"What is box {n}?", "answer": "dark red"} for n in range(12)]
    file, run, book = tmp_path / "mine.jsonl", tmp_path / "run", tmp_path / "book.txt"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    book.write_text("It was a dark night. Box 3 is dark red. And that was all. " * 3)
    stages = "training.curriculum=[{length: 1, steps: 30, learning_rate: 0.01}]"
    small = ("model.hidden_size=16", "model.num_persistent_slots=8", "training.batch_size=8")
    small += ("training.evaluate_sequences=2", "data.task.absent=0.0", stages)
    done("train", "own-questions", f"data.task.file={file}", *small, "--output", run)
    command = ("ask", run, "What is box 3?", "--text", book)
    status, out, err = tessera(*command)
    assert (status, "dark red" in out) == (0, True), out
    assert 'knows questions such as "What is box 0?"' in err
    assert "whether a text answers at all: measured on" in err
    status, out, err = typed("/documents\nWho is box 3?\n", "chat", run)
    assert (status, out.splitlines()[0], len(out.splitlines())) == (0, "no documents", 2)
    assert 'knows questions such as "What is box 0?"' in err
    assert "its answer is a guess" in err
    status, out, err = tessera("eval", run, "--examples", 4)
    assert (status, "run: questions, 4 examples per length" in out) == (0, True), err
    nothing = ("--set", "absent=0.9", "--output", tmp_path / "rows.jsonl")
    done("eval", run, "--task", "questions", "--examples", 8, *nothing)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert {row["target"] for row in rows} == {"dark red", "not in this text"}
    for row in rows:
        assert row["prompt"].endswith("? <generate>")
        assert (row["answer"] == row["target"]) == (row["exact_match"] == 1), row
    status, out, _ = tessera("info", run)
    assert (status, "it knows questions such as" in out) == (0, True)
    (tmp_path / "book.pdf").write_bytes(b"%PDF-1.7")
    with monkeypatch.context() as patched:
        patched.setattr("tessera.memory_files.planting.text_of_document", lambda path, size=0: iter([book.read_text()]))
        planting = ("--text", tmp_path / "book.pdf", "--plant", "Box 4 is dark red.")
        status, out, err = tessera("ask", run, "What is box 3?", *planting)
        assert (status, "dark red" in out, "book.pdf: " in err) == (0, True, True), err
    file.rename(tmp_path / "moved.jsonl")
    status, out, err = tessera(*command)
    assert (status, "dark red" in out, "was trained on what cannot be read" in err) == (0, True, True)
    refused("data source", "train", "own-questions", f"data.task.file={file}", "--output", tmp_path / "other")
    config = run / "generation_config.json"
    config.write_text(config.read_text().replace('"tokens": 64', '"tokens": "many"'))
    status, out, err = tessera(*command)
    assert (status, out) == (2, "")
    assert "generation_config.json: certainty: tokens must be an integer; got 'many'" in err
