"""`tessera inspect` on a trained model."""

from tessera.cli.main import main
from tessera.data.tokenizers import byte_tokenizer
from tessera.inspection import Trace
from tests.inspection.pages import data_of
from tests.memory_files.models import make


def titles_of(page):
    return [trace["title"] for trace in data_of(page.read_text(encoding="utf-8"))]


def test_a_stored_memory(tessera, wrapped, corpus, tmp_path):
    memory, page, saved = tmp_path / "m.safetensors", tmp_path / "page.html", tmp_path / "trace.safetensors"
    (tmp_path / "short.txt").write_text("Once upon a time there was a king.")
    assert tessera("memorize", wrapped, tmp_path / "short.txt", "--out", memory)[0] == 0
    assert tessera("inspect", wrapped, "--memory", memory, "-o", page, "--save", saved)[0] == 0
    trace = Trace.load(saved)
    assert (trace.stored.tokens_read, trace.stored.segments_read, trace.tokens) == (34, 5, ())
    arguments = ["--text", corpus, "--tokens", 20, "--without-pairs", 3]
    assert tessera("inspect", wrapped, "--memory", memory, *arguments, "-o", page, "--save", saved)[0] == 0
    trace = Trace.load(saved)
    assert trace.stored.tokens_read == 34
    assert trace.memory(0, "contextual").pair_loss_change.shape == (1, 20)


def test_a_memory_that_cannot_be_shown_is_refused(refused, run_folder, corpus, tmp_path):
    """What was said named a function of Python, and not what is missing."""
    lstm, memory, page = tmp_path / "lstm", tmp_path / "memory", tmp_path / "page.html"
    make("lstm").save_pretrained(lstm)
    byte_tokenizer().save_pretrained(lstm)
    for folder, arguments, message in (
        (run_folder, (), "inspect: --text must be given with the memory of a memory_mosaic, which shows what a text"),
        (run_folder, (), "recalls from it; got none. tessera memories info lists its documents."),
        (lstm, (), "inspect: --memory must be of a v1, v2, linear, ARMT, RMT or PRMT model; got one of lstm."),
        (
            lstm,
            ("--text", corpus),
            "inspect: --memory must be of a v1, v2, linear, ARMT, RMT or PRMT model; got one of lstm.",
        ),
    ):
        assert main(["memorize", str(folder), str(corpus), "--out", str(memory), "--overwrite"]) == 0
        refused(message, "inspect", folder, "--memory", memory, *arguments, "-o", page)
    assert not page.exists()


def test_several_texts(tessera, run_folder, corpus, tmp_path):
    other, page = tmp_path / "other.txt", tmp_path / "page.html"
    other.write_text("A king had a daughter.")
    arguments = ["--text", corpus, other, "--tokens", 20, "--without", "none", "-o", page]
    assert tessera("inspect", run_folder, *arguments)[0] == 0
    assert titles_of(page) == [f"{run_folder}, {corpus.name}", f"{run_folder}, other.txt"]
    status, _, err = tessera("inspect", "nowhere", run_folder, *arguments)
    assert (status, err.count("\n"), len(titles_of(page))) == (2, 1, 2), "one that is refused does not lose the others"
    status, out, err = tessera("inspect", "nowhere", "neither", *arguments)
    assert (status, out, err.count("\n")) == (2, "", 2)


def test_page_and_trace(done, run_folder, corpus, tmp_path):
    page, saved = tmp_path / "page.html", tmp_path / "trace.safetensors"
    out, _ = done("inspect", run_folder, "--text", corpus, "-o", page, "--tokens", 30, "--last", 5, "--save", saved)
    assert "open it in a browser" in out
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    trace = Trace.load(saved)
    assert "".join(trace.tokens) == "Once upon a time there was a k"
    assert trace.queries.tolist() == [25, 26, 27, 28, 29]
    assert trace.memories[0].loss_change[1:].abs().sum() > 0


def test_mistakes(refused, run_folder, corpus, tmp_path):
    page = tmp_path / "page.html"
    for arguments, message in (
        (["--text", tmp_path / "none.txt"], "inspect: --text must be a file; got"),
        (["--text", corpus, "--share", "2"], "tessera inspect: --share must lie in"),
        (["--text", corpus, "--without-pairs", "-1"], "tessera inspect: --without-pairs must be at least 0"),
        (["--text", corpus, "--tokens", "1"], "at least two tokens"),
        ([], "--text or --memory must be given"),
        (["--memory", tmp_path / "none"], "--memory must be a file"),
        (["--text", corpus, corpus, "--save", tmp_path / "x"], "one model and one text"),
        (["--text", corpus, "--save", page], "--save must be another file than --output"),
        (["--text", corpus, "--tokens", "9", "--without-pairs", "9"], "pair must be stored by contextual of layer 0"),
    ):
        refused(message, "inspect", run_folder, *arguments, "-o", page)
    assert not page.exists()


def test_no_file_of_the_users_is_replaced(tessera, refused, run_folder, tmp_path):
    text, page, saved = tmp_path / "text.txt", tmp_path / "page.html", tmp_path / "trace"
    text.write_text("A king had a daughter.")
    for outputs, option in ((("-o", text), "--output"), (("-o", page, "--save", text), "--save")):
        refused(f"inspect: {option} must be a new file or", "inspect", run_folder, "--text", text, *outputs)
        assert not page.exists()
    assert text.read_text() == "A king had a daughter."
    for _ in range(2):  # its own files are
        assert tessera("inspect", run_folder, "--text", text, "-o", page, "--save", saved)[0] == 0
