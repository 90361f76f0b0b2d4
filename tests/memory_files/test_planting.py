"""Sentences that are planted between those of a text: where they stand, and that nothing else changes."""

import pytest

from tessera.data.encoding import PIECE
from tessera.memory_files.planting import PlantedText


def pieces_of(text):
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]


def test_a_text_with_planted_sentences(tmp_path):
    text = "One went. Two came. Three stayed. " * 3000  # several pieces
    assert len(text) > PIECE
    facts = ["Mary went to the kitchen.", "Mary went to the garden.", "John took the milk."]

    def planted(seed):
        stream = PlantedText(pieces_of(text), len(text), facts, seed)
        return "".join(stream), stream.places

    read, places = planted(0)
    assert len(read) == len(text) + sum(len(fact) + 1 for fact in facts)
    positions = [read.index(fact) for fact in facts]
    assert positions == sorted(positions)
    assert all(read[place - 2] == "." for place in positions), "between sentences"
    for fact in facts:
        read = read.replace(f"{fact} ", "")
    assert read == text
    assert places == pytest.approx([place / len(text) for place in positions], abs=0.01)
    assert places != planted(1)[1]
    short = PlantedText(["no end of a sentence"], 20, facts)
    assert "".join(short) == "no end of a sentence " + " ".join(facts)


@pytest.mark.parametrize(
    ("text", "ends"),
    [("Один пошёл. Два пришли. Три остались. ", "."), ("国王住在这里。「他有两个儿子！？」王后吃了蛋糕。", "。」")],
    ids=["Cyrillic", "Chinese"],
)
def test_places_are_ends_of_sentences_and_shares_of_a_text_in_any_script(text, ends):
    """Cyrillic takes two bytes a letter: half of the bytes are half of the letters, not all of them."""
    text, facts = text * 3000, ["A.", "B.", "C."]
    stream = PlantedText(pieces_of(text), len(text.encode()), facts, 0)
    read = "".join(stream)
    assert all(read[: read.index(fact)].rstrip()[-1] in ends for fact in facts)
    assert [read.index(fact) / len(read) for fact in facts] == pytest.approx(stream.places, abs=0.01)
    ascii_stream = PlantedText(pieces_of("One went. Two came. " * 3000), 20 * 3000, facts, 0)
    assert "".join(ascii_stream)
    assert stream.places == pytest.approx(ascii_stream.places, abs=0.01)
