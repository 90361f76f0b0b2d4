"""generate() across segment borders: what reading the grown text from the start would choose."""

from dataclasses import replace

import torch

from tests.covering import each_value, some
from tests.models.armt.bases import (
    KINDS,
    PAIRS,
    SOME,
    WRAPS,
    config_of,
    is_greedy,
    make,
    same_memory,
    steps_are_the_whole,
    tiny,
    tokens,
)
from tests.refusals import refused
from tests.tolerances import close


@some(("kind", "family"), PAIRS, by_default=SOME)
def test_steps_with_a_cache_give_the_logits_of_the_whole(kind, family):
    steps_are_the_whole(make(kind, family), tokens(2, 27), (0, 5, 6, 19, 24, 27))


@each_value(kind=KINDS, family=["gpt2", "llama", "memory_mosaic"])
def test_prompts_of_uneven_length_are_continued_as_alone(kind, family):
    model, lengths = make(kind, family), [9, 2, 9, 16]
    prompts = [tokens(1, length) for length in lengths]
    ids = torch.cat([torch.nn.functional.pad(p, (16 - p.shape[1], 0)) for p in prompts])
    mask = (ids > 0).long()
    actual = model.generate(ids, attention_mask=mask, max_new_tokens=11, do_sample=False)
    assert actual.shape[1] == 16 + 11
    for row, prompt in zip(actual, prompts):
        assert is_greedy(model, torch.cat([prompt, row[None, 16:]], 1), prompt.shape[1])


def test_uneven_beams():
    model = make()
    ids = torch.cat([torch.nn.functional.pad(tokens(1, n), (9 - n, 0)) for n in (9, 4)])
    options = {"attention_mask": (ids > 0).long(), "max_new_tokens": 8, "do_sample": False, "num_beams": 2}
    assert torch.equal(model.generate(ids, **options), model.generate(ids, use_cache=False, **options))


def test_beams_of_several_prompts_keep_their_own_memories():
    model, prompts = make(), tokens(2, 5)
    memory = model(tokens(2, 19)).memory_state
    options = {"num_beams": 3, "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    together = model.generate(prompts, memory_state=memory, attention_mask=prompts > 0, **options)
    own = [memory.select_batch(torch.tensor([i])) for i in range(2)]
    rows = zip(prompts.split(1), own)
    alone = [model.generate(row, memory_state=one, attention_mask=row > 0, **options) for row, one in rows]
    assert torch.equal(together, torch.cat(alone))
    others = memory.select_batch(torch.tensor([1, 0]))
    swapped = model.generate(prompts, memory_state=others, attention_mask=prompts > 0, **options)
    assert not torch.equal(together, swapped), "or this test shows nothing"


def test_generation_after_a_stored_memory():
    model, text, prompt = make(), tokens(2, 16), tokens(2, 3)
    state = model(text).memory_state
    options = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 9, "do_sample": False}
    actual = model.generate(prompt, memory_state=state, **options)
    assert actual.shape[1] == 3 + 9
    assert torch.equal(actual[:, :3], prompt)
    assert is_greedy(model, torch.cat([text, actual], 1), 16 + 3)
    beams = model.generate(prompt, memory_state=state, num_beams=2, **options)
    assert beams.shape == actual.shape


@each_value(kind=KINDS)
def test_a_memory_beside_a_cache_is_refused(kind):
    """The cache holds a memory of its own, and the other one counted for nothing."""
    model, text, prompt = make(kind), tokens(1, 11), tokens(1, 3)
    memory, cache = model(text).memory_state, model(text, use_cache=True).past_key_values
    both = {"memory_state": memory, "past_key_values": cache}
    message = "memory_state must be left out with past_key_values, which has its own; got .*State"
    refused(message, model, prompt, **both)
    refused(message, model.generate, torch.cat([text, prompt], 1), **both, max_new_tokens=2, do_sample=False)
    options = {"memory_state": memory, "max_new_tokens": 6, "do_sample": False, "prefill_chunk_size": 2}
    in_parts = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
    options["prefill_chunk_size"] = None
    assert torch.equal(in_parts, model.generate(prompt, attention_mask=torch.ones_like(prompt), **options))


@each_value(kind=KINDS, family=["gpt2", "memory_mosaic"])
def test_a_prompt_in_parts_may_begin_with_more_padding_than_a_part_holds(kind, family):
    model, prompt = make(kind, family), tokens(2, 21)
    mask = torch.ones_like(prompt)
    mask[1, :11] = 0
    options = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False}
    expected = model.generate(prompt, **options)
    for size in (1, 5, 30):
        assert torch.equal(model.generate(prompt, prefill_chunk_size=size, **options), expected)


def test_hidden_positions_stay_hidden_while_generating():
    model, prompt = make(), tokens(1, 7)
    mask = torch.ones_like(prompt)
    mask[0, 3] = 0
    other = prompt.clone()
    other[0, 3] = prompt[0, 3] % 59 + 1
    caches = [model(text, mask, use_cache=True).past_key_values for text in (prompt, other)]
    one, two = (model(torch.full((1, 1), 7), past_key_values=cache).logits for cache in caches)
    torch.testing.assert_close(one, two)


@each_value(family=["gpt2", "llama", "memory_mosaic"], steps=[5, 8, 11])
def test_a_cache_can_be_continued_twice(family, steps):
    """Within the open segment (5), where the segment is full (8) and in the next one (11)."""
    model, ids = make("armt", family), tokens(1, steps)
    rests = [tokens(1, 4) + 1, tokens(1, 13)]
    cache = model(ids, use_cache=True).past_key_values
    for rest in [rests[0], rests[1], rests[0]]:
        expected = model(torch.cat([ids, rest], 1)).logits[:, steps:]
        actual = model(rest, past_key_values=cache, use_cache=True).logits
        close(actual, expected)
    selected = cache.select_batch(torch.tensor([0, 0]))
    again = model(rests[1].expand(2, -1), past_key_values=selected, use_cache=True).logits
    expected = model(torch.cat([ids, rests[1]], 1)).logits[:, steps:].expand(2, -1, -1)
    close(again, expected)


@torch.no_grad()
def test_a_cache_of_a_sliding_window_can_be_continued_twice():
    """Also once its window is full, and behind drafts that were wrong."""
    base = tiny("mistral", sliding_window=4)
    model, ids = WRAPS["armt"](base, segment_size=16, num_memory_tokens=2).double().eval(), tokens(1, 7)
    caches = [model(ids, use_cache=True).past_key_values]
    for length in (1, 3):  # the second goes on from the first
        part = tokens(1, length)
        ids = torch.cat([ids, part], 1)
        caches.append(model(part, past_key_values=caches[-1], use_cache=True).past_key_values)
    for cache in [*reversed(caches), *caches]:
        cache.take_back()
        rest = tokens(1, 3)
        expected = model(torch.cat([ids[:, : cache.total], rest], 1)).logits[:, -3:]
        actual = model(rest, past_key_values=cache, use_cache=True).logits
        close(actual, expected)


@torch.no_grad()
def test_a_cache_of_a_recurrent_base_is_continued_once():
    """Its layers of attention must not be cut back where the others cannot be."""
    base = tiny("qwen3_next", layer_types=config_of("qwen3_next").layer_types[::-1])
    model, ids = WRAPS["armt"](base, segment_size=16, num_memory_tokens=2).eval(), tokens(1, 5)
    cache = model(ids, use_cache=True).past_key_values
    model(ids, past_key_values=cache, use_cache=True)
    cache.take_back()
    refused("past_key_values must not have been continued before", model, ids, past_key_values=cache, use_cache=True)


def test_a_segment_that_was_extended_beyond_its_size_is_closed_by_the_next_call():
    model, text = make(segment_size=8), tokens(1, 22)
    cache = model(text[:, :4], use_cache=True).past_key_values
    cache = model(text[:, 4:12], past_key_values=cache, use_cache=True, extend_segment=True).past_key_values
    output = model(text[:, 12:], past_key_values=cache)
    wide = replace(make(segment_size=12)(text[:, :12]).memory_state, model=None)
    expected = model(text[:, 12:], memory_state=wide)
    close(output.logits, expected.logits)
    same_memory(output.memory_state, expected.memory_state)
