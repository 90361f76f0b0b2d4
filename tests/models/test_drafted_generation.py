"""Generation with drafts makes what generation without them makes."""

from collections import Counter
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteriaList,
    TopKLogitsWarper,
)

import tessera
from tessera.base.errors import TesseraError
from tessera.models import drafted_generation
from tessera.models.drafted_generation import PromptLookup

VOCABULARY = 12


class FollowsTheText(LogitsProcessor):
    """Makes what followed the last token before likelier: texts repeat themselves, and drafts are often right."""

    def __call__(self, input_ids, scores):
        tokens, scores = input_ids[0].tolist(), scores.clone()
        for place in range(len(tokens) - 2, -1, -1):
            if tokens[place] == tokens[-1]:
                scores[0, tokens[place + 1]] += 1.5
                break
        return scores


def v1():
    config = tessera.MemoryMosaicConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_layers=2, num_heads=2, num_persistent_slots=8, initializer_range=0.4
    )
    return tessera.MemoryMosaicForCausalLM(config)


def v2():
    config = tessera.MemoryMosaicV2Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        intermediate_size=16,
        short_term_span=6,
        long_term_delay=4,
        initializer_range=0.4,
    )
    return tessera.MemoryMosaicV2ForCausalLM(config)


def llama():
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **sizes))


def make(build, seed=0):
    torch.manual_seed(seed)
    return build().double().eval()


def prompt(seed, length=9):
    return torch.randint(0, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(seed))


def generate(model, ids, **options):
    options = {"max_new_tokens": 40, "do_sample": False, "attention_mask": torch.ones_like(ids), **options}
    return model.generate(ids, pad_token_id=0, logits_processor=LogitsProcessorList([FollowsTheText()]), **options)


DRAFTS = {
    "lookup": lambda: {"prompt_lookup_num_tokens": 6},
    "lookup of one": lambda: {"prompt_lookup_num_tokens": 1, "max_matching_ngram_size": 1},
    "assistant with a state": lambda: {"assistant_model": make(v1, 1)},
    "assistant with a cache": lambda: {"assistant_model": make(llama, 1)},
}


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("build", [v1, v2])
def test_greedy_tokens_are_the_same(build, draft):
    model = make(build)
    for seed in range(3):
        ids = prompt(seed, 1 + 6 * seed)
        assert torch.equal(generate(model, ids, **DRAFTS[draft]()), generate(model, ids))


@pytest.mark.slow
def test_greedy_tokens_are_the_same_over_ten_thousand_prompts():
    model = make(v1)
    for seed in range(10_000):
        ids = prompt(seed, 1 + seed % 20)
        options = {"max_new_tokens": 12}
        assert torch.equal(generate(model, ids, prompt_lookup_num_tokens=5, **options), generate(model, ids, **options))


def test_right_drafts_save_calls(monkeypatch):
    model, calls = make(v1), []
    forward = model.model.forward
    monkeypatch.setattr(model.model, "forward", lambda *a, **k: calls.append(1) or forward(*a, **k))
    generate(model, prompt(0), prompt_lookup_num_tokens=8)
    with_drafts = len(calls)
    calls.clear()
    generate(model, prompt(0))
    assert with_drafts < 0.6 * len(calls)


def test_samples_have_the_distribution_of_the_model():
    """Two tokens behind a prompt whose draft is sometimes right, 4,000 times: a chi-square test of all pairs."""
    model, ids, count = make(v1), torch.tensor([[1, 2, 3, 1, 2]]), 4000
    settings = SimpleNamespace(max_length=7, do_sample=True, return_dict_in_generate=False)
    rules = LogitsProcessorList([FollowsTheText(), TopKLogitsWarper(3)]), StoppingCriteriaList([MaxLengthCriteria(7)])

    @cache
    def logits_of(text):
        with torch.no_grad():
            return model(torch.tensor([text])).logits

    def read_again(unread, past_key_values, logits_to_keep, **_):
        """The model, whose state is the text that it read: every text is read once for all draws."""
        text = (*(past_key_values.text if past_key_values else ()), *unread[0].tolist())
        state = SimpleNamespace(text=text, length=len(text))
        return SimpleNamespace(logits=logits_of(text)[:, -logits_to_keep:], past_key_values=state)

    def draw():
        return drafted_generation._generate(read_again, ids, *rules, settings, drafter=PromptLookup(3), most=3)

    torch.manual_seed(0)
    options = {"do_sample": True, "top_k": 3, "max_new_tokens": 2, "prompt_lookup_num_tokens": 3}
    through_generate = [generate(model, ids, **options) for _ in range(20)]
    torch.manual_seed(0)
    drawn = [draw() for _ in range(count)]
    assert all(torch.equal(one, other) for one, other in zip(through_generate, drawn))
    observed, expected = Counter(tuple(text[0, -2:].tolist()) for text in drawn), {}

    def probabilities(tokens):
        scores = rules[0](tokens, logits_of(tuple(tokens[0].tolist()))[:, -1])[0].softmax(-1)
        return {token: p for token, p in enumerate(scores.tolist()) if p > 0}

    for first, p in probabilities(ids).items():
        for second, q in probabilities(torch.cat([ids, torch.tensor([[first]])], 1)).items():
            expected[first, second] = p * q
    assert observed.keys() <= expected.keys()
    statistic = sum((observed[pair] - count * p) ** 2 / (count * p) for pair, p in expected.items())
    assert statistic < 26.1, "the 0.1 % point of 8 degrees of freedom"


def test_it_stops_where_generation_stops_and_goes_on_behind_a_state():
    model, ids = make(v1), prompt(3)
    plain = generate(model, ids)
    end = int(plain[0, ids.shape[1] + 5])
    stopped = generate(model, ids, eos_token_id=end)
    assert torch.equal(generate(model, ids, eos_token_id=end, prompt_lookup_num_tokens=6), stopped)
    state = model(ids[:, :4], use_cache=True).past_key_values
    behind = generate(model, ids, past_key_values=state, prompt_lookup_num_tokens=6)
    assert torch.equal(behind, plain)


def test_drafts_pause_where_they_are_wrong():
    length = drafted_generation._DraftLength(8)
    drafted = []
    for _ in range(200):
        drafted.append(length.next())
        length.learn(drafted[-1], 0)
    assert sum(map(bool, drafted)) < 15
    length.waiting = 0
    length.learn(length.next(), length.length)
    assert length.next() == 2, "and come back where they are right"


def test_lookup_finds_what_followed_the_longest_match():
    lookup = PromptLookup(2)
    assert lookup.draft([1, 2, 3, 9, 2, 4, 1, 2], 3) == [3, 9, 2]
    assert lookup.draft([1, 2, 3, 9, 2, 4, 1, 2, 4], 2) == [1, 2]
    assert PromptLookup(2).draft([1, 2, 3], 4) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_ids": torch.ones(2, 3, dtype=torch.long)}, "one sequence"),
        ({"assistant_model": "small"}, "one without the other"),
        ({"prompt_lookup_num_tokens": 0}, "at least 1"),
    ],
)
def test_mistakes_are_refused_in_a_line(options, message):
    options = {"input_ids": prompt(0), "prompt_lookup_num_tokens": 3, **options}
    ids = options.pop("input_ids")
    with pytest.raises(TesseraError, match=message):
        generate(make(v1), ids, **options)
