"""Facts planted in a text, asked of a small mosaic that has learned to recall such: which sentence is cited.

`QUESTIONS=1000 pytest -m slow -s` on this file prints what `docs/how-to/memory-files.md` says.
"""

import os
import random

import pytest
import torch

import tessera
from tessera.data.sources import STORIES
from tessera.data.tokenizers import train_bpe
from tessera.generation.sampling import Sampling
from tessera.memory_files import Memory

QUESTIONS, STEPS, LENGTH, IGNORED = int(os.environ.get("QUESTIONS", "60")), 400, 192, -100


class Facts:
    """Sentences of a book and facts, `The code of NAME is WORD.`, whose names and words are single tokens."""

    def __init__(self) -> None:
        text = (STORIES / "grimms_fairy_tales_2591.txt").read_text()[3000:200_000].replace("\n", " ")
        self.sentences = [part.strip() + "." for part in text.split(".") if 20 < len(part) < 120]
        self.tokenizer, self.chance = train_bpe([text], 800), random.Random(0)
        words = [word for word in map(self.decode, range(258, 800)) if word[1:].isalpha() and len(word) > 4]
        single = [word.strip() for word in words if word[0] == " " and len(self.encode(f" is{word}.")) == 3]
        self.names, self.words = single[::2], single[1::2]

    def decode(self, token: int) -> str:
        return self.tokenizer.decode([token])

    def encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def text(self, facts: int, others: int) -> tuple[dict[str, str], str]:
        """What is planted, and the text."""
        planted = {name: self.chance.choice(self.words) for name in self.chance.sample(self.names, facts)}
        parts = [f"The code of {name} is {word}." for name, word in planted.items()]
        parts += self.chance.sample(self.sentences, others)
        self.chance.shuffle(parts)
        return planted, " ".join(parts)

    def row(self) -> tuple[list[int], list[int]]:
        """A text with three questions behind it, and the labels of their answers."""
        planted, text = self.text(4, 3)
        ids = self.encode(text)[: LENGTH - 60]
        labels = [IGNORED] * len(ids)
        for name in self.chance.sample(list(planted), 3):
            question, answer = self.encode(f" The code of {name} is"), self.encode(f" {planted[name]}")
            ids, labels = ids + question + answer, labels + [IGNORED] * len(question) + answer
        room = LENGTH - len(ids)
        return (ids + [0] * room)[:LENGTH], (labels + [IGNORED] * room)[:LENGTH]


def trained(facts: Facts):
    torch.manual_seed(0)
    sizes = {"vocab_size": 800, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "num_persistent_slots": 32}
    model = tessera.MemoryMosaicForCausalLM(tessera.MemoryMosaicConfig(**sizes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    for step in range(STEPS):
        ids, labels = (torch.tensor(rows) for rows in zip(*(facts.row() for _ in range(16))))
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1, (step + 1) / 50)
        loss = model(ids, labels=labels).loss
        if loss < 0.03:
            break
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@pytest.mark.slow
def test_the_first_citation_is_the_planted_sentence():
    facts = Facts()
    model, one_token = trained(facts), Sampling(1, 0.0)
    right = cited = missed = alarms = 0
    for number in range(1, QUESTIONS + 1):
        planted, text = facts.text(6, 12)
        memory = Memory(model, facts.tokenizer).read(text, "text")
        name = facts.chance.choice(list(planted))
        answer = memory.ask(f" The code of {name} is", one_token, cite=1)
        right += answer.text.strip() == planted[name]
        cited += answer.citations[0].text == f"The code of {name} is {planted[name]}."
        missed += not answer.is_in_text
        absent = facts.chance.choice([other for other in facts.names if other not in planted])
        alarms += memory.ask(f" The code of {absent} is", one_token, cite=1).is_in_text
        if number % 100 == 0 or number == QUESTIONS:
            counts = {"right": right, "first citation": cited, "missed": missed, "absent, yet in the text": alarms}
            print(f"of {number} questions: {counts}", flush=True)
    assert right >= 0.95 * QUESTIONS
    assert cited >= 0.99 * QUESTIONS
