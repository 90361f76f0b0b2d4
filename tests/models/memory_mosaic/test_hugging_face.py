"""The Memory Mosaic does what users of transformers expect of a model."""

import io

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedTokenizerFast, TextStreamer, pipeline

import tessera
from tessera import MemoryMosaicConfig, MemoryMosaicForCausalLM

WORDS = "the cat sat on a mat and looked at me".split()


@pytest.fixture
def model():
    return MemoryMosaicForCausalLM(
        MemoryMosaicConfig(
            vocab_size=12, hidden_size=16, num_layers=2, num_heads=2, num_persistent_slots=8, pad_token_id=10
        )
    ).eval()


@pytest.fixture
def tokenizer():
    vocabulary = {word: index for index, word in enumerate(WORDS)} | {"[PAD]": 10, "[UNK]": 11}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", padding_side="left")


def prompt(batch=1, steps=5):
    return torch.randint(0, 10, (batch, steps))


def test_saves_and_loads_through_the_auto_classes(model, tmp_path):
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    ids = prompt()
    for loaded in (
        MemoryMosaicForCausalLM.from_pretrained(tmp_path),
        AutoModelForCausalLM.from_pretrained(tmp_path),
        AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path)),
    ):
        assert isinstance(loaded, MemoryMosaicForCausalLM)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    base = AutoModel.from_pretrained(tmp_path)
    assert torch.equal(base(ids).last_hidden_state, model.model(ids).last_hidden_state)


def test_kernels_survive_saving(tmp_path):
    kernel = {"name": "knn", "base": "uniform", "k": 3}
    config = MemoryMosaicConfig(vocab_size=12, hidden_size=16, num_layers=1, num_heads=2, kernel=kernel)
    config.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).kernel == kernel


def test_beam_search_finds_the_likelier_sequence(model):
    ids = prompt()
    mask = torch.ones_like(ids)

    def log_probability(sequence):
        logits = model(sequence).logits[:, 4:-1].log_softmax(dim=-1)
        return logits.gather(2, sequence[:, 5:, None]).sum().item()

    # With as many beams as sequences of two tokens begin with, beam search is exhaustive.
    best = model.generate(ids, attention_mask=mask, max_new_tokens=2, num_beams=12, do_sample=False)
    candidates = [torch.cat([ids, torch.tensor([[a, b]])], dim=1) for a in range(12) for b in range(12)]
    assert log_probability(best) == pytest.approx(max(map(log_probability, candidates)), abs=1e-4)
    assert model.generate(ids, attention_mask=mask, max_new_tokens=6, num_beams=2, do_sample=False).shape == (1, 11)


def test_sampling_and_several_sequences(model):
    ids = prompt()
    inputs = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 4, "do_sample": True, "top_k": 5}
    assert model.generate(ids, num_return_sequences=3, **inputs).shape == (3, 9)


def test_streams_and_serves_a_pipeline(model, tokenizer, capsys):
    ids = tokenizer("the cat sat", return_tensors="pt").input_ids
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, streamer=TextStreamer(tokenizer))
    assert capsys.readouterr().out.startswith("the cat sat")
    generator = pipeline("text-generation", model=model, tokenizer=tokenizer)
    texts = generator(["the cat", "a mat and"], max_new_tokens=3, do_sample=False, batch_size=2)
    assert texts[0][0]["generated_text"].startswith("the cat")


def test_no_context_length_is_built_in(model):
    assert model(prompt(1, 700)).logits.shape == (1, 700, 12)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # PyTorch's own, while it sets its compiler up
def test_compiles(model):
    ids = prompt(2, 16)
    compiled = torch.compile(model)
    torch.testing.assert_close(compiled(ids, use_cache=False).logits, model(ids).logits, rtol=1e-4, atol=1e-4)


def test_pickles_nothing(model, tmp_path):
    model.save_pretrained(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} - {".md"} == {".json", ".safetensors"}
    assert io.BytesIO((tmp_path / "config.json").read_bytes()).read(1) == b"{"
    assert tessera.__version__
