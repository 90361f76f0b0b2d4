"""Segments that end at sentences: where they end, and that every way of reading ends them there."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from tessera.evaluation.questions import answer_loss, right_answers
from tessera.inspection.text import Reading
from tessera.models.adjusting import adjust_model
from tessera.models.armt.diagonal import read_diagonally, read_stream_diagonally
from tessera.models.causality import expect_causal
from tessera.models.recurrence import read_stream, read_streams
from tessera.models.recurrence.segmented_input import SegmentCut
from tessera.models.saving.state_file import StateFile, save_values
from tessera.tasks.question_answering import QuestionBatch
from tessera.testing.state_laws import check_state
from tests.covering import each_value, some
from tests.models.armt.bases import KINDS, PAIRS, SOME, is_greedy, make, same_memory, steps_are_the_whole, tokens
from tests.refusals import refused
from tests.tolerances import close

SIZE, WINDOW, ENDS = 8, 3, (7, 8, 9)


def ending(kind="armt", family="gpt2", ids=ENDS, **options):
    model = make(kind, family, SIZE, **options)
    adjust_model(model, {"segment_end_ids": list(ids), "segment_end_window": WINDOW})
    return model


def sentences(batch, steps):
    """Random tokens, every third of them the end of a sentence."""
    drawn, is_end = tokens(batch, steps), torch.rand(batch, steps) < 1 / 3
    return torch.where(is_end, torch.randint(ENDS[0], ENDS[-1] + 1, drawn.shape), drawn.clamp(min=10))


def segments_of(text):
    """Those of a list of tokens, by hand."""
    segments, segment = [], []
    for token in text:
        segment.append(token)
        if len(segment) == SIZE or (len(segment) > SIZE - WINDOW and token in ENDS):
            segments.append(segment)
            segment = []
    return segments + [segment] * bool(segment)


def read_by_hand(model, row):
    """Logits and memory of one row, from one call for each segment."""
    logits, memory = [], None
    for segment in segments_of(row.tolist()):
        output = model(torch.tensor([segment]), memory_state=memory)
        logits.append(output.logits)
        memory = output.memory_state
    return torch.cat(logits, 1), memory


def test_a_sentence_that_fits_into_the_window_is_not_cut():
    cut = SegmentCut(SIZE, end_ids=ENDS, window=WINDOW)
    for row in sentences(200, 60):
        ends = cut.ends_in(row)
        borders = cut.borders(60, ends)
        assert [row[begin:end].tolist() for begin, end in borders] == segments_of(row.tolist())
        for begin, end in pairwise(ends):
            is_whole = any(first <= begin and end <= last for first, last in borders)
            assert is_whole or end - begin > WINDOW


@some(("kind", "family"), PAIRS, by_default=[*SOME, ("rmt", "memory_mosaic")])
def test_rows_that_end_their_segments_elsewhere_are_the_rows_alone(kind, family):
    model, ids = ending(kind, family), sentences(4, 29)
    lengths = (29, 21, 29, 5)
    mask = torch.arange(29) < torch.tensor(lengths)[:, None]
    output = model(ids, attention_mask=mask.long(), labels=ids.masked_fill(~mask, -100))
    memories, losses = [], []
    for row, (text, length) in enumerate(zip(ids, lengths)):
        logits, memory = read_by_hand(model, text[:length])
        close(output.logits[row : row + 1, :length], logits)
        memories.append(memory)
        losses.append(torch.nn.functional.cross_entropy(logits[0, :-1], text[1:length], reduction="none"))
    close(output.loss, torch.cat(losses).mean())
    same_memory(output.memory_state, type(output.memory_state).stack(memories))
    segments = [segments_of(text[:length].tolist()) for text, length in zip(ids, lengths)]
    assert output.memory_state.segments_read.tolist() == list(map(len, segments))
    assert list(map(len, segments[0])) != list(map(len, segments[2])), "or this test shows nothing"


@some(("kind", "family"), PAIRS, by_default=SOME)
def test_steps_with_a_cache_are_the_whole(kind, family):
    model, ids = ending(kind, family), sentences(3, 27)
    for borders in ((0, 5, 6, 19, 24, 27), range(28)):
        steps_are_the_whole(model, ids, borders)


@each_value(kind=KINDS, family=["gpt2", "llama", "memory_mosaic"])
def test_generation_ends_segments_there_too(kind, family):
    model, prompts = ending(kind, family, range(5, 60, 2)), sentences(3, 9)
    options = {"max_new_tokens": 14, "do_sample": False, "attention_mask": torch.ones_like(prompts)}
    text = model.generate(prompts, **options)
    assert is_greedy(model, text, 9)
    assert (text[:, 9:] % 2 == 1).any(), "or this test shows nothing"
    beams = model.generate(prompts, num_beams=3, **options)
    assert torch.equal(beams, model.generate(prompts, num_beams=3, use_cache=False, **options))


def test_streams_and_documents():
    model, texts = ending(), [sentences(1, length)[0].tolist() for length in (29, 5, 16, 40)]
    whole = [model(torch.tensor([text])).memory_state for text in texts]
    for text, memory in zip(texts, whole):
        same_memory(read_stream(model, iter(text)), memory)
    same_memory(read_streams(model, [iter(text) for text in texts]), type(whole[0]).stack(whole))


def test_an_open_segment_that_is_full_is_stored_as_one(tmp_path):
    model, text = ending(), torch.tensor([[10, 11, 12, 13, 14, ENDS[0], 15, 16, 17]])
    cache = model(text[:, :6], use_cache=True).past_key_values
    save_values(tmp_path / "state", "cache", {"cache": cache})
    stored = StateFile.open(tmp_path / "state", "load").values()["cache"]
    for state in (cache, stored):
        close(model(text[:, 6:], past_key_values=state).logits, model(text).logits[:, 6:])


def test_the_laws_of_states_hold():
    findings = check_state(ending(ids=range(4, 40)))
    assert [finding.law for finding in findings if finding.error is not None and not finding.holds] == []


def test_it_is_as_causal_as_what_reads_its_segments():
    model = ending()
    expect_causal(model, "test")
    model.base.get_output_embeddings().register_forward_hook(lambda _, __, logits: logits + logits.roll(-1, 1))
    refused("see no later token", expect_causal, model, "test")


def test_inspection_shows_the_same_segments():
    model, text = ending(), sentences(1, 40)
    parts = Reading(model, text).parts
    assert [text[0, part.start : part.end].tolist() for part in parts] == segments_of(text[0].tolist())


def test_a_question_begins_a_segment():
    model, contexts, questions = ending(), sentences(2, 21), sentences(4, 3)
    labels = torch.full((4, 3), -100).index_fill(1, torch.tensor([2]), 1)
    memory = model(contexts).memory_state.repeat_batch(2)
    likeliest = model(questions, memory_state=memory, use_cache=True).logits[:, 1].argmax(-1)
    questions[:, 2] = likeliest.where(torch.tensor([True, False, True, True]), likeliest + 1)
    batch = QuestionBatch(contexts, questions.view(2, 2, 3), labels.view(2, 2, 3))
    assert right_answers(model, batch).tolist() == [0.5, 1.0]
    early = replace(batch, early_questions=batch.questions[:, None], early_labels=batch.labels[:, None])
    refused("segment_end_ids must be None where every segment is asked about", answer_loss, model, early)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"segment_end_ids": []}, "segment_end_ids must be None or numbers of tokens"),
        ({"segment_end_ids": [-1]}, "segment_end_ids must be None or numbers of tokens"),
        ({"segment_end_window": 0}, r"segment_end_window must be from 1 to segment_size \(8\); got 0"),
        ({"segment_end_window": 9}, r"segment_end_window must be from 1 to segment_size \(8\); got 9"),
    ],
)
def test_impossible_ends_are_refused(changed, message):
    refused(
        message, adjust_model, make(segment_size=SIZE), {"segment_end_ids": [1], "segment_end_window": 2, **changed}
    )


def test_readings_that_need_equal_segments_or_tokens_are_refused():
    model, ids = ending(), sentences(1, 16)
    refused("inputs_embeds must be left out where", model, inputs_embeds=model.get_input_embeddings()(ids))
    refused("segment_end_ids must be None, as diagonals", read_diagonally, model, ids)
    refused("segment_end_ids must be None, as diagonals", read_stream_diagonally, model, ids[0].tolist())
    make_right = {"segment_size": SIZE, "segment_alignment": "right", "segment_end_ids": [1]}
    refused('segment_alignment must be "left" beside', make, **make_right)


def test_a_hidden_token_ends_no_segment():
    model, text = ending(), torch.tensor([[10, 11, 12, 13, 14, ENDS[0], 15, 16, 17, 18]])
    mask = torch.ones_like(text)
    mask[0, 5] = 0
    other = text.index_fill(1, torch.tensor([5]), 30)
    same_memory(model(text, attention_mask=mask).memory_state, model(other, attention_mask=mask).memory_state)
