"""Fixtures: books short enough for what only has to run (conftest.py files import `short_books` and `beginnings`)."""

import gzip

import pytest

from tessera.data import sources
from tessera.data.text_files import text_of_file
from tessera.memory_files import certainty
from tessera.papers.babilong.sample import books_of
from tessera.papers.babilong.vocabulary import sentence_tokens, vocabulary_of

SHORT = 40_000  # characters of each book


@pytest.fixture(scope="session")
def beginnings(tmp_path_factory):
    """Folders of the bundled books' beginnings, under the names of the bundled texts."""
    folders = {}
    for name, books in sources.BUNDLED.items():
        folders[name] = tmp_path_factory.mktemp("books") / name
        folders[name].mkdir()
        for book in books.glob("*.txt*"):
            text = next(text_of_file(book, 4 * SHORT))[:SHORT]
            data = text.encode()
            (folders[name] / book.name).write_bytes(gzip.compress(data) if book.suffix == ".gz" else data)
    return folders


@pytest.fixture(scope="module")
def short_books(beginnings):
    """What `stories` and `novels` name are the beginnings: to tokenise whole books takes longer than the rest.

    And how sure answers are is measured on fewer of their texts.
    """
    kept = (books_of, vocabulary_of, sentence_tokens)  # under names, which mean other books inside this fixture
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certainty, "CONTEXTS", 16)
        patch.setattr(sources, "BUNDLED", beginnings)
        patch.setattr(sources, "STORIES", beginnings["stories"])
        for function in kept:
            function.cache_clear()
        yield
    for function in kept:
        function.cache_clear()
