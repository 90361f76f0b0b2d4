"""Every command begins texts as the model's tokenizer does; with a run, as its training did."""

import html
import json
import re
from dataclasses import replace

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, pipeline

import tessera as library
from tessera.base.beginnings import BEGINS_WITH_BOS, opening_tokens
from tessera.data.tokenizers import byte_tokenizer
from tessera.generation.sampling import Sampling, continuation
from tessera.inspection import Trace
from tessera.memory_files import Memory, answering, citations
from tessera.memory_files.page import write_page
from tessera.models.saving.loading import load_model, load_tokenizer
from tests.cli.conftest import OPTIONS
from tests.memory_files.models import make
from tests.refusals import refused as refuses

BOOK = "A king lived here. He had two sons.\r\nOne was tall! The queen ate a cake.\n"
BOS, EOS = 256, 257
GREEDY = Sampling(8, 0.0)


def tokenizer_with(opening, end=""):
    """Bytes; `opening`: it puts BOS in front of each text."""
    tokenizer = byte_tokenizer()
    if opening:
        special = [(tokenizer.bos_token, BOS), (tokenizer.eos_token, EOS)]
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(f"{tokenizer.bos_token} $A{end}", None, special)
    return tokenizer


def sharp(kind):
    """A model whose likeliest tokens depend on all that it reads."""
    model = make(kind)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=0.4)
    return model


@pytest.fixture(params=[True, False], ids=["BOS", "no BOS"])
def begins(request):
    return request.param


@pytest.mark.parametrize("kind", ["llama", "v1", "armt"])
def test_generate_says_what_transformers_says(tmp_path, begins, kind):
    sharp(kind).save_pretrained(tmp_path)
    tokenizer_with(begins).save_pretrained(tmp_path)
    said = pipeline("text-generation", str(tmp_path), device="cpu", dtype=torch.float32)(
        "Once upon", do_sample=False, max_new_tokens=8, return_full_text=False
    )[0]["generated_text"]
    model = load_model(tmp_path)
    assert continuation(model, load_tokenizer(tmp_path), "Once upon", GREEDY) == said
    assert continuation(model, tokenizer_with(not begins), "Once upon", GREEDY) != said, "the model does not see BOS"


@pytest.mark.parametrize("sampling", [GREEDY, replace(GREEDY, num_beams=3)], ids=["greedy", "beams"])
@pytest.mark.parametrize("kind", ["v1", "v2", "lstm"])
def test_an_answer_behind_a_memory_is_that_of_the_whole_text(begins, kind, sampling):
    model, tokenizer = sharp(kind), tokenizer_with(begins)
    answer = Memory(model, tokenizer).read([BOOK]).ask("Who", sampling)
    assert answer.text == continuation(model, tokenizer, BOOK + "Who", sampling)
    assert answer.question.tolist() == list(b"Who")
    alone = Memory(model, tokenizer).ask("Who", sampling)
    assert alone.text == continuation(model, tokenizer, "Who", sampling)
    assert alone.question.tolist() == [BOS] * begins + list(b"Who")


def test_each_document_begins_so_and_is_forgotten_so(begins):
    model, tokenizer = sharp("llama"), tokenizer_with(begins)
    memory = Memory(model, tokenizer).read([BOOK], "one").read(["Nobody."], "two")
    assert [document.tokens.tolist() for document in memory.documents] == [
        [BOS] * begins + list(text.encode()) for text in (BOOK, "Nobody.")
    ]
    ids = torch.tensor([[*[BOS] * begins, *BOOK.encode(), *[BOS] * begins, *b"Nobody.Who"]])
    said = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=8)
    assert memory.ask("Who", GREEDY).text == tokenizer.decode(said[0, ids.shape[1] :], skip_special_tokens=True)
    alone = Memory(model, tokenizer).read(["Nobody."], "two").ask("Who", GREEDY)
    assert memory.forget("one").ask("Who", GREEDY).text == alone.text


def test_citations_and_their_page_are_of_the_text_alone(tmp_path, begins):
    (tmp_path / "book.txt").write_bytes(b"\xef\xbb\xbf" + BOOK.encode())
    memory = Memory(make("v1"), tokenizer_with(begins)).read(tmp_path / "book.txt").read([BOOK[:35]], "other")
    answer = memory.ask("Who", replace(answering.GREEDY, max_new_tokens=3), cite=9)
    assert len(answer.citations) == 6
    for citation in answer.citations:
        source = (b"\xef\xbb\xbf" + BOOK.encode()) if citation.document == "book.txt" else BOOK[:35].encode()
        assert source[citation.first : citation.end].decode("utf-8-sig").strip() == citation.text
        assert re.fullmatch(r"[A-Z][^.!]*[.!]", citation.text)
    first, second = (len(document.tokens) for document in memory.documents)
    recalled = torch.zeros(first + second)
    recalled[first] = 1  # what the second begins with: BOS, which is no text, or its first sentence
    assert len(citations._passages(memory, recalled)) == (0 if begins else 1)
    write_page(tmp_path / "page.html", memory, [("Who", answer)])
    parts = re.findall("<pre>(.*?)</pre>", (tmp_path / "page.html").read_text(), re.DOTALL)
    texts = [html.unescape(re.sub("<[^>]+>", "", part)) for part in parts]
    assert texts == [BOOK.replace("\r\n", "\n"), BOOK[:35]]


def test_what_was_stored_without_a_beginning_is_read(tmp_path, monkeypatch):
    model, tokenizer = sharp("v1"), tokenizer_with(True)
    with monkeypatch.context() as earlier:
        earlier.setattr("tessera.memory_files.document.opening_tokens", lambda tokenizer: [])
        memory = Memory(model, tokenizer).read(["国王住在这里。"], "one").save(tmp_path / "m")
        said = memory.ask("Who", GREEDY).text
    loaded = Memory(model, tokenizer).load(tmp_path / "m")
    assert loaded.ask("Who", GREEDY, cite=1).text == said
    assert loaded.documents[0].opening(tokenizer) == 0
    for text in ("国王住在这里。", "国王住在那里。", "王住在那里。"):
        loaded.read([text], text)
    assert loaded.names == ["one", "国王住在那里。", "王住在那里。"], "the first is there already"
    assert loaded.documents[1].opening(tokenizer) == 1
    now = Memory(model, tokenizer).read(["国王住在这里。"], "one")
    assert now.merge(loaded).names == ["one", "国王住在那里。", "王住在那里。"]


def test_attached_texts_begin_so(begins):
    model, ids = sharp("llama"), torch.tensor([[BOS] * begins + list(BOOK.encode())])
    expected = library.attach(model).read(ids[0])
    logits = model(ids[:, :20]).logits
    expected.detach()
    with library.attach(model, tokenizer_with(begins)).read(BOOK) as attached:
        assert len(attached.memory) == ids.shape[1] - 1
        assert torch.equal(model(ids[:, :20]).logits, logits)


def test_the_loss_of_a_model_that_is_no_run_is_of_texts_that_begin_so(tessera, tmp_path, begins):
    model, text = sharp("llama"), "A king lived here."
    model.save_pretrained(tmp_path / "model")
    tokenizer_with(begins, end=" <|endoftext|>").save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text(text)
    ids = torch.tensor([[BOS] * begins + list(text.encode()) + [EOS]])
    command = ("eval", tmp_path / "model", "--data", tmp_path / "text.txt", "--context", ids.shape[1], "--json")
    report = json.loads(tessera(*command)[1])
    with torch.no_grad():
        assert report["loss"] == pytest.approx(model(ids, labels=ids).loss.item(), rel=1e-5)
    assert report["tokens"] == ids.shape[1] - 1


@pytest.mark.parametrize("template", [True, False], ids=["template", "no template"])
def test_a_run_begins_texts_as_its_training_did(done, tessera, corpus, tmp_path, begins, template):
    """Whatever the tokenizer would put there, and its own run before it."""
    other = tokenizer_with(template)
    other.init_kwargs[BEGINS_WITH_BOS] = not begins
    other.save_pretrained(tmp_path / "tokenizer")
    known = (f"data.source={corpus}", "tokenizer.type=pretrained", f"tokenizer.path={tmp_path / 'tokenizer'}")
    done("train", "tiny", *known, *OPTIONS, f"data.begin_token={begins}", "--output", tmp_path / "run")
    model, tokenizer = load_model(tmp_path / "run"), load_tokenizer(tmp_path / "run")
    assert opening_tokens(tokenizer) == [BOS] * begins
    assert Memory(model, tokenizer).ask("Once").question.tolist() == [BOS] * begins + list(b"Once")
    model.save_pretrained(tmp_path / "copy")
    tokenizer.save_pretrained(tmp_path / "copy")
    assert opening_tokens(AutoTokenizer.from_pretrained(tmp_path / "copy")) == [BOS] * begins
    of_run, of_copy = (
        json.loads(tessera("eval", tmp_path / name, "--data", corpus, "--context", 16, "--json")[1])
        for name in ("run", "copy")
    )
    assert (of_run["loss"], of_run["tokens"]) == (of_copy["loss"], of_copy["tokens"])
    checkpoint = max((tmp_path / "run" / "checkpoints").iterdir())
    assert opening_tokens(load_tokenizer(checkpoint)) == [BOS] * begins


def test_what_is_kept_must_be_possible():
    tokenizer = tokenizer_with(True)
    for kept, begin in (("yes", tokenizer.bos_token), (1, tokenizer.bos_token), (True, None)):
        tokenizer.init_kwargs[BEGINS_WITH_BOS], tokenizer.bos_token = kept, begin
        message = f"texts_begin_with_bos must be false, or true with a bos_token; got {kept!r}"
        refuses(message, opening_tokens, tokenizer)


def test_an_inspected_text_begins_so_unless_behind_a_memory(done, tmp_path, begins):
    make("v1").save_pretrained(tmp_path / "model")
    tokenizer_with(begins).save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text("A king.")
    done("memorize", tmp_path / "model", tmp_path / "text.txt", "--out", tmp_path / "m")
    for memory, opening in (((), [BOS] * begins), (("--memory", tmp_path / "m"), [])):
        trace = tmp_path / f"trace{len(memory)}"
        options = ("--text", tmp_path / "text.txt", "--output", tmp_path / "page.html", "--without", "none", *memory)
        done("inspect", tmp_path / "model", *options, "--save", trace)
        assert Trace.load(trace).input_ids.tolist() == opening + list(b"A king.")
