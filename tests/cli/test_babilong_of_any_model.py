"""BABILong in anybody's tokens: one command trains a model, one scores it as the benchmark; and with adapters."""

import csv
import json
import sys
from dataclasses import replace

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks import babilong_lora
from tessera.data.tokenizers import byte_tokenizer, train_bpe
from tessera.generation.sampling import Sampling
from tessera.memory_files.answering import answer
from tessera.models.saving.loading import load_model, load_tokenizer
from tessera.ops.linear_cross_entropy import IGNORED
from tessera.papers.babilong.asking import answered, shots_of
from tessera.papers.babilong.benchmark import TextSample, published_match
from tessera.papers.babilong.stories import examples_of, facts_of, labels
from tessera.papers.babilong.task import BABILong
from tessera.papers.babilong.vocabulary import pretrained
from tessera.training.fit import train_recipe_stages
from tessera.training.staged_data import task_tokenizer
from tests import refusals
from tests.tasks.cases import case_of

END = "<|endoftext|>"


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    """A tokenizer that has most words of the stories; of "garden" two parts."""
    texts = [f" {text.replace('garden', 'gar den')}" for text in facts_of("qa3") + examples_of("qa3")]
    folder = tmp_path_factory.mktemp("tokens")
    train_bpe([*texts, *(100 * ["\nQuestion:\nAnswer:"])], 600).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def task(short_books, tokens):
    return BABILong("qa3", length=300, facts_share=0.6, tokenizer=tokens)


def test_facts_questions_and_answers_are_text(task, tokens):
    tokenizer = pretrained(tokens)
    vocabulary = tokenizer.get_vocab()
    examples = task.sample(12, 0)
    for row, sample in zip(examples.tokens, examples.details):
        text = tokenizer.decode(row)
        assert all(f" {fact}" in text for fact in sample.story.facts)
        asked = f"\nQuestion: {sample.question.text}\nAnswer: {sample.question.answer}{END}"
        assert text.partition(asked)[1] == asked
        assert not text.partition(asked)[2].replace(END, "")
    counts = (examples.labels != IGNORED).sum(1)
    assert set(counts.tolist()) > {2}, "an answer and its end, and answers of several tokens"
    assert task.scores(case_of(task).oracle(examples), examples)["exact_match"].all()
    assert task.scores(case_of(task).oracle(examples), examples)["published_match"].all()
    assert not task.scores(case_of(task).guess(examples, 0), examples)["exact_match"].all()
    assert tokenizer.get_vocab() == vocabulary, "nothing is added"


def test_every_token_of_an_answer_counts(task):
    """The first may be shared by two answers."""
    examples = task.sample(12, 0)
    logits = case_of(task).oracle(examples)
    several = (examples.labels != IGNORED).sum(1) > 2
    second = (examples.labels != IGNORED).int().argmax(1)[several]  # predicts the second token of these answers
    logits[several.nonzero().flatten(), second] = 0
    assert (task.scores(logits, examples)["exact_match"].bool() == ~several).all()


def test_tokens_that_cannot_be_asked_in(tmp_path):
    byte_tokenizer().save_pretrained(tmp_path / "bytes")
    too_many = "tokenizer must take at most 20 tokens for a question and its answer; got"
    refusals.refused(too_many, BABILong, tokenizer=str(tmp_path / "bytes"))
    endless = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "bytes" / "tokenizer.json"))
    endless.save_pretrained(tmp_path / "endless")
    refusals.refused("must have an eos_token", BABILong, tokenizer=str(tmp_path / "endless"))


def test_shots_are_stories_of_the_task_with_their_answers():
    shots = shots_of("qa1", 3).split("\n\n")[:-1]
    assert len(shots) == len(set(shots)) == 3
    for shot in shots:
        facts, question, answer = shot.split("\n")
        assert facts.endswith(".")
        assert question.removeprefix("Question: ") in examples_of("qa1")
        assert answer.removeprefix("Answer: ") in labels("qa1")


def transformer(kind, folder, tokenizer):
    """A random model of transformers with its tokenizer, as a trained one lies in a folder."""
    torch.manual_seed(0)
    end = tokenizer.eos_token_id
    size = {"vocab_size": len(tokenizer), "eos_token_id": end, "bos_token_id": end}
    if kind == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=512, **size))
    else:
        model = LlamaForCausalLM(
            LlamaConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, **size)
        )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.usefixtures("short_books")
@pytest.mark.parametrize("words", [True, False])
def test_questions_are_put_as_the_training_puts_them(tokens, tmp_path, words):
    """Also after saving and loading; a model of text gets the question as it is."""
    task = BABILong("qa1", length=300, facts_share=0.6, **({} if words else {"tokenizer": tokens}))
    folder = transformer("gpt2", tmp_path, task_tokenizer(task))
    question, model = "Where is Mary?", load_model(folder)
    said = answer(model, load_tokenizer(folder), question, None)
    assert said.question.tolist() == task.question_tokens(question).tolist()
    said = answer(model, pretrained(tokens), question, None, Sampling(max_new_tokens=2))
    assert said.question.tolist() == pretrained(tokens)(question)["input_ids"]
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"question_format": "Answer:"}))
    if not words:
        needed = 'tokenizer_config.json: question_format must be a text with "{question}"'
        refusals.refused(needed, answer, model, load_tokenizer(folder), question, None)


@pytest.mark.usefixtures("short_books")
def test_samples_are_asked_as_the_training_asks(tokens, tmp_path, monkeypatch):
    """The text is read first, behind the shots; then `answer` puts the question. A model of text reads all at once."""
    task = BABILong("qa1", length=300, facts_share=0.6, tokenizer=tokens)
    model = load_model(transformer("gpt2", tmp_path, task_tokenizer(task)))
    sample, seen = TextSample("Mary went to the garden.", "Where is Mary?", "garden"), []

    def spy(model, tokenizer, question, state, sampling):
        seen.append((question, 0 if state is None else state.get_seq_length()))
        return answer(model, tokenizer, question, state, sampling)

    monkeypatch.setattr("tessera.papers.babilong.asking.answer", spy)
    for shots in (None, "John is home. "):
        for tokenizer in (task_tokenizer(task), pretrained(tokens)):
            answered(model, tokenizer, sample, ["garden"], Sampling(max_new_tokens=2), shots)
    sizes = [len(pretrained(tokens)(text)["input_ids"]) for text in (sample.input, "John is home. " + sample.input)]
    assert seen == [
        (sample.question, sizes[0]),
        (f"{sample.input}\n{sample.question}", 0),
        (sample.question, sizes[1]),
        (f"John is home. {sample.input}\nQuestion: {sample.question}\nAnswer:", 0),
    ]


@pytest.mark.usefixtures("short_books")
@pytest.mark.parametrize("kind", ["gpt2", "llama", "mamba", "memory_mosaic_v2", "armt around gpt2"])
def test_one_command_trains_and_one_scores(tessera, kind, tokens, tmp_path):
    tokenizer = pretrained(tokens)
    base = transformer(kind.split()[-1], tmp_path / "base", tokenizer) if kind.endswith(("gpt2", "llama")) else None
    section = {
        "mamba": "{type: mamba, hidden_size: 16, num_hidden_layers: 1, state_size: 4}",
        "memory_mosaic_v2": "{type: memory_mosaic_v2, hidden_size: 16, num_layers: 1, num_heads: 2}",
        "armt around gpt2": f"{{type: armt, segment_size: 64, num_memory_tokens: 2, memory_dim: 4, base: {base}}}",
        "gpt2": "{type: gpt2, n_embd: 16, n_layer: 1, n_head: 2, n_positions: 512}",
        "llama": "{type: llama, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 16}",
    }[kind]
    start = f", initialize_from: {base}" if kind in ("gpt2", "llama") else ""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"""
model: {section}
data:
  task: {{name: babilong, kind: qa1, tokenizer: {tokens}, facts_share: 0.6}}
  questions: 2
  context: 64
training:
  {{batch_size: 2, evaluate_sequences: 2, curriculum: [{{length: 2, min_length: 2, steps: 2}}]{start}}}
""")
    status, out, err = tessera("train", recipe, "--output", tmp_path / "run")
    assert (status, "of the answers are right" in out) == (0, True), err
    (tmp_path / "qa1").mkdir()
    file = tmp_path / "qa1" / "1k.json"
    rows = [
        {"input": "Mary went to the garden. It rained.", "question": "Where is Mary? ", "target": target}
        for target in ("garden", "kitchen")
    ]
    file.write_text(json.dumps(rows))
    stored, folder = tmp_path / "rows.jsonl", tmp_path / "evals"
    options = ("--shots", 2, "--results", folder, "--output", stored)
    status, out, err = tessera("ask", tmp_path / "run", "--samples", file, file, *options)
    assert (status, out.count("2 samples of 1k.json")) == (0, 2), err
    answers = [json.loads(line) for line in stored.read_text().splitlines()]
    assert len(answers) == 4
    (table,) = folder.glob("*.csv")
    assert table.name == "qa1_1k_instruction_no_examples_yes_post_prompt_no.csv"
    with open(table, newline="") as lines:
        read = list(csv.DictReader(lines))
    assert [(row["target"], row["question"]) for row in read] == [(row["target"], row["question"]) for row in rows]
    assert [row["output"] for row in read] == [row["answer"] for row in answers[:2]]
    for row in answers:
        assert row["published_match"] == published_match(row["answer"], row["question"], row["target"], labels("qa1"))
    prompt = json.loads(table.with_suffix(".json").read_text())
    longest = BABILong("qa1", length=300, facts_share=0.6, tokenizer=tokens).longest_answer
    assert prompt["prompt"]["examples"] == shots_of("qa1", 2)
    chosen = {"do_sample": False, "num_beams": 1, "max_new_tokens": longest, "repetition_penalty": 1.0}
    assert prompt["generate_kwargs"] | chosen == prompt["generate_kwargs"]


def test_what_a_model_of_transformers_is_asked(tessera, done, refused, tokens, tmp_path):
    """Without shots the text and the question; a file that names no task has no results and no shots."""
    tokenizer = pretrained(tokens)
    folder = transformer("llama", tmp_path / "llama", tokenizer)
    (tmp_path / "own.json").write_text('{"input": "Mary went home.", "question": "Where?", "target": "x"}')
    prompt = ("--prompt", "Mary went home.\nWhere?", "--max-new-tokens", 5, "--temperature", 0)
    said = tessera("generate", folder, *prompt)[1]
    stored, file = tmp_path / "rows.jsonl", tmp_path / "own.json"
    done("ask", folder, "--samples", file, "--max-new-tokens", 5, "--output", stored)
    assert json.loads(stored.read_text())["answer"].strip() in said
    refused("--results needs samples named by", "ask", folder, "--samples", file, "--results", tmp_path)
    done("ask", folder, "--samples", file, "--shots", 0)
    refused("--shots must come with samples of qa1", "ask", folder, "--samples", file, "--shots", 1)
    (other := tmp_path / "qa11_1k.json").write_text(file.read_text().replace('"x"', '"garden"'))
    refused("--shots must come with samples of qa1", "ask", folder, "--samples", other, "--shots", 1)
    assert "answers of the file, which is of qa11" in done("ask", folder, "--samples", other)[0]
    refused("--shots must come with --samples", "ask", folder, "Where?", "--text", file, "--shots", 1)


@pytest.mark.filterwarnings("ignore")  # peft's own
def test_memory_and_adapters_learn_and_the_base_stays(tokens, short_books, tmp_path, monkeypatch):
    pytest.importorskip("peft")
    base, trained = transformer("llama", tmp_path / "base", pretrained(tokens)), []

    def noted(model, *arguments):
        trained.append(model)
        return train_recipe_stages(model, *arguments)

    def small(folder, recipe=babilong_lora.recipe):
        settings = recipe(folder)
        task = {**settings.data.task, "facts_share": 0.9}
        training = replace(settings.training, batch_size=2, evaluate_sequences=2, warmup_steps=0)
        return replace(settings, data=replace(settings.data, task=task), training=training)

    monkeypatch.setattr(babilong_lora, "SEGMENT", 300)  # so many single letters
    monkeypatch.setattr(babilong_lora, "STAGES", tuple(replace(stage, steps=2) for stage in babilong_lora.STAGES))
    monkeypatch.setattr(babilong_lora, "recipe", small)
    monkeypatch.setattr(babilong_lora, "train_recipe_stages", noted)
    out = tmp_path / "out.json"
    options = ["--folder", str(tmp_path / "run"), "--segments", "1", "--texts", "2", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["babilong_lora", base, *options])
    babilong_lora.main()
    record = json.loads(out.read_text())
    assert [stage["steps_done"] for stage in record["stages"]] == [2, 2, 2]
    assert set(record["exact_match"]["1"]) >= {"question in the last segment", "question behind it"}
    (model,), before = trained, dict(load_model(base).named_parameters())
    learned = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert all(p.abs().sum() > 0 for p in learned.values())  # LoRA's B and what the memory adds are 0 at first
    assert all(any(part in name for name in learned) for part in ("lora_B", "memories", "memory_tokens"))
    for name, parameter in model.base.named_parameters():
        if (own := before.get(name.replace(".base_layer", ""))) is not None:
            assert torch.equal(parameter, own), name
