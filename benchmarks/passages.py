"""Questions in sentences: passages recalled by kernel weights over hidden states, before an instruct model's question.

    tessera models get smollm2 --output smollm2
    pip install rank-bm25
    OMP_NUM_THREADS=1 python -m benchmarks.passages smollm2 --squad dev-v1.1.json train-v1.1.json --book book.txt \\
        --out results/attached/questions.json

The memory stores the hidden states of layer 6 at every token of the passages, without their mean. Each token of a
question spreads a weight of 1 over them (biweight kernel, exact, all pairs), and a passage is worth the weight that all
tokens of the question give it: words that stand everywhere give little to each. Layer, kernel and slope were chosen on
every third question of the SQuAD training article (numbers 1, 4, ...); here others of it are asked (0, 3, ...), and
every fourth of the other article, which has them in near-repetitions. Facts are planted between the passages of
the book. Scored: is the first passage one with the answer (its citation is right); and of the model's reply, does it
hold the answer, and what is its F1 (SQuAD's): without passages, with the two best of the memory, with the two best of
BM25, and with one passage that holds the answer, which is the most that any search could give. --out is gone on from.
"""

import argparse
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tessera.base.files import write_text_atomically
from tessera.data.text_files import text_of_files
from tessera.evaluation.provenance import provenance
from tessera.kernels import Biweight
from tessera.models.saving.loading import load_model, load_tokenizer

LAYER, SLOPE, WORDS, GIVEN = 6, 4.0, 50, 2
PEOPLE = ("Abernathy", "Bellamy", "Crowther", "Dunmore", "Ellery", "Fairfax", "Godwin", "Hathaway", "Ingram", "Jessop")
THINGS = ("silver key", "old map", "gold watch", "red lantern", "brass compass", "letter", "violin", "spare oar")
PLACES = ("the clock tower", "a flour barrel", "the boathouse", "the chapel organ", "a hollow oak", "the coal cellar")
FACTS = 30
WAYS = ("none", "memory", "bm25", "right passage")
ASKING, NEW_TOKENS = "Answer in a few words.", 40


class Question(NamedTuple):
    """Text, accepted answers, and the numbers of the passages that may hold them."""

    text: str
    answers: list[str]
    passages: list[int]


Corpus = tuple[list[str], list[Question]]


def passages_of(text: str) -> list[str]:
    """Sentences, joined while they have at most `WORDS` words."""
    passages: list[str] = []
    for sentence in re.split(r"(?<=[.!?])[\"']?\s+(?=[A-Z\"'])", " ".join(text.split())):
        joined = f"{passages[-1]} {sentence}" if passages else sentence
        passages[-1:] = [joined] if passages and len(joined.split()) <= WORDS else [*passages[-1:], sentence]
    return passages


def squad(path: Path, kept: slice) -> Corpus:
    """An article and the questions `kept` of it."""
    passages: list[str] = []
    questions: list[Question] = []
    for paragraph in json.loads(path.read_text())["data"][0]["paragraphs"]:
        parts = passages_of(paragraph["context"])
        for qa in paragraph["qas"]:
            answers = sorted({answer["text"] for answer in qa["answers"]})
            right = [len(passages) + i for i, part in enumerate(parts) if any(holds(part, a) for a in answers)]
            questions.append(Question(qa["question"], answers, right))
        passages += parts
    return passages, questions[kept]


def planted(path: Path) -> Corpus:
    """The first 120 passages of a book with facts between them: who hid what, and where."""
    choice = random.Random(0)
    passages = passages_of("".join(text_of_files([path])))[:120]
    pairs = choice.sample([(person, thing) for person in PEOPLE for thing in THINGS], FACTS)
    facts = [(person, thing, choice.choice(PLACES)) for person, thing in pairs]
    for person, thing, place in facts:
        passages.insert(choice.randrange(len(passages)), f"Mr. {person} hid the {thing} in {place}.")
    return passages, [
        Question(
            f"Where can the {thing} of Mr. {person} be found?",
            [place.split(" ", 1)[1]],
            [passages.index(f"Mr. {person} hid the {thing} in {place}.")],
        )
        for person, thing, place in facts
    ]


def plain(text: str) -> str:
    """A text as SQuAD compares it: words in lower case, without articles and punctuation."""
    return " ".join(word for word in re.findall(r"\w+", text.lower()) if word not in ("a", "an", "the"))


def holds(text: str, answer: str) -> bool:
    """Whether the answer stands in the text, as whole words."""
    return f" {plain(answer)} " in f" {plain(text)} "


def f1(text: str, answer: str) -> float:
    """Of the words of a reply against those of an answer, as SQuAD scores."""
    said, right = plain(text).split(), plain(answer).split()
    common = sum((Counter(said) & Counter(right)).values())
    return 2 * common / max(1, len(said) + len(right))


@torch.inference_mode()
def hidden_states(model: Any, tokenizer: Any, texts: list[str]) -> list[Tensor]:
    """Of layer `LAYER`, (T, D) for each text; the layers above are not run."""
    layers = model.model.layers
    model.model.layers = layers[: LAYER + 1]
    try:
        ids = (tokenizer(text, return_tensors="pt").input_ids for text in texts)
        return [model.model(i, output_hidden_states=True, use_cache=False).hidden_states[LAYER][0] for i in ids]
    finally:
        model.model.layers = layers


def memory_ranking(model: Any, tokenizer: Any, passages: list[str]) -> Callable[[str], Tensor]:
    """Question -> the weight (P,) of each passage."""
    stored = hidden_states(model, tokenizer, passages)
    owners = torch.arange(len(stored)).repeat_interleave(torch.tensor([len(states) for states in stored]))
    mean = torch.cat(stored).mean(0)
    keys = normalize(torch.cat(stored) - mean, dim=-1)

    def weigh(question: str) -> Tensor:
        queries = normalize(hidden_states(model, tokenizer, [question])[0] - mean, dim=-1)
        weights = Biweight().weights(SLOPE * queries @ keys.T)
        return torch.zeros(len(passages)).index_add_(0, owners, weights.sum(0))

    return weigh


def bm25_ranking(passages: list[str]) -> Callable[[str], Tensor]:
    """Question -> the score (P,) of each passage."""
    from rank_bm25 import BM25Okapi

    index = BM25Okapi([re.findall(r"\w+", passage.lower()) for passage in passages])
    return lambda question: torch.tensor(index.get_scores(re.findall(r"\w+", question.lower())))


@torch.inference_mode()
def replies(model: Any, tokenizer: Any, passage_lists: list[list[str]], question: str) -> list[str]:
    """What the instruct model says behind each list of passages, at its likeliest."""
    messages = [
        [{"role": "user", "content": "".join(f"{p}\n\n" for p in passages) + f"{ASKING} {question}"}]
        for passages in passage_lists
    ]
    prompts = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    )
    answers = model.generate(**prompts, max_new_tokens=NEW_TOKENS, do_sample=False)
    return tokenizer.batch_decode(answers[:, prompts["input_ids"].shape[1] :], skip_special_tokens=True)


def summary(record: dict[str, Any]) -> str:
    """A table in Markdown: right replies and mean F1 of each way."""
    lines = ["| | questions | " + " | ".join(WAYS) + " |", "|---" * (len(WAYS) + 2) + "|"]
    everything = [row for rows in record["answers"].values() for row in rows]
    for name, rows in {**record["answers"], "all": everything}.items():
        cells = [
            f"{sum(row[way]['right'] for row in rows)} ({100 * sum(row[way]['f1'] for row in rows) / len(rows):.0f})"
            for way in WAYS
        ]
        lines.append(f"| {name} | {len(rows)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Rank for all questions, ask some, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of an instruct model with its tokenizer")
    parser.add_argument("--squad", type=Path, nargs=2, required=True, help="dev and train article of SQuAD")
    parser.add_argument("--book", type=Path, required=True, help="text between which facts are planted")
    parser.add_argument("--ask", type=int, nargs=3, default=[35, 35, 30], help="questions of each that are asked")
    parser.add_argument("--out", type=Path, required=True, help="a JSON file for what came out")
    arguments = parser.parse_args()
    model, tokenizer = load_model(arguments.model), load_tokenizer(arguments.model)
    tokenizer.padding_side = "left"
    corpora = {
        "Super Bowl 50": squad(arguments.squad[0], slice(0, None, 4)),
        "Notre Dame": squad(arguments.squad[1], slice(0, None, 3)),
        "planted facts": planted(arguments.book),
    }
    record = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"citations": {}}
    began = time.perf_counter()

    def keep() -> None:
        record["provenance"] = provenance(wall_seconds=time.perf_counter() - began)
        write_text_atomically(arguments.out, json.dumps(record, indent=1) + "\n")

    best: dict[str, dict[str, list[list[int]]]] = {}
    for name, (passages, questions) in corpora.items():
        ways = {"memory": memory_ranking(model, tokenizer, passages), "bm25": bm25_ranking(passages)}
        best[name] = {way: [rank(q.text).topk(GIVEN)[1].tolist() for q in questions] for way, rank in ways.items()}
        record["citations"][name] = {
            "passages": len(passages),
            "questions": len(questions),
            **{
                f"{way} {most}": sum(
                    bool({*ranked[:most]} & {*q.passages}) for ranked, q in zip(best[name][way], questions)
                )
                for way in ways
                for most in (1, GIVEN)
            },
        }
        print(name, record["citations"][name], flush=True)
        keep()
    for (name, (passages, questions)), count in zip(corpora.items(), arguments.ask):
        answered = record.setdefault("answers", {}).setdefault(name, [])
        order = random.Random(0).sample(range(len(questions)), len(questions))  # --ask more goes on
        for index in order[len(answered) : count]:
            question = questions[index]
            passages_of_ways = [[], best[name]["memory"][index], best[name]["bm25"][index], question.passages[:1]]
            said = replies(model, tokenizer, [[passages[i] for i in some] for some in passages_of_ways], question.text)
            row: dict[str, Any] = {"question": question.text, "answers": question.answers}
            for way, some, text in zip(WAYS, passages_of_ways, said):
                right, score = any(holds(text, a) for a in question.answers), max(f1(text, a) for a in question.answers)
                row[way] = {"passages": some, "reply": text, "right": right, "f1": score}
            answered.append(row)
            keep()
        print(name, len(answered), flush=True)
    print(summary(record))


if __name__ == "__main__":
    main()
