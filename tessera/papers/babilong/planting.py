"""A text with sentences planted in it, read piece by piece."""

from collections.abc import Sequence
from random import Random

from tessera.generation.memory import Readable
from tessera.papers.babilong.noise import SENTENCE_END


class PlantedText:
    """Reads as `file` does, with `facts` in their order between its sentences, at random places.

    Attributes:
        places: where each fact was planted so far, as a share of the text.
    """

    def __init__(self, file: Readable, size: int, facts: Sequence[str], seed: int = 0) -> None:
        """`size`: bytes of the text. The same seed gives the same places."""
        random = Random(seed)
        self.file, self.size = file, max(1, size)
        self.position = 0
        self.places: list[float] = []
        self._pending = list(zip(sorted(random.random() for _ in facts), facts))

    def read(self, count: int) -> str:
        """About `count` characters; "" at the end."""
        piece = self.file.read(count)
        if not piece:
            rest = [fact for _, fact in self._pending]
            self.places += [1.0] * len(rest)
            self._pending = []
            return "".join(f" {fact}" for fact in rest)
        data = piece.encode()
        parts, begin = [], 0
        while self._pending and self._pending[0][0] * self.size <= self.position + len(data):
            place, fact = self._pending[0]
            before = data[: max(0, int(place * self.size) - self.position)].decode(errors="ignore")
            end = SENTENCE_END.search(piece, max(begin, len(before)))
            if end is None:  # the sentence goes on in the next piece
                break
            parts += [piece[begin : end.end()], f"{fact} "]
            begin = end.end()
            self.places.append((self.position + len(piece[:begin].encode())) / self.size)
            del self._pending[0]
        self.position += len(data)
        return "".join([*parts, piece[begin:]])
