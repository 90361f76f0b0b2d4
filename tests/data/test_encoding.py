"""The tokens of a text do not depend on the pieces that it comes in, whichever tokenizer makes them."""

import copy

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from tessera.base.beginnings import opening_tokens, prompt_tokens
from tessera.data import text_files
from tessera.data.encoding import encoded_pieces
from tessera.data.pretrained_tokenizers import pretrained_tokenizer
from tessera.data.sources import text_source
from tessera.data.store import open_or_build
from tessera.data.text_files import safe_pieces, text_of_file
from tessera.data.tokenizers import byte_tokenizer, train_bpe

SAMPLE = "The king's daughter said: 'No.' Then 12 geese flew away and never came back, né? 国王说：你好，世界！ "
TABLE = "  12   3  45\n"
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def trained(model, trainer, pre_tokenizer=None, normalizer=None):
    tokenizer = Tokenizer(model)
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator([SAMPLE, TABLE.rstrip()] * 20, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>")


@pytest.fixture(scope="module")
def known():
    """Tokenizers as other people's."""
    special = {"special_tokens": ["<unk>", "</s>"], "show_progress": False}
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=True)
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)])
    llama_3, o200k = (
        pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(rule), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
        )
        for rule in (CL100K, O200K)
    )
    llama = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    alphabet = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    bpe = lambda: models.BPE(unk_token="<unk>", fuse_unk=False)  # noqa: E731
    return {
        "byte": byte_tokenizer(),
        "bpe": train_bpe([SAMPLE] * 20, 400),
        "prefix space": trained(bpe(), trainers.BpeTrainer(vocab_size=400, **special, **alphabet), byte_level),
        "smollm 2": trained(bpe(), trainers.BpeTrainer(vocab_size=400, **special, **alphabet), digits),
        "llama 3": trained(bpe(), trainers.BpeTrainer(vocab_size=400, **special, **alphabet), llama_3),
        "o200k": trained(bpe(), trainers.BpeTrainer(vocab_size=400, **special, **alphabet), o200k),
        "llama 2": trained(bpe(), trainers.BpeTrainer(vocab_size=200, **special), pre_tokenizers.Metaspace(), llama),
        "t5": trained(
            models.Unigram(),
            trainers.UnigramTrainer(vocab_size=90, unk_token="<unk>", **special),
            pre_tokenizers.Metaspace(),
            normalizers.Replace(Regex(r"[\n\t]"), " "),  # as T5's; two unknown characters would be one token
        ),
        "bert": trained(
            models.WordPiece(unk_token="<unk>"),
            trainers.WordPieceTrainer(vocab_size=200, **special),
            pre_tokenizers.BertPreTokenizer(),
            normalizers.BertNormalizer(),
        ),
    }


@pytest.mark.parametrize(
    "name", ["byte", "bpe", "prefix space", "smollm 2", "llama 3", "o200k", "llama 2", "t5", "bert"]
)
@given(text=st.text(alphabet=" \n\tab'1.,é国，", max_size=80), size=st.integers(1, 30))
@example(text=TABLE * 2, size=9)
@example(text="-  1  -  2  " * 2, size=9)
def test_pieces_have_the_tokens_of_the_whole(known, name, text, size):
    tokenizer = known[name]
    texts = [text[start : start + size] for start in range(0, len(text), size)]
    actual = [token for _, ids in encoded_pieces(safe_pieces(texts), tokenizer) for token in ids]
    assert actual == tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("name", ["byte", "bpe", "llama 2", "llama 3", "t5"])
def test_stores_hold_the_tokens_of_the_whole(known, name, tmp_path, monkeypatch):
    monkeypatch.setattr(text_files.documents_of_file, "__defaults__", (None, 5000))  # nine pieces in place of one
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf" + (SAMPLE.replace(" ", "\r\n") * 400).encode())
    tokenizer = known[name]
    store = open_or_build(text_source(str(tmp_path / "a.txt")), tokenizer, tmp_path / "cache", end_token=False)
    text = "".join(text_of_file(tmp_path / "a.txt"))
    expected = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
    assert store.tokens.tolist() == expected
    assert store.description.num_bytes == len(text.encode())


def test_a_tokenizer_that_cuts_and_pads_gives_whole_texts(tmp_path):
    """As the last call had it, which `save_pretrained` writes into tokenizer.json."""
    (tmp_path / "a.txt").write_text(SAMPLE)
    source = text_source(str(tmp_path / "a.txt"))
    whole = open_or_build(source, byte_tokenizer(), tmp_path / "one", end_token=False)
    tokenizer = byte_tokenizer()
    tokenizer("a", truncation=True, max_length=5, padding="max_length")
    tokenizer.save_pretrained(tmp_path / "saved")
    for other in (tokenizer, pretrained_tokenizer(str(tmp_path / "saved"))):
        store = open_or_build(source, other, tmp_path / "two", end_token=False)
        assert store.tokens.tolist() == whole.tokens.tolist()
        assert store.folder.name == whole.folder.name


@pytest.mark.parametrize("name", ["byte", "bpe", "llama 2", "llama 3", "t5", "bert"])
@pytest.mark.parametrize("template", ["$A", "{0} $A", "$A {0}", "{0} $A {0}", "{0} {0} $A"])
def test_a_text_begins_with_what_its_tokenizer_puts_in_front(known, name, template):
    tokenizer, end = copy.deepcopy(known[name]), known[name].eos_token
    special = [(end, tokenizer.eos_token_id)]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(template.format(end), None, special)
    expected = [tokenizer.eos_token_id] * template.partition("$A")[0].count("{0}")
    assert opening_tokens(tokenizer) == expected
    assert prompt_tokens(tokenizer, "a king") == expected + tokenizer("a king", add_special_tokens=False)["input_ids"]


def test_a_vocabulary_without_letters_has_a_beginning():
    """Where a letter would be an error of tokenizers."""
    words = Tokenizer(models.WordLevel({"king": 0, "<s>": 1}, unk_token="<unk>"))
    words.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    assert opening_tokens(PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>")) == [1]
