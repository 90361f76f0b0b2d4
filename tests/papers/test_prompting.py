"""Prompts of the v2 paper, asked of models with a tokenizer of their own."""

import json
import shutil
from functools import partial
from random import Random

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from tessera.data.tokenizers import byte_tokenizer
from tessera.models.memory_mosaic_v2 import MemoryMosaicV2Config, MemoryMosaicV2ForCausalLM
from tessera.models.transformer import transformer_config
from tessera.papers.document_qa.prompting import DocumentQuestion, QuestionFile, document_scores
from tessera.papers.many_shot import prompting
from tessera.papers.many_shot.prompting import LabelledTexts, episode_answers, many_shot_scores, request_of, requests_of
from tessera.papers.many_shot.task import DELIMITERS, TEMPLATES, Episode, Example, Template, draw_episode
from tests import refusals

TOKENIZER = byte_tokenizer()
GROUPS = {name: [Example(f"{name}{number}", name) for number in range(6)] for name in ("happy", "sad")}
TEXTS = LabelledTexts(GROUPS, GROUPS, TEMPLATES["goemotions"])
FILE = QuestionFile(("a b",), (DocumentQuestion("Why?", ("x",), (0,)),))
SIZES = {"vocab_size": len(TOKENIZER), "hidden_size": 16, "num_layers": 1, "num_heads": 2}


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(TOKENIZER), **sizes)).eval()


def test_scores_equal_those_of_each_prompt_alone():
    model = llama()
    scores = many_shot_scores(model, TOKENIZER, TEXTS, [1], contexts=2, queries=3, seed=5)
    for delimiter, order in (("newline", "fixed"), ("space", "shuffled")):
        random, between = Random(f"5 1 {order}"), DELIMITERS[delimiter]
        likeliest = []
        for _ in range(2):
            episode = draw_episode(GROUPS, GROUPS, list(GROUPS), 1, order, False, random, 3)
            right = 0
            for query in episode.queries:
                prompt = TEMPLATES["goemotions"].prompt(episode.demonstrations, query, delimiter)
                values = {}
                for label in episode.labels:
                    context = TOKENIZER(prompt)["input_ids"]
                    ids = torch.tensor([TOKENIZER(f"{prompt}{between}{label}\n")["input_ids"]])
                    with torch.no_grad():
                        log = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
                    values[label] = log[len(context) - 1 :].sum().item()
                right += max(values, key=values.get) == query.label
            likeliest.append(right / 3)
        got = scores["1"][f"{delimiter}, {order}"]["likeliest_label"]
        assert got["mean"] == pytest.approx(sum(likeliest) / 2)
        assert got["count"] == 2
    best = max(one["exact_match"]["mean"] for one in scores["1"].values())
    assert scores["1"]["best"]["exact_match"]["mean"] == best


def that_answers(text: str) -> LlamaForCausalLM:
    """A model that has learned to."""
    model = llama()
    ids = torch.tensor([[0, *TOKENIZER(f"category: {text}")["input_ids"]]])
    optimizer = torch.optim.Adam(model.parameters(), 3e-2)
    for _ in range(60):
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def test_a_label_that_another_begins_with_is_no_likelier_for_it():
    """P("class 1") is at least P("class 10") in every model; P("class 1\\n") is not."""
    query, template = Example("x", "class 10"), Template("", "", "category")
    for labels in (("class 1", "class 10"), ("class 10", "class 1")):
        episode = Episode((), (query, query._replace(label="class 1")), labels, labels)
        for right in labels:
            ask = partial(requests_of, that_answers(f"{right}\n"), TOKENIZER, template, episode, "space")
            answers = episode_answers(ask.args[0], episode, ask, 4)
            assert [answer.label for answer in answers] == [right, right]
            assert [answer.scores["exact_match"] for answer in answers] == [right == "class 10", right == "class 1"]


def test_an_end_token_that_a_tokenizer_adds_is_in_no_prompt(monkeypatch):
    """The answer would stand behind it."""
    ended, model, asked = byte_tokenizer(), llama(), []
    end = ended.eos_token_id
    ended.backend_tokenizer.post_processor = TemplateProcessing(
        f"$A {ended.eos_token}", special_tokens=[(ended.eos_token, end)]
    )
    assert ended("a")["input_ids"] == [*TOKENIZER("a")["input_ids"], end]
    assert request_of(model, ended, "a text", " sad") == request_of(model, TOKENIZER, "a text", " sad")
    monkeypatch.setattr(model, "generate", lambda ids, **options: asked.extend(ids[0].tolist()) or ids)
    document_scores(model, ended, FILE, [400])
    assert asked == TOKENIZER(TOKENIZER.decode(asked))["input_ids"]
    lengths, config = [], transformer_config(**SIZES, max_positions=9)
    monkeypatch.setattr(prompting, "expect_positions", lambda config, tokens, *words: lengths.append(tokens))
    for tokenizer in (TOKENIZER, ended):
        prompting.expect_room(config, tokenizer, TEXTS, [1], contexts=1, queries=1)
    assert lengths[: len(lengths) // 2] == lengths[len(lengths) // 2 :] != []


def test_a_prompt_that_does_not_fit_is_an_error():
    model = AutoModelForCausalLM.from_config(transformer_config(**SIZES, max_positions=40)).eval()
    assert request_of(model, TOKENIZER, "one two", " three").continuation == TOKENIZER(" three")["input_ids"]
    too_long = "a prompt must be at most 40, the positions .* got 45. Use fewer shots."
    refusals.refused(too_long, request_of, model, TOKENIZER, "x" * 40, "y" * 5)
    refusals.refused("length must be at most 40, the positions", document_scores, model, TOKENIZER, FILE, [64])


SQUAD = {"data": [{"paragraphs": [
    {"context": f"Text {number}.", "qas": [{"question": f"What {number}?", "answers": [{"text": str(number)}]}]}
    for number in range(5)
]}]}  # fmt: skip


def test_documents_are_asked_about_at_every_length():
    documents = tuple(f"text {number}" for number in range(30))
    questions = tuple(DocumentQuestion(f"Why {number}?", ("\n", "x"), (number,)) for number in range(4))
    file = QuestionFile(documents, questions)
    scores = document_scores(llama(), TOKENIZER, file, [400, 500, 5000], answer_tokens=4)
    counts = [one["documents"] for one in scores.values()]
    assert 1 <= counts[0] < counts[1] < counts[2] == 30
    for one in scores.values():
        assert one["contains_answer"]["count"] == 4


def test_answers_about_documents_are_the_likeliest_tokens_whatever_the_model_generates_by():
    model, rows = llama(), []
    model.generation_config.num_beams = 3
    document_scores(model, TOKENIZER, FILE, [400], answer_tokens=6, rows=rows)
    ids = torch.tensor([TOKENIZER(rows[0]["prompt"])["input_ids"]])
    for _ in range(6):
        ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], 1)
    assert rows[0]["answer"] == TOKENIZER.decode(ids[0, -6:], skip_special_tokens=True)


@pytest.fixture
def folder(tmp_path):
    MemoryMosaicV2ForCausalLM(MemoryMosaicV2Config(**SIZES, intermediate_size=16)).save_pretrained(tmp_path / "model")
    TOKENIZER.save_pretrained(tmp_path / "model")
    (tmp_path / "dev.json").write_text(json.dumps(SQUAD))
    (tmp_path / "labels.txt").write_text("joy grief")
    return tmp_path


def about_documents(folder):
    return ["--documents", "squad", "--files", folder / "dev.json", "--lengths", 400]


def test_the_command_asks_both_kinds(folder, done):
    files = [folder / f"{name}.tsv" for name in ("train", "test")]
    for file in files:
        file.write_text("".join(f"{file.stem} {n}\t{n % 2}\tid\n" for n in range(6)))
    few = ["--contexts", 2, "--queries", 2, "--shots", 1]
    out, _ = done("prompts", folder / "model", "--many-shot", "goemotions", "--files", *files, *few, "--json")
    (report,) = json.loads(out)
    strategies = {f"{between}, {order}" for between in ("newline", "space") for order in ("fixed", "shuffled")}
    assert set(report["scores"]["1"]) == strategies | {"best"}
    assert report["long_term_memory"] is True
    options = [*about_documents(folder), "--questions", 1, "--without-long-term-memory"]
    shown, _ = done("prompts", folder / "model", *options)
    assert "400 tokens, " in shown
    assert "0.0000 -" in shown  # of one question there is no error


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "--many-shot or --documents must be given, one of them"),
        (["--many-shot", "banking78"], "unknown data set 'banking78'. Did you mean 'banking77'?"),
        (["--many-shot", "goemotions"], "--files must name two files, examples and queries; got nothing"),
        (["--documents", "squad"], "--files must name one file; got nothing"),
        (["--documents", "squad", "--files", "."], "--files must be a file; got '.', which is no plain file"),
        (["--documents", "squad", "--shots", "2"], "--shots must be left out with --documents; got [2]"),
        (["--many-shot", "banking77", "--lengths", "9"], "--lengths must be left out with --many-shot; got [9]"),
    ],
)
def test_mistakes_are_one_line(options, words, refused):
    refused(words, "prompts", "nowhere", *options)


@pytest.mark.parametrize("kind", ["many-shot", "documents"])
def test_all_models_are_checked_before_the_first_is_asked(folder, refused, monkeypatch, kind):
    few = ["--contexts", 1, "--queries", 1, "--shots", 1]
    options = ["--many-shot", "banking77", *few] if kind == "many-shot" else about_documents(folder)
    short = AutoModelForCausalLM.from_config(transformer_config(**SIZES, max_positions=100))
    for part in (short, TOKENIZER):
        part.save_pretrained(folder / "short")
    monkeypatch.setattr("tessera.models.saving.loading.load_model", lambda *_, **__: pytest.fail("asked"))
    refused("must be at most 100, the positions that this", "prompts", folder / "model", folder / "short", *options)


def test_what_is_done_is_kept_when_a_model_fails(folder, tessera):
    """Its weights are damaged: that is noticed when it is its turn. The answers are stored, a line for each."""
    damaged = folder / "damaged"
    shutil.copytree(folder / "model", damaged)
    weights = (damaged / "model.safetensors").read_bytes()
    (damaged / "model.safetensors").write_bytes(weights[:-100])
    models, stored = (folder / "model", damaged, folder / "model"), folder / "rows.jsonl"
    status, out, err = tessera("prompts", *models, *about_documents(folder), "--questions", 2, "--output", stored)
    assert (status, out.count("400 tokens, "), "damaged: weights" in err) == (2, 2, True)
    rows = [json.loads(line) for line in stored.read_text().splitlines()]
    assert len(rows) == 4
    for row in rows:
        assert row["prompt"].endswith(f"Question: {row['question']} Answer:")
        assert row["contains_answer"] == any(target in row["answer"] for target in row["target"])


def test_stored_rows_add_up_to_the_scores():
    rows = []
    scores = many_shot_scores(llama(), TOKENIZER, TEXTS, [1], contexts=2, queries=3, rows=rows)
    assert len(rows) == 4 * 2 * 3
    for strategy in ("newline, fixed", "space, shuffled"):
        own = [row for row in rows if row["strategy"] == strategy]
        for name in ("exact_match", "likeliest_label"):
            assert sum(row[name] for row in own) / len(own) == pytest.approx(scores["1"][strategy][name]["mean"])
        assert all((row["answer"] == row["target"]) == row["likeliest_label"] for row in own)


def test_an_option_that_is_misspelt_is_refused():
    with pytest.raises(TypeError, match="context"):
        prompting.expect_room(LlamaConfig(), TOKENIZER, TEXTS, [1], context=2)
