"""Generation with drafts makes what generation without them makes."""

from functools import partial

import pytest
import torch
import transformers as hf
from transformers.generation.streamers import BaseStreamer

from tessera.data.tokenizers import byte_tokenizer
from tessera.models.drafted_generation import LARGEST_LOSS, PromptLookup, _Balance
from tessera.models.forking import fork
from tessera.recall.pair_store import PairStore
from tests.covering import some
from tests.models.armt.bases import BASES, WRAPS
from tests.models.contract import linear, lstm, v1, v2
from tests.refusals import refused

VOCABULARY = 12
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "initializer_range": 0.4}
SEGMENTS = {"segment_size": 7, "num_memory_tokens": 2}
gpt2 = partial(BASES["gpt2"], vocab_size=VOCABULARY, n_embd=16, n_head=2, n_positions=96, initializer_range=0.4)
mosaic = partial(v1, **SIZES, num_persistent_slots=8)
MODELS = {
    "v1": mosaic,
    "v2": partial(v2, **SIZES, intermediate_size=16),
    **{variant: partial(linear, variant, **SIZES) for variant in ("linear_transformer", "retnet", "gla")},
    "lstm": partial(lstm, vocab_size=VOCABULARY, hidden_size=16, num_layers=1, initializer_range=1.0),
    "armt": lambda: _saying_something(WRAPS["armt"](gpt2(), **SEGMENTS)),
    "armt around v1": lambda: _saying_something(WRAPS["armt"](mosaic(), segment_alignment="right", **SEGMENTS)),
    "rmt": lambda: WRAPS["rmt"](gpt2(), **SEGMENTS),
    "prmt": lambda: WRAPS["prmt"](gpt2(), **SEGMENTS),
}


def _saying_something(model):
    for memory in model.memories:  # they start at 0
        torch.nn.init.normal_(memory.value.weight, std=0.3)
    return model


def llama():
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    return BASES["llama"](**sizes, pad_token_id=None)


class FollowsTheText(hf.LogitsProcessor):
    """Makes what followed the last token before likelier: texts repeat themselves, and drafts are often right."""

    def __call__(self, input_ids, scores):
        tokens, scores = input_ids[0].tolist(), scores.clone()
        for place in range(len(tokens) - 2, -1, -1):
            if tokens[place] == tokens[-1]:
                scores[0, tokens[place + 1]] += 3.0
                break
        return scores


class Heard(BaseStreamer):
    """What a streamer was given."""

    def __init__(self):
        self.tokens, self.is_over = [], False

    def put(self, value):
        self.tokens += value.flatten().tolist()

    def end(self):
        self.is_over = True


def make(name, seed=0):
    torch.manual_seed(seed)
    return MODELS.get(name, llama)().double().eval()


def prompt(seed, length=9):
    return torch.randint(0, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(seed))


def generate(model, ids, **options):
    options = {"max_new_tokens": 40, "do_sample": False, "attention_mask": torch.ones_like(ids), **options}
    torch.manual_seed(1)
    return model.generate(ids, pad_token_id=0, logits_processor=hf.LogitsProcessorList([FollowsTheText()]), **options)


def counted(model, monkeypatch):
    """The number of tokens of each call of `model`, as they come."""
    calls, forward = [], type(model).forward

    def seen(self, input_ids, **options):
        calls.append(input_ids.shape[1])
        return forward(self, input_ids, **options)

    monkeypatch.setattr(type(model), "forward", seen)
    return calls


DRAFTS = {
    "lookup": lambda: {"prompt_lookup_num_tokens": 6},
    "lookup of one": lambda: {"prompt_lookup_num_tokens": 1, "max_matching_ngram_size": 1},
    "assistant with a state": lambda: {"assistant_model": make("v1", 1)},
    "assistant with a cache": lambda: {"assistant_model": make("llama", 1), "num_assistant_tokens": 3},
}


@some("name", MODELS, by_default=("v2", "gla", "lstm", "armt around v1", "prmt"))
def test_tokens_are_the_same(name, monkeypatch):
    """Likeliest ones, and sampled ones with the same random numbers: so drafts do not change the distribution."""
    model, saved = make(name), 0
    calls = counted(model, monkeypatch)
    for seed, sampled in enumerate((False, True)):
        ids, rules = prompt(seed, 1 + 9 * seed), {"do_sample": sampled, "top_k": 5, "max_new_tokens": 20}
        plain, before = generate(model, ids, **rules), len(calls)
        assert torch.equal(generate(model, ids, prompt_lookup_num_tokens=6, **rules), plain)
        saved += 20 - (len(calls) - before)
    assert saved > 0


@some("name", ["v2", "armt"], by_default=["armt"])
def test_tokens_are_the_same_whoever_guesses(name):
    model, ids = make(name), prompt(5)
    for rules in ({"max_new_tokens": 14}, {"max_new_tokens": 14, "do_sample": True}):
        plain = generate(model, ids, **rules)
        for draft, options in DRAFTS.items():
            assert torch.equal(generate(model, ids, **options(), **rules), plain), draft


@pytest.mark.slow
def test_tokens_are_the_same_over_ten_thousand_prompts():
    models = [make(name) for name in MODELS]
    for seed in range(10_000):
        ids, model = prompt(seed, 1 + seed % 23), models[seed % len(models)]
        options = {"max_new_tokens": 12, "do_sample": seed % 3 == 0}
        assert torch.equal(generate(model, ids, prompt_lookup_num_tokens=5, **options), generate(model, ids, **options))


def test_right_drafts_save_calls_and_wrong_ones_copy_no_pairs(monkeypatch):
    model, grown, grow = make("v1"), [], PairStore._grown
    monkeypatch.setattr(PairStore, "_grown", lambda store, *sizes: grown.append(sizes) or grow(store, *sizes))
    generate(model, prompt(0))
    plain, calls = len(grown), counted(model, monkeypatch)
    generate(model, prompt(0), prompt_lookup_num_tokens=8)
    assert len(calls) < 0.6 * 40
    assert len(grown) == 2 * plain


@pytest.mark.parametrize("name", ["v1", "armt", "armt around v1"])
def test_a_state_taken_back_is_as_new(name, monkeypatch):
    """What was read behind it is gone, and to read on copies nothing."""
    model, ids = make(name), prompt(0, 12)
    state = model(ids[:, :4], use_cache=True).past_key_values
    state = model(ids[:, 4:5], past_key_values=state, use_cache=True).past_key_values
    expected = [model(ids[:, 5:6], past_key_values=fork(state, 1), use_cache=True).logits]
    model(prompt(7, 2), past_key_values=state, use_cache=True)
    state.take_back()
    monkeypatch.setattr(PairStore, "_grown", None)
    monkeypatch.setattr("copy.deepcopy", None)
    expected.append(model(ids[:, 5:6], past_key_values=state, use_cache=True).logits)
    torch.testing.assert_close(*expected)


def test_it_stops_where_generation_stops_and_goes_on_behind_a_state():
    model, ids = make("v1"), prompt(3)
    plain = generate(model, ids)
    end = int(plain[0, ids.shape[1] + 5])
    stopped = generate(model, ids, eos_token_id=end)
    assert torch.equal(generate(model, ids, eos_token_id=end, prompt_lookup_num_tokens=6), stopped)
    state = model(ids[:, :4], use_cache=True).past_key_values
    behind = generate(model, ids, past_key_values=state, prompt_lookup_num_tokens=6)
    assert torch.equal(behind, plain)


@some("extend_segment", [False, True], by_default=[True])
def test_it_goes_on_behind_a_memory(extend_segment):
    model, ids = make("armt"), prompt(3, 14)
    options = {"memory_state": model(prompt(8, 30)).memory_state, "extend_segment": extend_segment}
    assert torch.equal(generate(model, ids, prompt_lookup_num_tokens=6, **options), generate(model, ids, **options))


def test_what_is_asked_beside_the_tokens():
    model, ids, heard = make("v1"), prompt(3), Heard()
    shown = {"output_scores": True, "output_logits": True, "return_dict_in_generate": True}
    settings = hf.GenerationConfig(max_new_tokens=30, do_sample=False, **shown)
    options = {"pad_token_id": 0, "logits_processor": hf.LogitsProcessorList([FollowsTheText()])}
    plain = model.generate(ids, generation_config=settings, **options)
    settings.prompt_lookup_num_tokens = 6
    drafted = model.generate(ids, generation_config=settings, streamer=heard, **options)
    assert heard.tokens == drafted.sequences[0].tolist() == plain.sequences[0].tolist()
    assert heard.is_over
    torch.testing.assert_close(torch.cat(drafted.scores), torch.cat(plain.scores))
    torch.testing.assert_close(torch.cat(drafted.logits), torch.cat(plain.logits))
    settings.output_scores, settings.output_logits, settings.max_new_tokens = False, False, 2
    alone = model.generate(ids, generation_config=settings, **options)
    assert alone.scores is None
    assert alone.logits is None
    more = model.generate(drafted.sequences, past_key_values=drafted.past_key_values, max_new_tokens=9, **options)
    assert torch.equal(more, model.generate(plain.sequences, max_new_tokens=9, **options))


@pytest.mark.parametrize("name", ["v2", "lstm"])
def test_it_goes_on_behind_a_state_without_a_cache(name):
    """An LSTM keeps no cache by itself: each step read the whole text again, behind the state of its beginning."""
    model, ids = make(name), prompt(3)
    state = model(ids[:, :5], use_cache=True).past_key_values
    options = {"output_logits": True, "return_dict_in_generate": True}
    expected = generate(model, ids, **options).logits
    for behind in ({"past_key_values": state}, {"past_key_values": state, "use_cache": False}):
        torch.testing.assert_close(generate(model, ids, **behind, **options).logits, expected)


def test_padding_before_the_prompt_changes_nothing():
    model, ids = make("v1"), prompt(3)
    padded, mask = torch.cat([torch.zeros_like(ids[:, :3]), ids], 1), torch.ones(1, 12, dtype=torch.long)
    mask[:, :3] = 0
    with_lookup = generate(model, padded, attention_mask=mask, prompt_lookup_num_tokens=6)
    assert torch.equal(with_lookup, generate(model, padded, attention_mask=mask))


@pytest.mark.parametrize("name", ["v1", "armt", "lstm"])
@pytest.mark.parametrize("drafts", [{}, {"prompt_lookup_num_tokens": 6}])
def test_a_prompt_that_ends_with_padding_is_refused(name, drafts):
    """What a model says at padding is no prediction; transformers only warns, and of one row not even that."""
    model, ids = make(name), prompt(3).repeat(1 if drafts else 2, 1)
    mask = torch.ones_like(ids)
    mask[0, -2:] = 0
    message = "must end with a one in every row: prompts are padded on the left; got a"
    refused(message, generate, model, ids, attention_mask=mask, **drafts)


@pytest.mark.parametrize("steps_per_block", [2.0, 5.0])
def test_wrong_drafts_cost_little(steps_per_block):
    balance, cost, steps, unread = _Balance(8, steps_per_block, 0.1), 0.0, 2000, 1
    for _ in range(steps):
        drafted = balance.next()
        cost += 0.1 * drafted + (steps_per_block if unread + drafted > 1 else 1)
        balance.learn(unread + drafted, drafted, 1)
        unread = unread + 1 if drafted else 1
    assert 1 < cost / steps < 1 + 1.5 * LARGEST_LOSS < 1 / 0.95
    while balance.next() == 0:
        balance.learn(1, 0, 1)
    balance.learn(9, 8, 9)
    assert balance.next() > 0, "and they come back where they are right"
    for _ in range(1000):
        balance.learn(9, 8, 9)
    assert balance.next() == 8
    wrong = 0
    while (drafted := balance.next()) and wrong < 100_000:
        balance.learn(1 + drafted, drafted, 1)
        wrong += 1
    assert balance.length == 1
    assert wrong < 500, "what they gave long ago is forgotten"


def test_lookup_finds_what_followed_the_longest_match():
    lookup = PromptLookup(2)
    assert lookup.draft([1, 2, 3, 9, 2, 4, 1, 2], 3, False) == [3, 9, 2]
    assert lookup.draft([1, 2, 3, 9, 2, 4, 1, 2, 4], 2, True) == [1, 2]
    assert lookup.draft([1, 2, 3, 9, 2, 4, 1, 2, 4, 9], 2, False) == [2, 4]
    assert lookup.draft([1, 2, 3, 9, 2, 4, 1, 2, 4, 9], 2, True) == [], "one token alone is doubtful"
    assert PromptLookup(2).draft([1, 2, 3], 4, False) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_ids": torch.ones(2, 3, dtype=torch.long)}, "one sequence"),
        ({"assistant_model": True}, "one without the other"),
        ({"prompt_lookup_num_tokens": 0}, "at least 1"),
        ({"output_hidden_states": True}, "output_hidden_states must be False with drafts"),
        ({"output_attentions": True}, "output_attentions must be False with drafts"),
        ({"prompt_lookup_num_tokens": None, "assistant_model": True}, "vocabulary of the model"),
    ],
)
def test_mistakes_are_refused_in_a_line(options, message):
    options = {"input_ids": prompt(0), "prompt_lookup_num_tokens": 3, **options}
    if "assistant_model" in options:
        options["assistant_model"] = lstm(vocab_size=VOCABULARY + 1)
    ids = options.pop("input_ids")
    refused(message, generate, make("v1"), ids, **options)


@pytest.mark.parametrize("name", ["v1", "armt", "lstm"])
def test_a_drafting_state_of_a_model_of_transformers_is_refused_in_a_line(name):
    """transformers crops an assistant's cache in place; llama's own generation is used here."""
    message = "what is cropped must be a cache of transformers.*; an assistant_model must be one"
    refused(message, generate, make("llama"), prompt(0).clamp(min=1), assistant_model=make(name, 1))  # 0 is padding


def test_an_lstm_stops_at_a_string():
    """transformers hands the tokenizer of `stop_strings` on to the model, which took no such argument."""
    tokenizer = byte_tokenizer()
    model = lstm(vocab_size=len(tokenizer)).eval()
    letters = [token for token in range(len(tokenizer)) if not 97 <= token < 123]
    options = {"max_new_tokens": 6, "do_sample": False, "suppress_tokens": letters, "pad_token_id": 0}
    inputs = tokenizer("1 2", return_tensors="pt")
    not_stopped = model.generate(**inputs, **options)[0]
    stop = tokenizer.decode(not_stopped[3:5])
    stopped = model.generate(**inputs, **options, stop_strings=[stop], tokenizer=tokenizer)[0]
    assert torch.equal(stopped, not_stopped[:5])


@pytest.mark.parametrize("name", ["v1", "v2", "armt", "rmt", "prmt", "gla", "lstm"])
def test_continuous_batching_is_refused_at_once(name):
    """transformers erred in a thread, and `generate_batch` returned nothing after a minute."""
    message = "generate_batch: the model must keep a cache that can be paged; got .*, whose state is a value. Use"
    refused(message, make(name).generate_batch, [[1, 2, 3], [4, 5]], max_new_tokens=3)


@some("name", MODELS, by_default=["v1", "lstm", "armt", "rmt"])
@torch.no_grad()
def test_a_prompt_read_in_parts_is_the_prompt(name):
    """`prefill_chunk_size`, for which transformers wants a cache that can be empty."""
    model, ids = MODELS[name]().double().eval(), torch.randint(VOCABULARY, (2, 23))
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 5, "do_sample": False, "use_cache": True}
    read = []
    model.register_forward_pre_hook(lambda _, args, given: read.append(given["input_ids"].shape[1]), with_kwargs=True)
    if name == "armt around v1":
        message = "generate: segment_alignment must be left with prefill_chunk_size; got right."
        refused(message, model.generate, ids, prefill_chunk_size=5, **options)
        return
    expected = model.generate(ids, **options)
    for size, first in ((5, [5, 5, 5, 5, 3, 1]), (23, [23, 1]), (99, [23, 1])):
        read.clear()
        assert torch.equal(model.generate(ids, prefill_chunk_size=size, **options), expected)
        assert read[: len(first)] == first
    beams = {**options, "num_beams": 3}
    assert torch.equal(model.generate(ids, prefill_chunk_size=5, **beams), model.generate(ids, **beams))
    state = model(input_ids=ids[:, :6], use_cache=True).past_key_values
    assert torch.equal(model.generate(ids, past_key_values=state, prefill_chunk_size=5, **options), expected)


def test_parts_of_a_prompt_that_cannot_be_read_are_refused():
    model, ids = MODELS["v1"](), torch.ones(1, 9, dtype=torch.long)
    embedded = {"inputs_embeds": model.get_input_embeddings()(ids), "attention_mask": torch.ones_like(ids)}
    message = "prefill_chunk_size must be a positive number of tokens; got 0"
    refused(message, model.generate, ids, max_new_tokens=2, prefill_chunk_size=0)
    few = {"max_new_tokens": 2, "prefill_chunk_size": 4}
    refused("a prompt that is read in parts must be tokens", model.generate, **few, **embedded)
    refused("use_cache must be True", model.generate, ids, **few, use_cache=False)
