"""`tessera memorize` and `tessera ask`: a text read once, questions asked later."""

import io
import json
import os
import re

import pytest
import torch
from safetensors.torch import save_file

from tessera.data.sources import text_source
from tessera.data.store import open_or_build
from tessera.data.text_files import text_of_files
from tessera.inspection.text import read_tokens
from tessera.memory_files import Memory
from tessera.memory_files.storing import mark_of
from tessera.models.armt import ARMTState
from tessera.models.recurrence import read_stream
from tessera.models.saving.loading import load_model, load_tokenizer
from tessera.models.saving.state_file import KIND
from tests import refusals

TEXT = "Once upon a time there was a king with a crown."


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def memory(done, wrapped, text, tmp_path):
    """What the small model has read of the text."""
    done("memorize", wrapped, text, "--out", tmp_path / "memory")
    return tmp_path / "memory"


def test_a_text_is_read_in_parts_and_asked(tessera, done, wrapped, text, tmp_path):
    (tmp_path / "one.txt").write_text(TEXT[:24])  # bytes are tokens here, segments have 8
    (tmp_path / "two.txt").write_text(TEXT[24:])
    out, _ = done("memorize", wrapped, text, "--out", tmp_path / "whole")
    assert f"{len(TEXT)} tokens in 6 segments" in out
    tessera("memorize", wrapped, tmp_path / "one.txt", "--out", tmp_path / "one")
    tessera("memorize", wrapped, tmp_path / "two.txt", "--out", tmp_path / "two", "--memory", tmp_path / "one")
    at_once, parts = ARMTState.load(tmp_path / "whole"), ARMTState.load(tmp_path / "two")
    for name, tensor in at_once.tensors().items():
        torch.testing.assert_close(parts.tensors()[name], tensor)
    out, _ = done("ask", wrapped, "Who was", "--memory", tmp_path / "whole", "--max-new-tokens", 6)
    model, ids = load_model(wrapped), torch.tensor([list(b"Who was")])
    expected = model.generate(ids, memory_state=at_once, max_new_tokens=6, do_sample=False, attention_mask=ids > 0)
    assert out == load_tokenizer(wrapped).decode(expected[0, 7:], skip_special_tokens=True) + "\n"


def test_mistakes_are_one_line(done, refused, wrapped, run_folder, text, memory, tmp_path):
    new, stored = tmp_path / "new", memory.read_bytes()
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\xff")
    for arguments, message in [
        (("memorize", wrapped, tmp_path / "none.txt", "--out", new), "does not exist"),
        (("memorize", wrapped, tmp_path / "folder", "--out", new), "which holds no text file"),
        (("memorize", wrapped, tmp_path / "pipe", "--out", new), "which is no plain file; pipe it in with memorize -"),
        (("ask", wrapped, "Who?", "--text", tmp_path / "pipe"), "which is no plain file; pipe it in with memorize -"),
        (("ask", wrapped, "Who?", "--text", text, "--page", new, "--output", new), "be another file than --output"),
        (("memories", "ls", tmp_path, "--out", new), "memories: --out must be left out with ls"),
        (("memories", "info", memory, "--model", wrapped), "memories: --model must be left out with info"),
        (("memorize", wrapped, text, "--out", tmp_path / "pipe"), "which exists and is no stored memory"),
        (("memorize", wrapped, text, "--out", new, "--memory", tmp_path / "pipe"), "which is no plain file"),
        (("ask", wrapped, "Who?", "--text", tmp_path / "empty.txt"), "ask: --text must hold text; got 'empty.txt'"),
        (("memorize", wrapped, tmp_path / "bytes.txt", "--out", new), "text must be UTF-8; this is UTF-16"),
        (("ask", run_folder, "Who?", "--memory", memory), "--memory must be a stored memory_mosaic memory; got armt"),
        (("ask", wrapped, "Who?", "--memory", memory, "--cite"), "must keep pairs (v1, v2); got armt, whose state"),
        (("memorize", wrapped, tmp_path / "empty.txt", "--out", new), "empty.txt', which is empty."),
        (("memorize", wrapped, text, "--out", text), "got '{text}', which exists and is no stored memory"),
        (("memorize", wrapped, text, "--out", text, "--overwrite"), "which exists and is no stored memory"),
        (
            ("memorize", wrapped, text, "--out", memory),
            "a stored memory. Use --append to go on behind what it holds, or --overwrite.",
        ),
        (("ask", wrapped, "--memory", memory), "QUESTION must be given, or --interactive, and not both"),
        (("ask", wrapped, "Who?", "--memory", memory, "--interactive"), "and not both; got 1 questions"),
        (("ask", wrapped, "Who?", "--memory", text), "must be a stored memory"),
        (("ask", wrapped, "", "--text", tmp_path / "missing.txt"), "QUESTION must have at least one token; got ''"),
        (("ask", wrapped, "Who?"), "--memory or --text must be given, and not both; got neither"),
        (("ask", wrapped, "Who?", "--memory", memory, "--text", text), "not both; got memory and text"),
        (("ask", wrapped, "Who?", "--memory", memory, "--plant", "A king."), "--plant must come with --text"),
        (("ask", wrapped, "Who?", "--text", text, "--plant", ""), "--plant must hold a sentence; got ''"),
        (("ask", wrapped, "Who?", "--text", tmp_path / "none.txt"), "or a bundled book ("),
        (("ask", wrapped, "Who?", "--text", tmp_path / "bytes.txt"), "bytes.txt: text must be UTF-8"),
        (("ask", wrapped, "Who?", "--memory", memory, "--max-new-tokens", 0), "at least 1"),
        (("ask", wrapped, "Who?", "--samples", text), "--samples must come without questions"),
        (("ask", wrapped, "--samples", text), "text.txt: must be a JSON list or JSON lines of samples"),
        (("ask", wrapped, "--samples", tmp_path / "none.json"), "--samples must be a file; got"),
        (("ask", wrapped, "--samples", tmp_path / "empty.txt"), "must hold at least one sample; got none"),
    ]:
        refused(message.format(text=text), *arguments)
    assert text.read_text() == TEXT
    assert memory.read_bytes() == stored
    assert not new.exists()
    text.write_text("a king and a queen")
    done("memorize", wrapped, text, "--out", memory, "--overwrite")
    assert memory.read_bytes() != stored


def test_a_file_that_is_refused_does_not_lose_the_others(tessera, wrapped, tmp_path):
    """What was read is kept, and what comes behind is read: a file may be the last of hours."""
    for name, text in (("a", b"a king"), ("b", b"\xe4 q\xfceen"), ("c", b"a queen"), ("d", b"%PDF")):
        (tmp_path / name).write_bytes(text)
    status, out, err = tessera("memorize", wrapped, *(tmp_path / name for name in "abc"), "--out", tmp_path / "some")
    assert (status, "13 tokens" in out) == (2, True)
    assert (err.count("\n"), "b: text must be UTF-8" in err) == (1, True)
    status, out, err = tessera("memorize", wrapped, tmp_path / "b", tmp_path / "d", "--out", tmp_path / "none")
    assert (status, out, err.count("\n"), (tmp_path / "none").exists()) == (2, "", 2, False)
    described = tessera("memories", "info", tmp_path / "some")[1]
    assert [line.split()[0] for line in described.splitlines()[-2:]] == ["a:", "c:"]
    command = ("ask", wrapped, "Who?", "", "Where?", "--memory", tmp_path / "some", "--max-new-tokens", 1)
    status, out, err = tessera(*command, "--output", tmp_path / "answers")
    assert (status, err.count("\n"), len((tmp_path / "answers").read_text().splitlines())) == (2, 1, 2)
    rows = [{"input": "a king", "question": "Who?", "target": "king"}] * 2
    (tmp_path / "two.json").write_text(json.dumps(rows))
    stored, files = tmp_path / "rows.jsonl", (tmp_path / "two.json", tmp_path / "a", tmp_path / "two.json")
    status, out, err = tessera("ask", wrapped, "--samples", *files, "--output", stored, "--max-new-tokens", 1)
    assert (status, out.count("2 samples of two.json"), len(stored.read_text().splitlines())) == (2, 2, 4)
    assert "a: must be a JSON list or JSON lines of samples; got in line 1: Expecting value." in err


def test_a_document_that_is_there_already_is_said_and_changes_nothing(tessera, refused, run_folder, tmp_path):
    """`--append` twice kept two copies of one document."""
    text, out = tmp_path / "a.txt", tmp_path / "memory"
    text.write_text("a king")
    append = ("memorize", run_folder, text, "--out", out, "--append")
    assert tessera(*append)[0] == 0
    before = mark_of(out)
    status, said, err = tessera(*append)
    assert (status, mark_of(out), "6 tokens in 1 document," in said) == (0, before, True)
    assert err == "memorize: 'a.txt' is there already, with the same text; it is kept once\n"
    text.write_text("a queen")
    refused("the name of a document must be new; got 'a.txt', that of another text. Forget it first", *append)
    assert mark_of(out) == before
    (tmp_path / "king.txt").write_text("a king")
    copy = ("memorize", run_folder, "--out", tmp_path / "copy", "--memory", out)
    assert tessera(*copy, tmp_path / "king.txt")[0] == 0
    assert (tmp_path / "copy").read_bytes() == out.read_bytes()


def test_of_two_memories_to_begin_with_none_is_lost(refused, wrapped, text, memory, tmp_path):
    """With --memory --append did not go on from the file of --out, and stored the other one's documents over it."""
    (tmp_path / "queen.txt").write_text("a queen")
    stored = tmp_path / "queens"
    stored.write_bytes(memory.read_bytes())
    both = ("--memory", memory, "--append")
    refused("not allowed with argument", "memorize", wrapped, tmp_path / "queen.txt", "--out", stored, *both)
    assert stored.read_bytes() == memory.read_bytes()


def test_the_same_file_has_the_same_tokens_in_every_verb(tessera, wrapped, tmp_path):
    """Marks of other systems at its beginning and its line ends: in training, in memorize, in ask and in inspect."""
    text = tmp_path / "text.txt"
    text.write_bytes(b"\xef\xbb\xbf" + b"a king\r\nand  a\tqueen\r\n\r\n" * 10)
    tokenizer = load_tokenizer(wrapped)
    store = open_or_build(text_source(str(text)), tokenizer, tmp_path / "cache", end_token=False)
    assert bytes(store.tokens.tolist()) == b"a king\nand  a\tqueen\n\n" * 10
    assert tessera("memorize", wrapped, text, "--out", tmp_path / "memory")[0] == 0
    model = load_model(wrapped)
    expected = read_stream(model, store.tokens.tolist(), precision="auto").tensors()
    for name, tensor in ARMTState.load(tmp_path / "memory").tensors().items():
        assert torch.equal(tensor, expected[name])
    of_text = tessera("ask", wrapped, "Who?", "--text", text)[1]
    assert of_text == tessera("ask", wrapped, "Who?", "--memory", tmp_path / "memory")[1]
    assert read_tokens(model, tokenizer, text, 10**6).tolist() == [store.tokens.tolist()]


def test_a_memory_of_the_first_version_is_refused(refused, wrapped, tmp_path):
    save_file({"tokens_read": torch.zeros(1)}, tmp_path / "memory", {KIND: ARMTState.kind})
    refused("of version 1. Read the text again.", "ask", wrapped, "Who?", "--memory", tmp_path / "memory")


def test_a_memory_of_another_model_is_refused(refused, wrapped, text, memory, tmp_path):
    """Of other settings: the sizes fit, and the contents mean nothing. Weights and tokens: tests/memory_files."""
    other, model = tmp_path / "other", load_model(wrapped)
    model.config.segment_size = 9
    model.save_pretrained(other)
    load_tokenizer(wrapped).save_pretrained(other)
    for verb in (
        ("ask", other, "Who?", "--memory", memory),
        ("memorize", other, text, "--memory", memory, "--out", tmp_path / "new"),
        ("inspect", other, "--memory", memory, "-o", tmp_path / "page.html"),
    ):
        refused("--memory must be one that this model read", *verb)


def test_a_memory_that_is_no_number_is_not_stored(refused, wrapped, text, tmp_path, monkeypatch):
    model = load_model(wrapped)
    broken = model.empty_memory(1).map(lambda tensor: tensor * float("nan") if tensor.is_floating_point() else tensor)
    monkeypatch.setattr("tessera.models.carried_state.read_stream", lambda *_, **__: broken)
    refused("the memory must be finite", "memorize", wrapped, text, "--out", tmp_path / "memory")
    assert not (tmp_path / "memory").exists()


def test_questions_share_a_memory_and_no_answers(tessera, typed, done, wrapped, memory):
    options = ("--memory", memory, "--max-new-tokens", 4)
    alone = [tessera("ask", wrapped, question, *options)[1] for question in ("Who was", "And then")]
    out, _ = done("ask", wrapped, "Who was", "And then", *options)
    assert out == f"> Who was\n{alone[0]}> And then\n{alone[1]}"
    status, out, _ = typed("Who was\n\nAnd then", "ask", wrapped, "--interactive", *options)
    assert (status, out) == (0, "".join(alone))
    sampled = [tessera("ask", wrapped, "Who was", *options, "--temperature", 3, "--seed", n)[1] for n in (0, 0, 1, 2)]
    assert sampled[0] == sampled[1]
    assert len(set(sampled)) > 1


def test_several_texts_are_read_in_turn(tessera, done, refused, wrapped, tmp_path):
    first, second, both, empty = (tmp_path / f"{name}.txt" for name in ("first", "second", "both", "no"))
    for path, text in (
        (first, "a king had"),
        (second, "three sons.\n"),
        (both, "a king had\n\nthree sons.\n"),
        (empty, ""),
    ):
        path.write_text(text)
    for files in ([first, second], [empty, first, second], [first, empty, second, empty]):
        assert "".join(text_of_files(files, 3)) == both.read_text()
    out, err = done("ask", wrapped, "Who?", "--text", first, "--text", second)
    assert err.startswith("first.txt, second.txt: ")
    _, same, read = tessera("ask", wrapped, "Who?", "--text", both)
    assert (out, err.split(": ")[1]) == (same, read.split(": ")[1])
    assert tessera("ask", wrapped, "Who?", "--text", first)[2].split(": ")[1] != read.split(": ")[1]
    assert tessera("ask", wrapped, "Who?", "--text", empty, "--text", empty)[0] == 2
    second.write_bytes(b"\xff")
    refused("second.txt", "ask", wrapped, "Who?", "--text", first, "--text", second)


def test_documents_are_read_in_the_order_in_which_they_are_named(typed, done, wrapped, text, tmp_path):
    """Standard input was read behind the files, wherever it was named; the order decides what most models remember."""
    typed("three sons", "memorize", wrapped, "-", text, "--out", tmp_path / "memory")
    names = re.findall("^  (.*):", done("memories", "info", tmp_path / "memory")[0], re.M)
    assert names == ["standard input", "text.txt"]


def test_texts_from_standard_input_are_told_apart(typed, wrapped, tmp_path):
    """Of a second one the user was to choose another name, which no option gives."""
    out = tmp_path / "memory"
    for text in ("a king", "a queen", "a son", "a queen"):
        status, _, err = typed(text, "memorize", wrapped, "-", "--out", out, "--append")
        assert status == 0, err
    assert "is there already, as 'standard input 2', with the same text" in err
    assert Memory().load(out).names == ["standard input", "standard input 2", "standard input 3"]


def test_standard_input_that_is_no_text(tessera, refused, wrapped, text, tmp_path, monkeypatch):
    """Also where the locale is plain ASCII, with which Python lets any byte through."""
    memorize = ("memorize", wrapped, "-", "--out", tmp_path / "memory")
    ask = ("ask", wrapped, "--text", text, "--interactive")
    for arguments in (memorize, ask):
        stream = io.TextIOWrapper(io.BytesIO(b"\xff\xfe\n"), encoding="ascii", errors="surrogateescape")
        monkeypatch.setattr("sys.stdin", stream)
        status, _, err = tessera(*arguments)
        assert (status, "standard input must be text in UTF-8" in err) == (2, True), err
        monkeypatch.setattr("sys.stdin", None)  # what Python has for a closed one
        refused("standard input must be open", *arguments)


def test_text_with_nul_is_refused_in_every_verb(tessera, refused, run_folder, corpus, tmp_path, monkeypatch):
    """UTF-16 without a mark was read as text with a NUL behind each letter."""
    text, out = tmp_path / "wide.txt", tmp_path / "out"
    text.write_text("a king and a queen " * 10, encoding="utf-16-le")
    said = f"{text}: text must be UTF-8 without NUL; byte 1 is NUL, as in UTF-16LE. If it is text, convert it by iconv"
    for arguments in (
        ("memorize", run_folder, text, "--out", out),
        ("ask", run_folder, "Who?", "--text", text),
        ("inspect", run_folder, "--text", text, "--output", out),
        ("eval", run_folder, "--data", text),
        ("train", "tiny", f"data.source={text}", "--output", out),
        ("train", "tiny", f"data.source={text}", "tokenizer.type=bpe", "tokenizer.vocab_size=300", "--output", out),
        ("generate", run_folder, "--prompts", text),
    ):
        refused(said, *arguments)
    chat, piped = ("chat", run_folder), "standard input: the text must be without NUL; got one (character 1)"
    for arguments, typed, what in (
        (("memorize", run_folder, "-", "--out", out), "wide", f"memorize: {piped}"),
        (("ask", run_folder, "--text", corpus, "--interactive"), "wide", f"ask: {piped}"),
        (chat, "wide", f"chat: {piped}"),
        (chat, f"/read {text}\n", said),
    ):
        typed = typed.encode("utf-16-le") if typed == "wide" else typed.encode()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(typed), encoding="utf-8"))
        assert what in tessera(*arguments)[2]
    memory = Memory(load_model(run_folder), load_tokenizer(run_folder)).read("a king")
    for use in (memory.read, memory.ask, lambda text: memory.read([text], "pieces")):
        refusals.refused("the text must be without NUL; got one .character 1.. If it is UTF-16,", use, "a\0")
    assert memory.names == ["text 1"]
    assert not out.exists()


def test_citations_of_beams_are_refused_before_a_text_is_read(refused, run_folder, corpus):
    for option in ("--cite", "--page=page.html"):
        refused("--num-beams must be 1", "ask", run_folder, "a king", "--text", corpus, option, "--num-beams", 2)


@pytest.mark.parametrize("is_there", [True, False])
def test_of_two_processes_that_store_into_one_file_neither_loses_its_work(
    tessera, refused, run_folder, tmp_path, monkeypatch, is_there
):
    """The second finds what the first has stored while it read itself."""
    file, texts = tmp_path / "m.st", [tmp_path / f"{name}.txt" for name in ("zero", "one", "two")]
    for number, path in enumerate(texts):
        path.write_text("a king " * (number + 1))
    if is_there:
        tessera("memorize", run_folder, texts[0], "--out", file)
    append = ["--append"] if is_there else []
    read, others = Memory.read, []

    def while_another(self, *arguments, **options):
        read(self, *arguments, **options)
        if not others:
            others.append(0)
            others[0] = tessera("memorize", run_folder, texts[1], "--out", file, *append)[0]

    monkeypatch.setattr(Memory, "read", while_another)
    refused("another process stored meanwhile", "memorize", run_folder, texts[2], "--out", file, *append)
    assert others == [0]
    before = ["zero.txt"] if is_there else []
    assert Memory().load(file).names == [*before, "one.txt"]
    assert Memory().load(tmp_path / "m-2.st").names == [*before, "two.txt"]
    assert tessera("memories", "forget", file, "one.txt")[0] == (0 if is_there else 2)  # in place; the last stays


def test_a_chat_stores_into_its_file_again_but_over_no_other(tessera, typed, run_folder, tmp_path, monkeypatch):
    file, texts = tmp_path / "m.st", [tmp_path / f"{name}.txt" for name in ("zero", "one", "two")]
    for path in texts:
        path.write_text(f"a king {path.stem} ")  # one text is kept once
    tessera("memorize", run_folder, texts[0], "--out", file)
    save, saves = Memory.save, []

    def before_another(self, path, *arguments):
        saves.append(path)
        save(self, path, *arguments)
        if len(saves) == 2:
            save(Memory().load(file).forget("zero.txt"), file)

    monkeypatch.setattr(Memory, "save", before_another)
    lines = ["/save", f"/read {texts[1]}", "/save", f"/read {texts[2]}", "/save"]
    status, out, err = typed("\n".join(lines), "chat", run_folder, "--memory", file)
    assert (status, len(saves), out.count("stored\n")) == (0, 3, 2)
    assert "another process stored meanwhile" in err
    assert Memory().load(file).names == ["one.txt"]
    assert Memory().load(tmp_path / "m-2.st").names == ["zero.txt", "one.txt", "two.txt"]
