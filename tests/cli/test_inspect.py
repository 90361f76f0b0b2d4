"""`tessera inspect` on a trained model."""

from tessera.inspection import Trace


def test_page_and_trace(tessera, run_folder, corpus, tmp_path):
    page, saved = tmp_path / "page.html", tmp_path / "trace.safetensors"
    status, out, _ = tessera(
        "inspect", run_folder, "--text", corpus, "-o", page, "--tokens", 30, "--last", 5, "--save", saved
    )
    assert status == 0
    assert "open it in a browser" in out
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    trace = Trace.load(saved)
    assert "".join(trace.tokens) == "Once upon a time there was a k"
    assert trace.queries.tolist() == [25, 26, 27, 28, 29]
    assert trace.memories[0].loss_change[1:].abs().sum() > 0


def test_mistakes(tessera, run_folder, corpus, tmp_path):
    page = tmp_path / "page.html"
    for arguments, message in (
        (["--text", tmp_path / "none.txt"], "cannot be read"),
        (["--text", corpus, "--share", "2"], "share must lie in"),
        (["--text", corpus, "--tokens", "1"], "at least two tokens"),
    ):
        status, _, error = tessera("inspect", run_folder, *arguments, "-o", page)
        assert status == 2
        assert message in error
        assert len(error.strip().splitlines()) == 1
    assert not page.exists()
