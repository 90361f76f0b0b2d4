"""What `tessera.attach` gives a pretrained decoder on books, without training, and what a bounded memory keeps of it.

    tessera models get smollm2 --output smollm2
    OMP_NUM_THREADS=1 python -m benchmarks.attached_memory smollm2 book.txt ... --out results/attached/cpu.json

Of each book, the tokens before its middle are read in windows of 512 and remembered; the 1,024 behind it are predicted,
with the mixing weight and slope that were fitted while reading. Beside it: the model in windows of 512, and in one
long window that ends with the scored tokens. Each window is read once, whatever remembers it. What is done stands in
--out; the command goes on from it.
"""

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from matplotlib.figure import Figure
from torch import Tensor

from tessera.base.files import write_atomically, write_text_atomically
from tessera.data.text_files import text_of_files
from tessera.evaluation.provenance import provenance
from tessera.models.attaching import attach
from tessera.models.saving.loading import load_model, load_tokenizer
from tessera.recall.token_memory import EVICTIONS, TokenMemory

KERNELS = ("gaussian", "sparsemax", "biweight", "triweight", "relumax", "gaussian_knn")
SCORED, WINDOW = 1024, 512
Pass = tuple[Tensor, Tensor, Tensor]  # hidden (T, D), next tokens (T,), the model's own probabilities of them (T,)


@dataclass(frozen=True)
class Recorder(TokenMemory):
    """Keeps what it is handed and recalls nothing: one reading serves every kernel and size."""

    passes: list[Pass] = field(default_factory=list)

    def fitted(self, hidden: Tensor, tokens: Tensor, model: Tensor) -> Self:
        self.passes.append((hidden, tokens, model))
        return self

    def remembered(self, hidden: Tensor, tokens: Tensor) -> Self:
        return self


def read(model: Any, ids: Tensor) -> Pass:
    """Every token of `ids` but the first, read in windows."""
    recorder = Recorder.empty("gaussian")
    with attach(model, memory=recorder, window=WINDOW) as attached:
        attached.read(ids)
    hidden, tokens, own = (torch.cat(parts) for parts in zip(*recorder.passes))
    return hidden, tokens, own


def remembered(seen: Pass, memory: TokenMemory) -> TokenMemory:
    """What `Attached.read` makes of the same windows."""
    for hidden, tokens, own in zip(*(part.split(WINDOW - WINDOW // 4) for part in seen)):
        memory = memory.fitted(hidden, tokens, own).remembered(hidden, tokens)
    return memory


def case(before: Pass, scored: Pass, size: int, kernel: str, **bounds: Any) -> dict[str, Any]:
    """Loss of `scored` with a memory of the last `size` tokens before it."""
    memory = remembered(tuple(part[-size:] for part in before), TokenMemory.empty(kernel, **bounds))  # type: ignore[arg-type]
    hidden, tokens, own = scored
    mixing = memory.mixture.weight
    recalled = memory.probability(hidden, tokens)
    loss = -((1 - mixing) * own + mixing * recalled).log().mean().item()
    grown = memory
    losses = []
    for part in zip(*(x.split(64) for x in scored)):
        p = grown.probability(part[0], part[1])
        losses.append(-((1 - grown.mixture.weight) * part[2] + grown.mixture.weight * p).log())
        grown = grown.fitted(*part).remembered(part[0], part[1])
    return {
        "kernel": kernel, "remembered": size, **bounds, "slope": memory.mixture.slope, "mixing_weight": mixing,
        "loss": loss, "loss_while_growing": torch.cat(losses).mean().item(), "bytes": len(memory) * hidden.shape[1] * 4,
    }  # fmt: skip


@torch.inference_mode()
def long_window(model: Any, ids: Tensor, length: int) -> float:
    """Loss of the last `SCORED` tokens of `ids` in one window of `length` tokens."""
    part = ids[-length - 1 :][None]
    logits = model(part[:, :-1], logits_to_keep=SCORED, use_cache=False).logits[0]
    return torch.nn.functional.cross_entropy(logits.float(), part[0, -SCORED:]).item()


def summary(books: dict[str, Any]) -> dict[str, list[float]]:
    """Label -> by how much lower the loss is than without memory, in percent of it, in each book."""
    rows: dict[str, list[float]] = {}
    for book in books.values():
        for row in book.get("cases", []):
            bounds = f", {row['budget']} kept, {row['eviction']}" if "budget" in row else ""
            for loss_name in ("loss", "loss_while_growing"):
                label = f"{row['kernel']}, {row['remembered']} read{bounds}{', growing' if loss_name != 'loss' else ''}"
                rows.setdefault(label, []).append(100 * (1 - row[loss_name] / book["loss"]))
        for length, loss in book.get("long_windows", {}).items():
            rows.setdefault(f"plain window of {length}", []).append(100 * (1 - loss / book["loss"]))
    return rows


def draw(books: dict[str, Any], path: Path) -> None:
    """Gain by budget and eviction, the mean of the books, beside the unbounded memory; 0 is the window alone."""
    rows = {label: sum(gains) / len(gains) for label, gains in summary(books).items()}
    cases = [row for row in next(iter(books.values()))["cases"] if "budget" in row]
    budgets, largest = sorted({row["budget"] for row in cases}), cases[0]["remembered"]
    by_eviction = {
        eviction: [rows[f"gaussian, {largest} read, {budget} kept, {eviction}"] for budget in budgets]
        for eviction in EVICTIONS
    }
    with budget_figure(path, budgets, by_eviction, "pairs kept", "loss lower by, %") as axes:
        unbounded = rows[f"gaussian, {largest} read"]
        axes.axhline(unbounded, color="#334155", linestyle="--", label=f"all {largest:,} pairs kept")
        axes.axhline(0, color="#334155", linewidth=0.8, label=f"no memory: a sliding window of {WINDOW}")


@contextmanager
def budget_figure(
    path: Path, budgets: list[int], by_eviction: dict[str, list[float]], xlabel: str, ylabel: str
) -> Iterator[Any]:
    """The axes of a figure with a curve over budgets for each eviction, to which other lines may be added."""
    figure = Figure(figsize=(8, 4.8), dpi=150, layout="constrained")
    axes = figure.subplots()
    for (eviction, values), colour in zip(by_eviction.items(), ("#c2410c", "#1d4ed8", "#15803d")):
        axes.plot(budgets, values, color=colour, marker="o", label=f"evicted: {eviction.replace('_', ' ')}")
    yield axes
    axes.set_xscale("log", base=2)
    axes.set_xticks(budgets, [f"{budget:,}" for budget in budgets])
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.legend(frameon=False)
    write_atomically(path, lambda temporary: figure.savefig(temporary, format="png"))


def main() -> None:
    """Measure what is not in --out yet; print the table; draw the figure beside --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a causal language model with its tokenizer")
    parser.add_argument("books", nargs="+", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 2048, 8192], help="remembered tokens")
    parser.add_argument("--budgets", type=int, nargs="+", default=[512, 1024, 2048, 4096], help="kept pairs")
    parser.add_argument("--long-windows", type=int, nargs="+", default=[4096], help="tokens")
    parser.add_argument("--out", type=Path, required=True, help="a JSON file for the measurements")
    arguments = parser.parse_args()
    model, tokenizer = load_model(arguments.model), load_tokenizer(arguments.model)
    record = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"books": {}}
    largest, began = max(arguments.sizes), time.perf_counter()

    def keep() -> None:
        record["provenance"] = provenance(wall_seconds=time.perf_counter() - began)
        write_text_atomically(arguments.out, json.dumps(record, indent=1) + "\n")

    for book in arguments.books:
        ids = torch.tensor(tokenizer("".join(text_of_files([book], 1 << 20)), verbose=False)["input_ids"])
        middle, of_book = len(ids) // 2, record["books"].setdefault(book.name, {"tokens": len(ids)})
        part = ids[max(0, middle - largest) : middle + SCORED + 1]
        if "cases" not in of_book:
            started = time.perf_counter()
            seen = read(model, part)
            of_book["reading_seconds"] = time.perf_counter() - started
            before: Pass = tuple(x[:-SCORED] for x in seen)  # type: ignore[assignment]
            scored: Pass = tuple(x[-SCORED:] for x in seen)  # type: ignore[assignment]
            of_book["loss"] = -scored[2].log().mean().item()
            settings = [
                *((size, kernel, {}) for kernel in KERNELS for size in arguments.sizes[-1:]),
                *((size, kernel, {}) for kernel in ("gaussian", "biweight") for size in arguments.sizes[:-1]),
                *(
                    (largest, "gaussian", {"budget": budget, "eviction": eviction})
                    for budget in arguments.budgets
                    for eviction in EVICTIONS
                ),
            ]
            cases = [case(before, scored, size, kernel, **bounds) for size, kernel, bounds in settings]
            of_book["cases"] = cases
            keep()
    for length in arguments.long_windows:
        for book in arguments.books:
            of_book = record["books"][book.name]
            if str(length) not in of_book.setdefault("long_windows", {}):
                ids = torch.tensor(tokenizer("".join(text_of_files([book], 1 << 20)), verbose=False)["input_ids"])
                of_book["long_windows"][str(length)] = long_window(model, ids[: len(ids) // 2 + SCORED + 1], length)
                keep()
    for label, gains in summary(record["books"]).items():
        print(f"{label:<55}", " ".join(f"{gain:6.2f} %" for gain in gains))
    draw(record["books"], arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
