"""Questions that share one reading: the loss and the answers of reading the text anew for each."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot
from transformers import AutoModelForCausalLM, GPTNeoXConfig, JambaConfig, JambaForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast

from tessera.evaluation.questions import answer_loss, question_logits, right_answers, score_answers
from tessera.models.armt import ARMTConfig, ARMTForCausalLM
from tessera.models.lstm import LSTMConfig, LSTMState
from tessera.models.memory_mosaic import MemoryMosaicConfig
from tessera.ops.linear_cross_entropy import IGNORED
from tessera.papers.associative_retrieval.task import AssociativeRetrieval
from tessera.papers.babilong.stories import PEOPLE, world_after
from tessera.papers.babilong.task import BABILong
from tessera.papers.babilong.vocabulary import decode
from tessera.tasks.question_answering import QuestionBatch
from tests.covering import each_value
from tests.refusals import refused
from tests.tasks.cases import suffixes

pytestmark = pytest.mark.usefixtures("short_books")

VOCABULARY, SEGMENT = 250, 32
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
NEOX = {**SIZES, "intermediate_size": 16, "max_position_embeddings": 64, "bos_token_id": None, "eos_token_id": None}
MOSAIC = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "num_persistent_slots": 8}
BASES = {"gpt_neox": GPTNeoXConfig(**NEOX), "memory_mosaic": MemoryMosaicConfig(**MOSAIC)}
TASK = BABILong("qa1", vocab_size=VOCABULARY, facts_share=0.6)


def mean_loss(*arguments, **options):
    total, count = answer_loss(*arguments, **options)
    return total / count


def shapes_read(model: nn.Module, monkeypatch) -> list[tuple[int, ...]]:
    """The shapes of what `model` reads from now on."""
    shapes, forward = [], type(model).forward

    def seen(self, input_ids, **options):
        shapes.append(tuple(input_ids.shape))
        return forward(self, input_ids=input_ids, **options)

    monkeypatch.setattr(type(model), "forward", seen)
    return shapes


def model_around(base: str) -> ARMTForCausalLM:
    torch.manual_seed(0)
    config = ARMTConfig(base_config=BASES[base], segment_size=SEGMENT, num_memory_tokens=2, memory_dim=4)
    model = ARMTForCausalLM(config).double().eval()
    for memory in model.memories:  # they start at 0: a memory that says nothing
        nn.init.normal_(memory.value.weight, std=0.3)
    return model


def asked_alone(model, batch):
    """The mean loss, and of each context the share of right answers, where each question is read with its context."""
    losses, shares = [], []
    for context, questions, labels in zip(batch.contexts, batch.questions, batch.labels):
        right = []
        for question, is_answer in zip(questions, labels != IGNORED):
            if is_answer.any():
                tokens = torch.cat([context, question])[None]
                logits = model(input_ids=tokens, use_cache=True).logits[0]
                first = int(is_answer.int().argmax()) + len(context)
                losses += [cross_entropy(logits[first + i - 1], tokens[0, first + i]) for i in range(2)]
                right.append(bool(logits[first - 1].argmax() == tokens[0, first]))
        shares.append(sum(right) / len(right))
    return torch.stack(losses).mean(), pytest.approx(shares)


@each_value(base=BASES.keys(), context_tokens={"open": 20, "whole": 3 * SEGMENT, "both": 3 * SEGMENT - 20})
def test_sharing_a_reading_changes_nothing(base, context_tokens):
    batch = TASK.question_batch(3, 4, context_tokens, 0, "train")
    model = model_around(base)
    expected, expected_shares = asked_alone(model, batch)
    loss = mean_loss(model, batch)
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=0)
    loss.backward()
    gradients = [memory.value.weight.grad for memory in model.memories]
    assert all(one is not None and bool(one.any()) for one in gradients) == (context_tokens >= SEGMENT)
    assert right_answers(model, batch).tolist() == expected_shares
    total, count, shares = score_answers(model, batch)
    torch.testing.assert_close(total / count, loss.detach(), rtol=1e-9, atol=0)
    assert shares.tolist() == expected_shares


def test_loss_and_right_answers_share_one_reading(monkeypatch):
    batch = BABILong("qa1", vocab_size=VOCABULARY).question_batch(3, 4, 3 * SEGMENT, 0, "train")
    model = model_around("memory_mosaic")
    read = shapes_read(model, monkeypatch)
    score_answers(model, batch)
    assert read == [tuple(batch.contexts.shape), (12, batch.questions.shape[-1])]


def test_a_model_that_loses_its_state_reads_each_question_with_its_context():
    batch = TASK.question_batch(3, 4, 40, 0, "train")
    torch.manual_seed(0)
    layers = {"num_key_value_heads": 2, "intermediate_size": 16, "attn_layer_period": 2, "attn_layer_offset": 1}
    settings = {**SIZES, **layers, "num_experts": 1, "mamba_d_state": 4, "mamba_dt_rank": 4, "initializer_range": 0.5}
    model = JambaForCausalLM(JambaConfig(**settings)).eval()
    with torch.no_grad():
        rows = torch.cat([batch.contexts.repeat_interleave(4, 0), batch.questions.flatten(0, 1)], 1)
        expected = model(rows).logits[:, 40:]
        torch.testing.assert_close(question_logits(model, batch), expected, rtol=0, atol=1e-4)
        total, count, _ = score_answers(model, batch)
        torch.testing.assert_close(total, answer_loss(model, batch)[0], rtol=1e-5, atol=0)
    assert count > 0


@pytest.mark.parametrize("name", ["memory_mosaic", "gpt_neox", "lstm"])
def test_models_that_read_whole_texts_score_from_one_reading(name, monkeypatch):
    batch = TASK.question_batch(3, 4, 40, 0, "train")
    torch.manual_seed(0)
    lstm = LSTMConfig(vocab_size=VOCABULARY, hidden_size=16, initializer_range=1.0)
    model = AutoModelForCausalLM.from_config(lstm if name == "lstm" else BASES[name]).double().eval()
    for row, place in product(range(3), (1, 3)):  # a model that has learned nothing is right by chance alone
        is_answer = batch.labels[row, place] != IGNORED
        if is_answer.any():
            first = int(is_answer.int().argmax())
            tokens = torch.cat([batch.contexts[row], batch.questions[row, place, :first]])[None]
            said = model(input_ids=tokens).logits[0, -1].argmax()
            batch.questions[row, place, first] = batch.labels[row, place, first] = said
    _, expected_shares = asked_alone(model, batch)
    loss, count = answer_loss(model, batch)
    read = shapes_read(model, monkeypatch)
    total, same_count, shares = score_answers(model, batch)
    torch.testing.assert_close(total, loss.detach().double(), rtol=1e-6, atol=0)
    assert same_count == count
    assert shares.tolist() == expected_shares
    assert 0 < shares.max() < 1
    questions = batch.questions
    assert read == [batch.contexts.shape, (12, questions.shape[-1]), (3, questions[0].numel())]


class OneWord(nn.Module):
    """A model without a memory that says the same word always, and counts what it reads."""

    def __init__(self, word: int):
        super().__init__()
        self.word, self.read = nn.Parameter(torch.tensor(float(word))), 0

    def forward(self, input_ids, past_key_values=None, use_cache=False):
        self.read += input_ids.numel()
        nothing = torch.zeros(len(input_ids), 1, 1)
        words = one_hot(torch.full_like(input_ids, int(self.word)), VOCABULARY).float()
        return CausalLMOutputWithPast(logits=words, past_key_values=LSTMState(nothing, nothing, self.read))


def test_the_share_of_right_answers_leaves_out_questions_that_stand_twice():
    task = BABILong("qa1", vocab_size=VOCABULARY)
    batch = task.question_batch(8, 4, 180, 0, "train")
    assert not bool(batch.counts.all()), "no story has fewer than four people"
    word = int(batch.questions[batch.counts][0, -2])
    answers = batch.questions[..., -2]
    expected = ((answers == word) & batch.counts).sum(1) / batch.counts.sum(1)
    assert expected.max() > 0
    model = OneWord(word)
    assert right_answers(model, batch).tolist() == pytest.approx(expected.tolist())
    assert model.read == batch.contexts.numel() + batch.questions.numel(), "each context is read once"


@pytest.mark.parametrize("context_tokens", [3 * SEGMENT, 3 * SEGMENT - 20], ids=["whole", "both"])
def test_early_questions_are_asked_of_the_memory_after_each_segment(context_tokens):
    batch = TASK.question_batch(3, 2, context_tokens, 0, "train", 2, SEGMENT)
    model = model_around("memory_mosaic")
    parts = [(batch.contexts, batch.questions, batch.labels)]
    for segment in range(context_tokens // SEGMENT):
        read = batch.contexts[:, : (segment + 1) * SEGMENT]
        parts.append((read, batch.early_questions[:, segment], batch.early_labels[:, segment]))
    losses, counts = [], []
    for part in parts:
        count = (part[2] != IGNORED).sum()
        counts.append(count)
        losses.append(mean_loss(model, QuestionBatch(*part)) * count if count else torch.zeros(()).double())
    assert len(counts) == context_tokens // SEGMENT + 1
    assert sum(count > 0 for count in counts) >= 3
    torch.testing.assert_close(mean_loss(model, batch), sum(losses) / sum(counts), rtol=1e-9, atol=0)


def test_early_questions_must_be_of_the_segments_that_are_read():
    batch = TASK.question_batch(3, 2, 3 * SEGMENT, 0, "train", 2, SEGMENT)
    fewer = {name: getattr(batch, name)[:, :2] for name in ("early_questions", "early_labels")}
    model = model_around("memory_mosaic")
    refused("early_questions must be of the 3 segments read; got 2", mean_loss, model, replace(batch, **fewer))


@pytest.mark.parametrize("context_tokens", [4 * SEGMENT, 4 * SEGMENT - 20], ids=["whole", "both"])
def test_gradients_flow_through_the_last_segments_alone(context_tokens, monkeypatch):
    batch = TASK.question_batch(3, 2, context_tokens, 0, "train", 2, SEGMENT)
    first = batch.early_labels[:, :2]
    assert (first != IGNORED).any(), "else the first two segments have no questions to leave out"
    later = torch.cat([torch.full_like(first, IGNORED), batch.early_labels[:, 2:]], 1)
    truncating = model_around("memory_mosaic")
    truncating.config.backprop_segments = 2
    expected = mean_loss(truncating, replace(batch, early_labels=later))
    assert mean_loss(truncating, batch) == expected, "the first segments are asked nothing"
    expected.backward()
    model = model_around("memory_mosaic")
    with torch.no_grad():
        before = model(input_ids=batch.contexts[:, : 2 * SEGMENT], skip_logits=True).memory_state
    forward = type(model).forward

    def after(self, input_ids, **options):
        if options.get("past_key_values") is None:
            options.setdefault("memory_state", before)
        return forward(self, input_ids, **options)

    monkeypatch.setattr(type(model), "forward", after)
    last = {name: getattr(batch, name)[:, 2:] for name in ("early_questions", "early_labels")}
    loss = mean_loss(model, replace(batch, contexts=batch.contexts[:, 2 * SEGMENT :], **last))
    monkeypatch.undo()
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=0)
    for parameter, other in zip(model.parameters(), truncating.parameters()):
        torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-7, atol=1e-12)
    whole = mean_loss(model, batch)
    model.config.backprop_segments = 4
    assert mean_loss(model, batch) == whole != loss


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_early_questions_follow_from_the_facts_that_were_read(share):
    task = BABILong("qa1", vocab_size=VOCABULARY, split_facts=share, half_facts=share, cut_facts=share)
    batch = task.question_batch(8, 4, 180, 0, "train", 4, 64)
    assert batch.early_questions.shape[:3] == (8, 2, 4)
    answered = set()
    for context, rows, labels in zip(batch.contexts, batch.early_questions, batch.early_labels):
        for segment in range(2):
            words = (decode(task.vocabulary, context[: 64 * (segment + 1)]) + " ").split(" . ")
            world = world_after(suffixes(words[:-1]))
            answers = {}
            for row, label in zip(rows[segment], labels[segment]):
                if bool((label != IGNORED).any()):
                    first = int((label != IGNORED).int().argmax())
                    person = decode(task.vocabulary, row[: first - 1]).split()[2]
                    answers[person] = decode(task.vocabulary, row[first : first + 1])
            people = {name.lower() for name in PEOPLE}
            assert answers == {who: place for who, place in world.place.items() if who in people}
            answered.add(bool(answers))
    assert answered == {True, False}


def test_logits_that_are_no_numbers_answer_nothing(monkeypatch):
    """The likeliest token was the first, which is the answer to half of these questions."""
    task = AssociativeRetrieval(num_pairs=2, num_symbols=2)
    batch = task.sample_questions(8, 4, torch.Generator().manual_seed(0))
    logits = torch.full((32, batch.questions.shape[-1], task.vocab_size), torch.nan)
    monkeypatch.setattr("tessera.evaluation.questions._asked_alone", lambda model, batch: (logits, None))
    assert right_answers(nn.Linear(1, 1), batch).tolist() == [0.0] * 8
