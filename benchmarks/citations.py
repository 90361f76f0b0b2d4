"""Facts planted in books, asked of a small mosaic that has learned to recall such: which sentence does it cite?

    OMP_NUM_THREADS=1 python -m benchmarks.citations --out results/memory_files/citations.json

A mosaic of two layers is trained on the spot on texts of up to 1,024 tokens: facts, `The code of NAME is WORD.`,
between sentences of a book of fairy tales, half of which hold a name that is asked for (in a long text every name
stands in other sentences too); asked of a name of which no fact is there, it is to say `nothing`. Then only the 4
nearest pairs of each query count, so that their weights do not thin out in long texts (without training on such). It
reads long texts (2,000 short sentences of books that it did not learn from) and short ones (18 sentences of that book),
is asked of names that are there and of names that are not, and cites. --split validation is for choices.
"""

import argparse
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch

import tessera
from tessera.base.files import write_text_atomically
from tessera.data.sources import STORIES, text_files
from tessera.data.text_files import text_of_files
from tessera.data.tokenizers import train_bpe
from tessera.evaluation.provenance import provenance
from tessera.generation.sampling import Sampling
from tessera.memory_files import Memory
from tessera.models.saving.loading import load_model

VOCABULARY, IGNORED, ABSENT = 2000, -100, "nothing"
NEAREST = {"name": "knn", "base": "gaussian"}
SIZES = {"hidden_size": 64, "num_layers": 2, "num_heads": 4, "num_persistent_slots": 32}
# Texts of a batch, tokens of each, facts, questions about names that are there, about others; every other step each.
BATCHES = ((16, 192, 5, 3, 1), (3, 1024, 40, 12, 4))
SEEDS = {"validation": 1, "test": 2}


def sentences_of(text: str, longest: int = 120) -> list[str]:
    """Those of more than 20 and fewer than `longest` characters."""
    return [part.strip() + "." for part in text.replace("\n", " ").split(".") if 20 < len(part) < longest]


class Facts:
    """Names and words that are single tokens, and the sentences between which facts about them are planted."""

    def __init__(self, vocabulary: int = VOCABULARY) -> None:
        book = (STORIES / "grimms_fairy_tales_2591.txt").read_text()[3000:200_000]
        self.sentences, self.tokenizer = sentences_of(book), train_bpe([book], vocabulary)
        tokens = [self.tokenizer.decode([token]) for token in range(258, vocabulary)]
        words = [token[1:] for token in tokens if token[0] == " " and token[1:].isalpha() and len(token) > 5]
        single = [word for word in words if word != ABSENT and len(self.encode(f" is {word}.")) == 3]
        self.names, self.words = single[::2], single[1::2]
        self.of_name = {
            name: [sentence for sentence in self.sentences if name in sentence.split()] for name in self.names
        }

    def encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def planted(self, count: int, chance: Random) -> dict[str, str]:
        """Names and their words."""
        return {name: chance.choice(self.words) for name in chance.sample(self.names, count)}

    def row(self, length: int, facts: int, present: int, absent: int, chance: Random) -> tuple[list[int], list[int]]:
        """A text that fills `length` with its questions, and the labels of their answers."""
        planted = self.planted(facts, chance)
        others = chance.sample([name for name in self.names if name not in planted], absent)
        answers = [(name, planted[name]) for name in chance.sample(list(planted), present)]
        answers += [(name, ABSENT) for name in others]
        chance.shuffle(answers)
        behind = [(self.encode(question(name)), self.encode(f" {word}")) for name, word in answers]
        parts = [self.encode(f" {fact(*pair)}") for pair in planted.items()]
        room = length - sum(len(part) for part in parts) - sum(len(q) + len(a) for q, a in behind)
        while room > 0:
            sentences = chance.choice([self.sentences, self.of_name[chance.choice(answers)[0]]]) or self.sentences
            parts.append(self.encode(f" {chance.choice(sentences)}")[:room])
            room -= len(parts[-1])
        chance.shuffle(parts)
        ids = [token for part in parts for token in part]
        labels = [IGNORED] * len(ids)
        for asking, answer in behind:
            ids, labels = ids + asking + answer, labels + [IGNORED] * len(asking) + answer
        return ids, labels


def fact(name: str, word: str) -> str:
    """The sentence that says the code of a name."""
    return f"The code of {name} is {word}."


def question(name: str) -> str:
    """The beginning of that sentence, which the model goes on from."""
    return f" The code of {name} is"


def trained(facts: Facts, steps: int, batches: Sequence[tuple[int, ...]] = BATCHES) -> tessera.MemoryMosaicForCausalLM:
    """A mosaic that answers such questions; the same each time on the same machine."""
    torch.manual_seed(0)
    chance = Random(0)
    model = tessera.MemoryMosaicForCausalLM(
        tessera.MemoryMosaicConfig(vocab_size=len(facts.tokenizer), **SIZES)  # type: ignore[arg-type]
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    for step in range(steps):
        count, *shape = batches[0 if step < steps // 4 else step % len(batches)]
        ids, labels = (torch.tensor(rows) for rows in zip(*(facts.row(*shape, chance) for _ in range(count))))
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1, (step + 1) / 50, 2 * (steps - step) / steps)
        loss = model(ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    return model.eval()


def with_nearest(model: Any, count: int) -> Any:
    """The same weights; of each query's pairs only the `count` nearest are recalled."""
    config = type(model.config).from_dict(model.config.to_dict() | {"kernel": {**NEAREST, "k": count}})
    changed = type(model)(config)
    changed.load_state_dict(model.state_dict())
    return changed.eval()


def asked(memory: Memory, facts: Facts, planted: dict[str, str], names: Iterable[str]) -> list[dict[str, Any]]:
    """What came of a question about each of `names`."""
    rows = []
    for name in names:
        answer = memory.ask(question(name), Sampling(1, 0.0), cite=1)
        word, cited = planted.get(name), [citation.text for citation in answer.citations or ()]
        rows.append(
            {
                "present": word is not None,
                "right": answer.text.strip() == (word or ABSENT),
                "cited": word is not None and cited[:1] == [fact(name, word)],
                "carried": round(answer.carried, 4),
                "in_text": answer.is_in_text,
            }
        )
    return rows


def measured(
    model: Any, facts: Facts, sentences: list[str], texts: int, planted: int, others: int, each: int, chance: Random
) -> Iterator[dict[str, Any]]:
    """Counts after each text of `planted` facts and `others` sentences; asked: `each` names there, as many not."""
    rows: list[dict[str, Any]] = []
    for number in range(1, texts + 1):
        of_text = facts.planted(planted, chance)
        parts = [fact(*pair) for pair in of_text.items()] + chance.sample(sentences, others)
        chance.shuffle(parts)
        memory = Memory(model, facts.tokenizer).read([" ".join(parts)], "text")
        names = chance.sample(list(of_text), each)
        names += chance.sample([name for name in facts.names if name not in of_text], each)
        rows += asked(memory, facts, of_text, names)
        tokens = len(memory.documents[0].tokens)
        yield {"texts": number, "sentences": planted + others, "facts": planted, "tokens": tokens, **counts(rows)}


def counts(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How many answers and citations are right, of names that are there and of others."""
    present, absent = ([row for row in rows if row["present"] is there] for there in (True, False))
    return {
        "present": len(present),
        "right": sum(row["right"] for row in present),
        "first_citation_is_the_fact": sum(row["cited"] for row in present),
        "present_yet_not_in_text": sum(not row["in_text"] for row in present),
        "absent": len(absent),
        "absent_yet_in_text": sum(row["in_text"] for row in absent),
        "least_carried_of_present": sorted(row["carried"] for row in present)[:10],
        "most_carried_of_absent": sorted(row["carried"] for row in absent)[-10:],
    }


def main() -> None:
    """Train, read, ask, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=SEEDS, default="test")
    parser.add_argument("--steps", type=int, default=700, help="of the training")
    parser.add_argument("--model", type=Path, help="folder to keep the trained mosaic in, and to take it from")
    parser.add_argument("--nearest", type=int, default=4, help="pairs of a query that count")
    parser.add_argument("--short", type=int, default=1000, help="texts of 18 sentences")
    parser.add_argument("--long", type=int, default=10, help="texts of 2,000 sentences")
    parser.add_argument("--asked", type=int, default=100, help="names asked of in each long text, as many not there")
    parser.add_argument("--out", type=Path, required=True, help="a JSON file for what came out")
    arguments = parser.parse_args()
    began, facts, chance = time.perf_counter(), Facts(), Random(SEEDS[arguments.split])
    if arguments.model and arguments.model.exists():
        model = load_model(arguments.model)
    else:
        model = trained(facts, arguments.steps)
    model = with_nearest(model, arguments.nearest)
    if arguments.model and not arguments.model.exists():
        model.save_pretrained(arguments.model)
        facts.tokenizer.save_pretrained(arguments.model)
    unseen = sentences_of("".join(text_of_files(text_files("test_books"))), 60)
    record: dict[str, Any] = {"split": arguments.split, "names": len(facts.names), "nearest": arguments.nearest}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    settings = {
        "long": (unseen, arguments.long, 100, 1900, arguments.asked, chance),
        "short": (facts.sentences, arguments.short, 6, 12, 1, chance),
    }
    for name, setting in settings.items():
        for row in measured(model, facts, *setting):
            record[name], seconds = row, time.perf_counter() - began
            if name == "long" or row["texts"] % 50 == 0:
                print(name, row, flush=True)
                written = json.dumps(record | {"provenance": provenance(wall_seconds=seconds)}, indent=1)
                write_text_atomically(arguments.out, f"{written}\n")


if __name__ == "__main__":
    main()
