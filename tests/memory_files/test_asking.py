"""Questions, citations, the pipeline and the verbs of memories."""

import html
import itertools
import re
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, pipeline

from tessera.data.tokenizers import byte_tokenizer
from tessera.generation.sampling import Sampling, continuation
from tessera.inspection import Trace
from tessera.memory_files import Memory, citations
from tessera.memory_files.answering import GREEDY
from tessera.memory_files.page import is_page, write_page
from tessera.recall.pair_store import PairStore
from tests import refusals
from tests.memory_files.models import make

BOOK = "A king lived here. He had two sons.\r\nOne was <b>tall</b>! The queen ate a cake.\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("model") / "v1"
    make("v1").save_pretrained(place)
    byte_tokenizer().save_pretrained(place)
    return place


def test_the_sentence_that_carried_an_answer_is_cited(tmp_path):
    """What is said of a citation is what comes of running without it, and its bytes are those of the source."""
    (tmp_path / "book.txt").write_bytes(BOOK.encode())
    memory = Memory(make("v1"), byte_tokenizer()).read(tmp_path / "book.txt").read("Nobody saw it.", "other")
    answer = memory.ask("Who", replace(GREEDY, max_new_tokens=3), cite=9)
    assert {citation.document for citation in answer.citations} == {"book.txt", "other"}
    for citation in answer.citations:
        if citation.document == "book.txt":
            source = BOOK.encode()[citation.first : citation.end].decode()
            assert source.strip() == citation.text
            assert re.fullmatch(r"\s*[A-Z][^.!]*[.!]\s*", source), source
    assert len(answer.citations) == 5, "every sentence is recalled by the Gaussian kernel"
    drops = [citation.drop for citation in answer.citations]
    assert drops == sorted(drops, reverse=True)
    assert 0.5 < sum(citation.weight for citation in answer.citations) < 1  # the rest: the pairs of the question itself
    assert not answer.is_in_text
    assert "not in this text" in answer.sources()


def test_sentences_of_chinese_and_japanese_end_without_white_space():
    memory = Memory(make("v1"), byte_tokenizer()).read("国王住在这里。「他有两个儿子！？」王后吃了蛋糕。没人看见", "书")
    answer = memory.ask("谁", replace(GREEDY, max_new_tokens=2), cite=9)
    sentences = [citation.text for citation in sorted(answer.citations, key=lambda citation: citation.first)]
    assert sentences == ["国王住在这里。", "「他有两个儿子！？」", "王后吃了蛋糕。", "没人看见"]


@pytest.mark.parametrize("text", ["هل أكلت الملكة كعكة؟ نعم.", "ملکہ نے کیک کھایا۔ ہاں۔", "रानी ने केक खाया। हाँ।"])
def test_sentences_end_in_the_marks_of_their_script(text):
    answer = Memory(make("v1"), byte_tokenizer()).read([text]).ask("?", replace(GREEDY, max_new_tokens=2), cite=9)
    ends = sorted(citation.end for citation in answer.citations)
    assert ends == [len(text[: text.rindex(" ")].encode()), len(text.encode())]


def test_passages_do_not_overlap(tmp_path):
    """Where no sentence ends for more tokens than are looked at; the page marks all of them."""
    memory = Memory(make("v1"), byte_tokenizer()).read("no end of it " * 80, "one")
    answer = memory.ask("Who", replace(GREEDY, max_new_tokens=2), cite=9)
    cited = sorted(answer.citations, key=lambda citation: citation.first)
    assert len(cited) > 1
    assert all(before.end <= after.first for before, after in itertools.pairwise(cited))
    other = replace(answer, citations=(replace(cited[0], first=cited[0].first + 7, end=cited[0].end + 7),))
    write_page(tmp_path / "page.html", memory, [("Who", answer), ("What", other)])
    page = (tmp_path / "page.html").read_text()
    assert page.count("<mark id=") == len(cited) + 1
    assert re.sub("<[^>]+>", "", page.partition("<pre>")[2].partition("</pre>")[0]) == "no end of it " * 80


@pytest.mark.parametrize("heaviest", [400, 700])
def test_a_passage_ends_where_a_heavier_one_begins(heaviest):
    """Their 512 tokens would overlap, from either side."""
    memory = Memory(make("v1"), byte_tokenizer()).read("no end of it " * 80, "one")
    weights = torch.zeros(1040)
    weights[[400, 700]], weights[heaviest] = 0.1, 0.9
    passages = citations._passages(memory, weights)
    first, second = sorted((first, end) for _, _, first, end, _ in passages)
    assert first[0] < 400 < first[1] == second[0] < 700 < second[1]


def test_the_weight_of_a_pair_is_that_of_the_token_in_its_value():
    """A value looks one token ahead: none holds the first token, and the last pair's holds a token of the question."""
    memory = Memory(make("v1"), byte_tokenizer()).read("A king.", "king")
    answer = memory.ask("Who", replace(GREEDY, max_new_tokens=2))
    recalled = citations.recalled_of_tokens(memory, memory.state, answer)
    for weights in recalled.values():
        assert [bool(weight) for weight in weights[:-1]] == [False] + [True] * 6
        torch.testing.assert_close(weights.sum(), torch.tensor(3.0 * 2))  # three heads, two tokens of the answer


def test_the_pipeline_answers_as_the_memory_does():
    model, tokenizer = make("v1"), byte_tokenizer()
    asking = pipeline("memory-question-answering", model=model, tokenizer=tokenizer)
    single = asking(BOOK, question="Who", max_new_tokens=3)
    several = asking(BOOK, question=["Who", "What"], max_new_tokens=3, cite=1)
    assert several[0]["answer"] == single["answer"]
    assert several[1]["citations"][0]["document"] == "text 1"
    memory = Memory(model, tokenizer).read(BOOK)
    assert asking(memory, question="Who", max_new_tokens=3) == single
    assert memory.ask("Who", Sampling(3, 0.0)).probability == single["score"]
    refusals.refused(
        r"keywords must be cite or of max_new_tokens.*; got batch_size", asking, BOOK, question="Who", batch_size=2
    )
    refusals.refused("context must hold text; got none", asking, [], question="Who")


@pytest.mark.parametrize("kind", ["v1", "v2", "linear attention", "lstm"])
def test_beams_behind_a_memory_are_those_of_the_whole_text(kind):
    model, tokenizer = make(kind), byte_tokenizer()
    Memory(model, tokenizer).expect_answers(["Who"], Sampling(4, 0.0, num_beams=3))
    answer = Memory(model, tokenizer).read([BOOK]).ask("Who", Sampling(4, 0.0, num_beams=3))
    assert answer.text == continuation(model, tokenizer, BOOK + "Who", Sampling(4, 0.0, num_beams=3))


@pytest.mark.parametrize("beams", [1, 2])
def test_a_text_goes_on_with_the_blank_that_decoding_leaves_out(beams):
    """As Llama's and T5's tokenizers decode: what was said and what follows would be one word."""
    words = Tokenizer(models.WordLevel({f"\u2581{number}": number for number in range(258)}, unk_token="\u25810"))
    words.pre_tokenizer, words.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer, sampling, pieces = PreTrainedTokenizerFast(tokenizer_object=words), Sampling(3, 0.0, num_beams=beams), []
    answer = Memory(make("v1"), tokenizer).read("7 8 9").ask("5 6", sampling, write=pieces.append)
    assert re.fullmatch(r"( \d+){3}", answer.text)
    assert "".join(pieces).startswith(" ")
    assert re.fullmatch(r"( \d+){3}", continuation(make("v1"), tokenizer, "5 6", sampling))


@pytest.mark.parametrize("kind", ["armt", "rmt", "prmt"])
def test_beams_behind_a_memory_of_segments_are_those_of_generate(kind):
    model, tokenizer, sampling = make(kind), byte_tokenizer(), Sampling(4, 0.0, num_beams=3)
    memory = Memory(model, tokenizer)
    memory.expect_answers(["Who"], sampling)
    answer = memory.read([BOOK]).ask("Who", sampling)
    ids = torch.tensor([tokenizer("Who").input_ids])
    options = {"memory_state": memory.state, "num_beams": 3, "max_new_tokens": 4, "do_sample": False}
    text = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    assert answer.text == tokenizer.decode(text[0, ids.shape[1] :], skip_special_tokens=True)


@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_to_ask_again_copies_no_pairs(kind, tmp_path, monkeypatch):
    """The pairs of all documents are joined once, and the places of a question's are free again behind its answer.

    What is cited is left out by the numbers of documents alone.
    """
    model, tokenizer = make(kind), byte_tokenizer()
    several = Memory(model, tokenizer).read([BOOK]).read("Nobody saw it.", "other")
    Memory(model, tokenizer).read([BOOK]).save(tmp_path / "one")
    copied, grown = [], PairStore._grown
    monkeypatch.setattr(PairStore, "_grown", lambda *arguments: copied.append(arguments[1]) or grown(*arguments))
    for memory in (several, Memory(model, tokenizer).load(tmp_path / "one")):
        first, state = memory.ask("Who", Sampling(3, 0.0), cite=1), memory.state
        assert first.citations
        copied.clear()
        again = memory.ask("Who", Sampling(3, 0.0))
        assert (again.text, again.probability) == (first.text, first.probability)
        assert memory.state is state
        cited = memory.ask("Who", Sampling(3, 0.0), cite=9)
        assert len(cited.citations) > 3, "each was left out once"
        assert memory.ask("Who", Sampling(3, 0.0), cite=9).citations == cited.citations
        assert max(copied, default=0) < 20, "but for what a short-term memory drops now and then"
        memory.forget(memory.names[0])
        assert memory.state is not state, "what was forgotten is no longer asked"


def test_what_is_sampled_depends_on_its_seed_and_leaves_other_draws_alone():
    model, tokenizer = make("v1"), byte_tokenizer()
    memory, said = Memory(model, tokenizer).read([BOOK]), []
    for seed in (5, 6):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        sampling = Sampling(6, 1.0, top_k=0, seed=3)
        said.append((memory.ask("Who", sampling).text, continuation(model, tokenizer, BOOK, sampling)))
        memory.ask("Who", Sampling(3, 0.0)), continuation(model, tokenizer, BOOK, Sampling(3, 0.0, num_beams=2))
        assert torch.equal(torch.get_rng_state(), before)
    assert said[0] == said[1]
    assert memory.ask("Who", Sampling(6, 1.0, top_k=0, seed=4)).text != said[0][0]


def test_a_context_that_is_the_name_of_a_file_is_a_text_all_the_same(tmp_path, monkeypatch):
    """What somebody sends to a service must not open its files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text(BOOK)
    asking = pipeline("memory-question-answering", model=make("v1"), tokenizer=byte_tokenizer())
    in_folder = asking("notes.txt", question="Who", max_new_tokens=3)
    (tmp_path / "notes.txt").unlink()
    assert asking("notes.txt", question="Who", max_new_tokens=3) == in_folder


def test_memories_are_made_listed_merged_and_forgotten(tessera, refused, folder, tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text(f"{name} king. {BOOK}")
    both, first, second, merged = (tmp_path / name for name in ("both.m", "first.m", "second.m", "merged.m"))
    assert tessera("memorize", folder, tmp_path / "one.txt", tmp_path / "two.txt", "--out", both)[0] == 0
    tessera("memorize", folder, tmp_path / "one.txt", "--out", first)
    tessera("memorize", folder, tmp_path / "two.txt", "--out", second)
    assert tessera("memories", "merge", first, second, "--out", merged)[0] == 0
    assert merged.read_bytes() == both.read_bytes()
    assert tessera("memorize", folder, tmp_path / "two.txt", "--out", first, "--append")[0] == 0
    assert first.read_bytes() == both.read_bytes()
    assert tessera("memories", "forget", both, "one.txt")[0] == 0
    assert both.read_bytes() == second.read_bytes()
    status, out, _ = tessera("memories", "ls", tmp_path)
    assert (status, len(out.splitlines())) == (0, 4)
    status, out, err = tessera("memories", "info", tmp_path / "one.txt", both)
    assert (status, "two.txt: 90 bytes, 89 tokens" in out, err.count("\n")) == (2, True, 1)
    (tmp_path / "two.txt").write_text("another text")
    tessera("memorize", folder, tmp_path / "two.txt", "--out", other := tmp_path / "other.m")
    for words, message in [
        (("memories", "forget", both, "two.txt"), "a document must be left; got none"),
        (("memories", "forget", both, "three.txt"), "be one of 'two.txt'"),
        (("memories", "merge", both, other, "--out", tmp_path / "x"), "have different names"),
        (("memories", "merge", both, second), "--out must be given"),
        (("memories", "info", tmp_path / "one.txt"), "memories: M must be a stored memory"),
        (("memories", "forget", both), "forget must be followed by a memory and a document"),
        (("memories", "ls", tmp_path / "none"), "ls must be of one folder"),
        (("memories", "merge", both, first, "--out", second), "Use --overwrite"),
    ]:
        refused(message, *words)


def test_a_trace_is_no_memory_and_a_memory_no_trace(tessera, refused, folder, tmp_path):
    """A trace was listed among the memories, replaced by --overwrite, and called a state without its tokens."""
    text, page, trace, memory = (tmp_path / name for name in ("one.txt", "page.html", "trace", "memory"))
    text.write_text(BOOK)
    assert tessera("inspect", folder, "--text", text, "--output", page, "--without", "none", "--save", trace)[0] == 0
    assert tessera("memorize", folder, text, "--out", memory)[0] == 0
    status, out, _ = tessera("memories", "ls", tmp_path)
    assert (status, len(out.splitlines()), str(memory) in out) == (0, 1, True)
    no_memory = f"must be a stored memory; got {str(trace)!r}, a stored trace"
    for words, message in [
        (("memories", "info", trace), no_memory),
        (("memories", "merge", trace, memory, "--out", tmp_path / "x"), no_memory),
        (("ask", folder, "Who?", "--memory", trace), no_memory),
        (("memorize", folder, text, "--out", trace, "--overwrite"), "is no stored memory of this library"),
        (("inspect", folder, "--text", text, "--output", page, "--save", memory), "is no trace of this library"),
    ]:
        refused(message, *words)
    refusals.refused(f"must be a stored trace; got {str(memory)!r}, a stored memory", Trace.load, memory)


def test_answers_with_citations_and_a_page(tessera, folder, tmp_path):
    book = BOOK + " ± 国."  # characters that tokens cut
    (tmp_path / "book.txt").write_text(book)
    tessera("memorize", folder, tmp_path / "book.txt", "--out", tmp_path / "m")
    command = ("ask", folder, "Who <i>", "--memory", tmp_path / "m", "--max-new-tokens", 2)
    status, out, _ = tessera(*command, "--cite", "--page", tmp_path / "page.html", "--output", tmp_path / "rows")
    assert status == 0
    assert "book.txt, bytes" in out
    page = (tmp_path / "page.html").read_text()
    assert is_page(tmp_path / "page.html")
    assert "<b>" not in page
    assert html.unescape(re.sub("<[^>]+>", "", page.partition("<pre>")[2].partition("</pre>")[0])) == book.replace(
        "\r\n", "\n"
    )
    assert "Who &lt;i&gt;" in page
    assert page.count("<mark id=") == 3
    assert "<script" not in page
    assert '"citations": [{"document": "book.txt"' in (tmp_path / "rows").read_text()
    assert tessera(*command)[1].splitlines()[0] == out.splitlines()[0]


def test_a_conversation(tessera, typed, folder, tmp_path, monkeypatch):
    (tmp_path / "book.txt").write_text(BOOK)
    tessera("memorize", folder, tmp_path / "book.txt", "--out", tmp_path / "m")
    lines = ["Who", "/cite", "and \\", "then", "/new", "Who", "/forget none", f"/save {tmp_path / 'n'}", "/read none"]
    monkeypatch.chdir(tmp_path)  # which "/read" without a name does not read
    lines += ["/read", f"/read {'x' * 300}", f"/save {'x' * 5000}/n", "/forget book.txt", "/what", "/quit", "never"]
    status, out, err = typed("\n".join(lines), "chat", folder, "--memory", tmp_path / "m", "--max-new-tokens", 3)
    assert status == 0
    answer = tessera("ask", folder, "Who", "--memory", tmp_path / "m", "--max-new-tokens", 3)[1]
    assert out.startswith(answer)
    assert out.count("book.txt, bytes") == 1  # none carries this answer: the nearest alone
    assert (tmp_path / "n").read_bytes() == (tmp_path / "m").read_bytes()
    assert f"{tmp_path / 'n'}: 1 document stored" in out
    assert [line.split(":")[0] for line in err.splitlines()] == ["forget", *["chat"] * 5]
    assert max(map(len, err.splitlines())) < 500


def test_a_conversation_shows_what_beams_found(typed, folder):
    """No token of it comes before the end of the search."""
    found = Memory(make("v1"), byte_tokenizer()).ask("Who", Sampling(6, 0.0, num_beams=3)).text
    assert found != ""
    assert typed("Who\n", "chat", folder, "--max-new-tokens", 6, "--num-beams", 3)[1] == f"{found}\n"


def test_a_conversation_saves_again_and_cites_what_it_has_read(tessera, typed, folder, tmp_path):
    (tmp_path / "book.txt").write_text(BOOK)
    (tmp_path / "queen.txt").write_text("The queen slept.")
    tessera("memorize", folder, tmp_path / "queen.txt", "--out", tmp_path / "other")
    lines = [f"/read {tmp_path / 'book.txt'}", f"/save {tmp_path / 'm'}", "Who", f"/read {tmp_path / 'queen.txt'}"]
    lines += ["/cite", f"/save {tmp_path / 'm'}", "Who", "/forget book.txt", "/cite", f"/save {tmp_path / 'other'}"]
    _, out, err = typed("\n".join(lines), "chat", folder, "--max-new-tokens", 3)
    assert f"{tmp_path / 'm'}: 2 documents stored" in out
    cite, cite_again, save = err.splitlines()
    assert cite == cite_again == "chat: /cite must follow an answer; got none."
    got = f"got {str(tmp_path / 'other')!r}, a stored memory. Name another one."
    assert save == f"chat: /save must be a new file; {got}"


def test_what_ends_an_answer_and_what_the_conversation(tessera, typed, folder, monkeypatch):
    questions = []

    def ask(self, question, *_, **__):
        questions.append(question)
        raise KeyboardInterrupt

    monkeypatch.setattr(Memory, "ask", ask)
    status, _, err = typed("one\ntwo\n", "chat", folder)
    assert (status, questions) == (0, ["one", "two"])
    assert err.count("(stopped)") == 2

    def fail(*_, **__):
        raise BrokenPipeError

    monkeypatch.setattr(Memory, "ask", fail)
    assert typed("one\ntwo\n", "chat", folder) == (0, "", ""), "nobody reads the answers any more"
    monkeypatch.setattr("tessera.memory_files.answering.answers_questions", lambda tokenizer: True)
    status, _, err = tessera("chat", folder, "--temperature", 0.5)
    assert (status, "--temperature must be left out: this model answers questions" in err) == (2, True)


def test_an_empty_text_is_named_with_its_folder(refused, folder, tmp_path):
    empty = tmp_path / "empty.txt"
    empty.touch()
    refused(f"ask: --text must hold text; got {str(empty)!r}, which is empty.", "ask", folder, "Who", "--text", empty)


@pytest.mark.parametrize("planted", [(), ("--plant", "A king.")])
def test_an_empty_file_of_a_folder_is_left_out_and_named(tessera, typed, folder, tmp_path, planted):
    """As one document, as several, by `memorize` and by `/read`: the rest is read, and the exit status says so."""
    texts = tmp_path / "texts"
    texts.mkdir()
    for name, text in (("a", "A king."), ("b", ""), ("c", "A queen.")):
        (texts / f"{name}.txt").write_text(text)
    commands = {
        "25 tokens" if planted else "15 tokens": ("ask", folder, "Who", "--text", texts, *planted),
        "15 tokens in 2 documents": ("memorize", folder, texts, "--out", tmp_path / "memory"),
        "c.txt: 8 bytes": ("chat", folder),
    }
    for read, command in commands.items():
        status, out, err = typed(f"/read {texts}\n", *command)
        assert status == 0, err
        assert read in out + err
        assert err.count(f"data source {str(texts)!r}: left out, as empty: b.txt\n") == 1
    assert Memory().load(tmp_path / "memory").names == ["a.txt", "c.txt"]
    for name in "ac":
        (texts / f"{name}.txt").write_text("")
    status, out, err = tessera("ask", folder, "Who", "--text", texts)
    assert (status, out, err.count("must hold text")) == (2, "", 1), err
