"""What a model cannot answer is refused before a text is read, which may take hours."""

import pytest
from transformers import pipeline

from tessera.data.tokenizers import byte_tokenizer
from tessera.generation.sampling import Sampling
from tessera.memory_files import Memory
from tessera.models import carried_state
from tests import refusals
from tests.memory_files.models import make
from tests.models.armt.bases import tiny

BEAMS = "num_beams must be 1 with this model's cache; got more."


@pytest.fixture
def folder(tmp_path):
    """The folder of a model with 300 positions, whose cache cannot be copied for beams."""
    make("gpt2").save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("A king lived here. He had two sons.")
    return path


@pytest.fixture
def unread(monkeypatch):
    """Nothing may be read."""

    def fail(*_, **__):
        pytest.fail("the text was read")

    monkeypatch.setattr("tessera.memory_files.memory.read_document", fail)


@pytest.mark.usefixtures("unread")
def test_by_ask(refused, folder, book):
    ask = ("ask", folder, "Who", "--text", book)
    refused(f"ask: {BEAMS}", *ask, "--num-beams", 2)
    refused("num_beams must be at most 10,000", *ask, "--num-beams", 20_000)
    refused("must fit the 300 positions", *ask, "--max-new-tokens", 300)


def test_by_ask_from_standard_input(typed, folder, book, unread):
    status, out, err = typed("Who\n", "ask", folder, "--interactive", "--text", book, "--num-beams", 2)
    assert (status, out, err) == (2, "", f"ask: {BEAMS}\n")


def test_by_chat(tessera, typed, folder, book, tmp_path, request):
    assert tessera("memorize", folder, book, "--out", tmp_path / "memory")[0] == 0
    request.getfixturevalue("unread")
    chat = ("chat", folder, "--num-beams", 2, "--max-new-tokens", 1)
    status, _, err = typed(f"Who\n/read {book}\n", *chat)
    assert (status, err) == (0, f"chat: {BEAMS}\n"), "without a text beams are possible"
    status, out, err = typed("Who\n", *chat, "--memory", tmp_path / "memory")
    assert (status, out, err) == (2, "", f"chat: {BEAMS}\n")


@pytest.mark.usefixtures("unread")
def test_by_the_pipeline():
    asking = pipeline("memory-question-answering", model=make("gpt2"), tokenizer=byte_tokenizer())
    text = "A king lived here."
    refusals.refused(BEAMS, asking, text, question="Who", num_beams=2)
    refusals.refused("must hold at least one token", asking, text, question=["Who", ""])
    refusals.refused("must keep pairs", asking, text, question="Who", cite=1)
    refusals.refused("of at least 1", asking, text, question="Who", max_new_tokens=0)


def test_citations_of_beams_are_refused_before_the_search(monkeypatch):
    memory = Memory(make("v1"), byte_tokenizer()).read("A king lived here.", "king")
    monkeypatch.setattr("tessera.memory_files.memory.answer", lambda *_, **__: pytest.fail("it was answered"))
    needed = "the answer must hold tokens that were chosen one by one; got 2 beams"
    refusals.refused(needed, memory.ask, "Who", Sampling(num_beams=2), cite=1)


def test_a_model_that_loses_its_state_is_refused_before_it_reads(monkeypatch):
    """Trying that takes 24 tokens."""
    read_on, lengths = carried_state.read_on, []

    def spy(model, ids, *arguments, **options):
        lengths.append(ids.shape[1])
        return read_on(model, ids, *arguments, **options)

    monkeypatch.setattr(carried_state, "read_on", spy)
    memory = Memory(tiny("mamba", vocab_size=258).eval(), byte_tokenizer())
    refusals.refused("must read on behind its state", memory.read, "A king lived here. " * 9, "king")
    assert max(lengths) <= 24
