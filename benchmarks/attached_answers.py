"""What a bounded memory beside a pretrained decoder still answers: facts planted in books, by budget and eviction.

    tessera models get smollm2 --output smollm2
    OMP_NUM_THREADS=1 python -m benchmarks.attached_answers smollm2 book.txt ... --out results/attached/answers.json

Facts, `Mr. NAME hid the THING in PLACE.`, stand at random places of about 8,000 tokens behind a book's middle. These
are read in windows of 512 and remembered (see `benchmarks.attached_memory`); then, behind the last tokens of the text,
the model is given each fact up to its place, in the words of the text. It is right if every token of the place is the
likeliest one: what `generate` says. Beside it the model without memory, behind as many of the last tokens as a memory
keeps pairs: a sliding window. What is done stands in --out; the command goes on from it.
"""

import argparse
import json
import time
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.attached_memory import WINDOW, budget_figure, read, remembered
from benchmarks.passages import PEOPLE, PLACES, THINGS, passages_of
from tessera.base.files import write_text_atomically
from tessera.data.text_files import text_of_files
from tessera.evaluation.provenance import provenance
from tessera.models.carried_state import read_on
from tessera.models.forking import apart
from tessera.models.saving.loading import load_model, load_tokenizer
from tessera.recall.token_memory import EVICTIONS, TokenMemory

FACTS = 30
NO_MEMORY = TokenMemory.empty("gaussian")


class Asked(NamedTuple):
    """The tokens of a place (T,), and the hidden states (T, D) and logits (T, V) of the model before each."""

    place: Tensor
    hidden: Tensor
    logits: Tensor

    def is_right(self, memory: TokenMemory = NO_MEMORY) -> bool:
        """Whether every token is the likeliest one."""
        return torch.equal(memory.mixed(self.hidden, self.logits).argmax(-1), self.place)

    def is_recalled(self, memory: TokenMemory) -> bool:
        """Whether the memory alone gives more than half to every token."""
        return bool((memory.probability(self.hidden, self.place) > 0.5).all())


def planted(book: Path, tokenizer: Any, length: int) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """About `length` tokens of a book with facts in them, and each fact as two rows of tokens, the second its place."""
    chance, facts = Random(0), []

    def encoded(text: str) -> Tensor:
        return torch.tensor(tokenizer(text, verbose=False)["input_ids"])

    passages = passages_of("".join(text_of_files([book])))
    parts, room = [], length
    for passage in passages[len(passages) // 2 :]:
        if room <= 0:
            break
        parts.append(passage)
        room -= len(encoded(f" {passage}"))
    for person, thing in chance.sample([(person, thing) for person in PEOPLE for thing in THINGS], FACTS):
        beginning, place = f"Mr. {person} hid the {thing} in", f" {chance.choice(PLACES)}"
        parts.insert(chance.randrange(1, len(parts)), f"{beginning}{place}.")
        facts.append((encoded(f" {beginning}"), encoded(place)))
    return encoded(" ".join(parts)), facts


@torch.inference_mode()
def ask(model: Any, context: Tensor, facts: list[tuple[Tensor, Tensor]]) -> list[Asked]:
    """Every fact behind the same tokens, which are read once."""
    rows = []
    _, cache = read_on(model, context[None], None, logits_to_keep=1)
    for beginning, place in facts:
        ids = torch.cat([beginning, place])[None, :-1]
        output = model(ids, past_key_values=apart(cache), output_hidden_states=True)
        rows.append(Asked(place, output.hidden_states[-1][0, -len(place) :], output.logits[0, -len(place) :]))
    return rows


def draw(books: dict[str, Any], budgets: list[int], path: Path) -> None:
    """Right answers by budget and eviction, over all books."""

    def share(label: str) -> float:
        return 100 * sum(book["right"][label] for book in books.values()) / (FACTS * len(books))

    by_eviction = {eviction: [share(f"{eviction} {budget}") for budget in budgets] for eviction in EVICTIONS}
    with budget_figure(path, budgets, by_eviction, "pairs or tokens kept", "right answers, %") as axes:
        shares = [share(f"window {budget}") for budget in budgets]
        axes.plot(budgets, shares, color="#334155", marker="s", label="no memory: a sliding window of as many tokens")
        axes.axhline(share("all"), color="#334155", linestyle="--", label="all pairs kept")
        axes.set_ylim(0)


def main() -> None:
    """Measure what is not in --out yet; draw the figure beside --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a causal language model with its tokenizer")
    parser.add_argument("books", nargs="+", type=Path)
    parser.add_argument("--length", type=int, default=8000, help="tokens that are remembered, about")
    parser.add_argument("--budgets", type=int, nargs="+", default=[512, 1024, 2048, 4096], help="kept pairs")
    parser.add_argument("--out", type=Path, required=True, help="a JSON file for what came out")
    arguments = parser.parse_args()
    model, tokenizer = load_model(arguments.model), load_tokenizer(arguments.model)
    record = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"facts": FACTS, "books": {}}
    began = time.perf_counter()
    for book in arguments.books:
        if book.name in record["books"]:
            continue
        ids, facts = planted(book, tokenizer, arguments.length)
        seen, rows = read(model, ids), ask(model, ids[-WINDOW + 32 :], facts)
        right = {"window": sum(row.is_right() for row in rows)}
        recalled = {}
        settings: list[tuple[str, dict[str, Any]]] = [("all", {})]
        settings += [
            (f"{eviction} {size}", {"budget": size, "eviction": eviction})
            for size in arguments.budgets
            for eviction in EVICTIONS
        ]
        for label, bounds in settings:
            memory = remembered(seen, TokenMemory.empty("gaussian", **bounds))
            right[label] = sum(row.is_right(memory) for row in rows)
            recalled[label] = sum(row.is_recalled(memory) for row in rows)
            print(book.name, label, memory.mixture.weight, right[label], recalled[label], flush=True)
        for size in arguments.budgets:
            right[f"window {size}"] = sum(row.is_right() for row in ask(model, ids[-size:], facts))
        record["books"][book.name] = {"tokens": len(ids), "right": right, "recalled": recalled}
        record["provenance"] = provenance(wall_seconds=time.perf_counter() - began)
        write_text_atomically(arguments.out, json.dumps(record, indent=1) + "\n")
    draw(record["books"], arguments.budgets, arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
