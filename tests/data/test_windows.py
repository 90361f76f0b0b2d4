"""Training order and windows: a permutation, the same for everyone, inside the text."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tessera.data import store as store_module
from tessera.data.sources import text_source
from tessera.data.store import StoreDescription, TokenStore, open_or_build
from tessera.data.windows import Split, TrainingWindows, ValidationWindows, shuffled, stacked
from tests.refusals import refused


def store_of(tmp_path, count, starts=(0,)):
    np.arange(count, dtype="<u2").tofile(tmp_path / "tokens.bin")
    np.asarray(starts, dtype="<i8").tofile(tmp_path / "documents.bin")
    return TokenStore(tmp_path, StoreDescription("x", "<u2", count, len(starts), 2 * count, count - 1, [0, 0]))


@given(count=st.integers(1, 200), seed=st.integers(0, 2**40), epoch=st.integers(0, 5))
def test_every_number_has_one_place(count, seed, epoch):
    assert sorted(shuffled(place, count, seed, epoch) for place in range(count)) == list(range(count))


def test_orders_differ_and_look_random():
    orders = [[shuffled(place, 1000, seed, epoch) for place in range(1000)] for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    for index, order in enumerate(orders):
        for other in [*orders[:index], list(range(1000))]:
            # 1000 pairs of independent uniform places: standard error 1/sqrt(1000); 5 of them
            assert abs(np.corrcoef(order, other)[0, 1]) < 0.16


def test_one_pass_covers_the_text_once(tmp_path):
    windows = TrainingWindows(Split.of(store_of(tmp_path, 1000)), 10, seed=3)
    for epoch in range(4):
        firsts = [int(windows[epoch * windows.per_epoch + place]["input_ids"][0]) for place in range(windows.per_epoch)]
        assert len(set(firsts)) == windows.per_epoch == 99
        assert len({first % 10 for first in firsts}) == 1
        assert min(firsts) >= 0
        assert max(firsts) + 10 <= 1000
    offsets = {int(windows[epoch * windows.per_epoch]["input_ids"][0]) % 10 for epoch in range(4)}
    assert len(offsets) > 1


def test_the_order_depends_on_the_seed_alone(tmp_path):
    split = Split.of(store_of(tmp_path, 500))
    first, again, other = (TrainingWindows(split, 8, seed) for seed in (1, 1, 2))
    assert all(torch.equal(first[i]["input_ids"], again[i]["input_ids"]) for i in range(60))
    assert any(not torch.equal(first[i]["input_ids"], other[i]["input_ids"]) for i in range(60))


@pytest.mark.parametrize("count", [8, 9, 15, 16, 17])
def test_texts_of_about_one_window_work(tmp_path, count):
    windows = TrainingWindows(Split.of(store_of(tmp_path, count)), 8, seed=0)
    batch = stacked([windows[i] for i in range(20)])
    assert batch["input_ids"].shape == (20, 8)
    assert int(batch["input_ids"].max()) < count


def test_text_shorter_than_a_context_is_refused(tmp_path):
    refused(r"one context of 8 tokens; got 7 tokens", TrainingWindows, Split.of(store_of(tmp_path, 7)), 8, seed=0)
    refused("validation text", ValidationWindows, Split.of(store_of(tmp_path, 7)), 8)


def test_documents_are_numbered_and_not_predicted_across(tmp_path):
    split = Split.of(store_of(tmp_path, 20, starts=(0, 7, 12)))
    window = split.window(5, 10, document_ids=True)
    assert window["document_ids"].tolist() == [0, 0, 1, 1, 1, 1, 1, 2, 2, 2]
    assert window["labels"].tolist() == [5, 6, -100, 8, 9, 10, 11, -100, 13, 14]
    assert window["input_ids"].tolist() == list(range(5, 15))


def test_held_out_text_is_the_end_and_not_trained_on(tmp_path):
    training, validation = Split.of(store_of(tmp_path, 1000)).divided(0.1)
    seen = {int(t) for i in range(300) for t in TrainingWindows(training, 10, 0)[i]["input_ids"]}
    held_out = {int(t) for item in ValidationWindows(validation, 10) for t in item["input_ids"]}
    assert held_out == set(range(900, 1000))
    assert not seen & held_out


def test_validation_windows_are_spread_over_the_text(tmp_path):
    windows = ValidationWindows(Split.of(store_of(tmp_path, 1000)), 10, limit=4)
    assert [int(item["input_ids"][0]) for item in windows] == [0, 250, 500, 750]


def tokenizer_of(vocabulary, **special):
    """Single letters as tokens, with "\u2581" for a blank."""
    numbers = {token: number for number, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.BPE(vocab=numbers, merges=[], unk_token=special.get("unk_token")))
    tokenizer.decoder = decoders.Replace("\u2581", " ")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def tokens_per_byte(folder, tokenizer, text, document_ids=False, **special):
    """Of fifty documents that are this text, read in windows of eight tokens."""
    (folder / "text.jsonl").write_text(50 * f'"{text}"\n', encoding="utf-8")
    source = text_source(str(folder / "text.jsonl"), format="json_lines")
    store = open_or_build(source, tokenizer, folder, **{"end_token": False, **special})
    return ValidationWindows(Split.of(store), 8, document_ids=document_ids).tokens_per_byte(tokenizer)


@pytest.mark.parametrize(("document_ids", "expected"), [(True, 4 / 8), (False, 5 / 8)])
def test_begin_tokens_that_nothing_predicts_do_not_count(tmp_path, document_ids, expected):
    """Of text with unknown characters, whose tokens do not say their bytes."""
    tokenizer = tokenizer_of(["<unk>", "<s>", "a", "b"], bos_token="<s>", unk_token="<unk>")
    ratio = tokens_per_byte(tmp_path, tokenizer, "a国b国", document_ids, begin_token=True)
    assert ratio == pytest.approx(expected)


@pytest.mark.parametrize(("text", "expected"), [("a b ab ", 1.0), ("a国b国", 0.5)])
def test_unknown_text_counts_with_all_of_its_bytes(tmp_path, text, expected):
    """A token of SentencePiece says its bytes, unless it is the one for whatever the vocabulary does not have."""
    tokenizer = tokenizer_of(["<unk>", "</s>", "a", "b", "\u2581"], eos_token="</s>", unk_token="<unk>")
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    assert tokens_per_byte(tmp_path, tokenizer, text) == expected


@pytest.mark.parametrize("scheme", ["never", "first"])
@pytest.mark.parametrize(("text", "size", "tokens"), [("a    b", 6, 3), ("ﬁﬁ a", 8, 6)])
def test_a_text_that_its_tokenizer_changes_counts_with_its_own_bytes(tmp_path, monkeypatch, scheme, text, size, tokens):
    monkeypatch.setattr(store_module, "COUNTED_AT_ONCE", 7)
    tokenizer = tokenizer_of(["a", "b", "f", "i", "\u2581"])
    changes = [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence(changes)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    assert tokens_per_byte(tmp_path, tokenizer, text) == pytest.approx((tokens + (scheme == "first")) / size)


@pytest.mark.parametrize("scheme", ["never", "first"])
@pytest.mark.parametrize("special", [{}, {"begin_token": True}, {"end_token": True}])
def test_a_blank_that_a_tokenizer_puts_before_a_text_is_none_of_its_bytes(tmp_path, scheme, special):
    tokenizer = tokenizer_of(["<s>", "</s>", "a", "b", "\u2581"], bos_token="<s>", eos_token="</s>")
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    before, behind = special.get("begin_token", 0) + (scheme == "first"), special.get("end_token", 0)
    sizes = 50 * [*[0] * before, 1, 1, 1, *[0] * behind]
    predicted = [size for place, size in enumerate(sizes[: len(sizes) // 8 * 8]) if place % 8]
    assert tokens_per_byte(tmp_path, tokenizer, "b a", **special) == pytest.approx(len(predicted) / sum(predicted))
