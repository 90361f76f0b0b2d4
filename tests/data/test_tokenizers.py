"""Tokenizers encode losslessly, survive saving, and refuse impossible specifications."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from tessera.data.tokenizers import (
    BEGIN,
    END,
    TokenizerSpec,
    build_tokenizer,
    byte_tokenizer,
    token_bytes,
    train_bpe,
    vocabulary_size,
)
from tessera.recipes.model_section import config_for
from tests.refusals import refused, refused_in_a_line

TEXT = "Once upon a time there was a king. " * 30


@pytest.fixture(scope="module")
def gpt2_files(tmp_path_factory):
    """A small tokenizer in the two files that GPT-2's is published in."""
    folder = tmp_path_factory.mktemp("gpt2")
    trained = json.loads(train_bpe([TEXT], 270).backend_tokenizer.to_str())["model"]
    vocabulary = {token: number for number, token in enumerate(t for t in trained["vocab"] if t != BEGIN)}
    (folder / "encoder.json").write_text(json.dumps(vocabulary))
    (folder / "vocab.bpe").write_text("\n".join(["#version: 0.2", *(" ".join(pair) for pair in trained["merges"])]))
    return folder


BYTES = byte_tokenizer()


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30).filter(lambda text: "<|" not in text))
def test_byte_tokens_are_the_bytes(text):
    ids = BYTES(text)["input_ids"]
    assert ids == list(text.encode())
    assert BYTES.decode(ids) == text


def test_bpe_has_the_size_asked_for_and_is_reproducible():
    first, second = train_bpe([TEXT], 280), train_bpe([TEXT], 280)
    assert len(first) == vocabulary_size(TokenizerSpec("bpe", 280)) == 280
    assert first.backend_tokenizer.to_str() == second.backend_tokenizer.to_str()
    assert len(first(TEXT)["input_ids"]) < len(TEXT) / 2
    assert first.decode(first("né\n\n 1")["input_ids"]) == "né\n\n 1"


def test_gpt2_from_local_files(gpt2_files):
    tokenizer = build_tokenizer(TokenizerSpec("gpt2", path=str(gpt2_files)))
    assert tokenizer.decode(tokenizer(TEXT)["input_ids"]) == TEXT
    assert tokenizer.eos_token == tokenizer.bos_token == END
    assert tokenizer("a" + END)["input_ids"][-1] == tokenizer.eos_token_id


@pytest.mark.parametrize("kind", ["byte", "bpe", "gpt2"])
def test_saved_tokenizers_load_again(tmp_path, gpt2_files, kind):
    options = {"byte": {}, "bpe": {"vocab_size": 270}, "gpt2": {"path": str(gpt2_files)}}
    tokenizer = build_tokenizer(TokenizerSpec(kind, **options[kind]), [TEXT])
    tokenizer.save_pretrained(tmp_path)
    ours = build_tokenizer(TokenizerSpec("pretrained", path=str(tmp_path)))
    for loaded in (AutoTokenizer.from_pretrained(tmp_path), ours):
        assert loaded("the king")["input_ids"] == tokenizer("the king")["input_ids"]
        assert (loaded.eos_token_id, loaded.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
        assert loaded.padding_side == "left"


def test_ids_may_have_gaps(tmp_path):
    """As where tokens were taken out of a vocabulary: `len` counts tokens, and models need a row for each id."""
    saved = json.loads(BYTES.backend_tokenizer.to_str())
    saved["model"]["vocab"]["!!"] = 300
    (tmp_path / "tokenizer.json").write_text(json.dumps(saved))
    spec = TokenizerSpec("pretrained", path=str(tmp_path / "tokenizer.json"))
    tokenizer = build_tokenizer(spec)
    assert token_bytes(tokenizer)[255::15] == [b"\xff", b"", b"", b"!!"]
    assert vocabulary_size(spec) == config_for({"type": "lstm"}, tokenizer, 8).vocab_size == 301


def test_training_on_nothing_is_refused():
    refused("must contain text; got none", train_bpe, [], 300)


def test_missing_and_broken_gpt2_files_are_named(tmp_path):
    refused(r"must hold vocab\.json and merges\.txt", build_tokenizer, TokenizerSpec("gpt2", path=str(tmp_path)))
    (tmp_path / "encoder.json").write_text("{")
    (tmp_path / "vocab.bpe").write_text("")
    refused("no readable GPT-2 tokenizer", build_tokenizer, TokenizerSpec("gpt2", path=str(tmp_path)))


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (TokenizerSpec("bites"), "type"),
        (TokenizerSpec("bpe"), "vocab_size"),
        (TokenizerSpec("bpe", 100), "vocab_size"),
        (TokenizerSpec("byte", 300), "vocab_size"),
        (TokenizerSpec("byte", path="x"), "path"),
        (TokenizerSpec("pretrained"), "path"),
    ],
)
def test_impossible_specifications_are_problems(spec, field):
    assert [name for name, _ in spec.problems()] == [field]
    assert not TokenizerSpec("bpe", 300).problems()


@pytest.mark.parametrize("beside", [True, False])
def test_a_tokenizer_file_is_a_path(tmp_path, beside):
    trained = train_bpe([TEXT], 270)
    trained.save_pretrained(tmp_path)
    if not beside:
        (tmp_path / "tokenizer_config.json").unlink()
    spec = TokenizerSpec("pretrained", path=str(tmp_path / "tokenizer.json"))
    loaded = build_tokenizer(spec)
    assert loaded("the king")["input_ids"] == trained("the king")["input_ids"]
    assert (loaded.eos_token, loaded.pad_token, loaded.padding_side) == (END, END, "left")
    assert vocabulary_size(spec) == 270


def test_a_tokenizer_file_that_does_not_say_how_texts_end(tmp_path):
    text = train_bpe([TEXT], 270).backend_tokenizer.to_str().replace(END, "<|stop|>").replace(BEGIN, "<|start|>")
    (tmp_path / "mine.json").write_text(text)
    spec = TokenizerSpec("pretrained", path=str(tmp_path / "mine.json"))
    refused("must say which token ends a text", build_tokenizer, spec)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("./nowhere", "'./nowhere', which does not exist."),
        ("nowhere.json", "'nowhere.json', which does not exist."),
        ("a/b/c", "'a/b/c', which does not exist."),
        ("not a name", "must name a folder, a tokenizer.json file, or the name of a model"),
        ("damaged.json", "must be a file that the tokenizers library saved"),
        ("owner/name", "is no folder here, and the hub did not give it (no network). Where there is a network, run"),
    ],
)
def test_a_tokenizer_that_is_not_there_is_asked_for_once(tmp_path, monkeypatch, path, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged.json").write_text('{"model": [1]}')
    questions = []

    def ask(api, name, **options):
        from huggingface_hub.utils import validate_repo_id

        validate_repo_id(name)
        questions.append(name)
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", ask)
    refused_in_a_line(message, build_tokenizer, TokenizerSpec("pretrained", path=path))
    assert questions == (["owner/name"] if path == "owner/name" else [])
