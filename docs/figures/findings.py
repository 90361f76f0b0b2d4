"""The pictures and numbers of docs/inspection.md, from two traces (its commands write them).

python docs/figures/findings.py demo.safetensors long-term.safetensors --out docs/figures
"""

import argparse
import itertools
from pathlib import Path

import torch
from matplotlib.figure import Figure

from tessera.inspection import MemoryTrace, Trace, recalled_text, recency_profile
from tessera.inspection.profile import head_line


def same_token(trace: Trace, memory: MemoryTrace, head: int) -> tuple[float, float]:
    """Mean weight on the pairs of earlier occurrences of the query's token, and the share of pairs that these are."""
    weights, shares = [], []
    for number, query in enumerate(trace.queries.tolist()):
        is_same = trace.input_ids[:query] == trace.input_ids[query]
        if query and is_same.any():
            pairs, values = memory.recalled(number, head)
            weights.append(float(values[is_same[pairs.long()]].sum()))
            shares.append(float(is_same.float().mean()))
    return torch.tensor(weights).mean().item(), torch.tensor(shares).mean().item()


def repeats(trace: Trace) -> torch.Tensor:
    """(T,): whether this token followed the same token before: what an induction head can know."""
    ids, seen, known = trace.input_ids.tolist(), set(), [False]
    for pair in itertools.pairwise(ids):
        known.append(pair in seen)
        seen.add(pair)
    return torch.tensor(known)


def induction(trace: Trace, out: Path) -> None:
    """An induction head in the first layer: the head with the most weight on earlier occurrences of its token."""
    memory = trace.memory(0, "contextual")
    scores = [same_token(trace, memory, head) for head in range(memory.num_heads)]
    known = repeats(trace)
    for head, (weight, share) in enumerate(scores):
        change = memory.head_loss_change[head]
        print(
            f"head {head}: leak {memory.leak[head]:.2f}, weight on the same token {weight:.3f} ({share:.3f} of the "
            f"pairs), loss without it: {change[1:][known[1:]].mean():+.3f} nats where the pair was seen before, "
            f"{change[1:][~known[1:]].mean():+.3f} elsewhere"
        )
    best = max(range(memory.num_heads), key=lambda head: scores[head][0])
    gain = torch.where(known, memory.head_loss_change[best].nan_to_num(), -torch.inf)
    gain[:120] = -torch.inf  # so that there is a text to look back at
    gain[320:] = -torch.inf
    query = int(gain.argmax()) - 1
    print(
        f"head {best} at token {query} {trace.tokens[query]!r} -> {trace.tokens[query + 1]!r}: {gain.max():+.2f} nats"
    )
    recalled_text(trace, memory, best, query).figure.savefig(out / "induction-head.png")


def time_scales(trace: Trace, out: Path) -> None:
    """Leak rates and recency profiles of the heads of the layer whose leak rates differ most."""
    memories = [memory for memory in trace.memories if memory.kind == "contextual"]
    memory = max(memories, key=lambda memory: float(memory.leak.max() - memory.leak.min()))
    for head, leak in enumerate(memory.leak):
        print(f"layer {memory.layer}, head {head}: leak {leak:.3f}, {1 / (1 - leak):.1f} tokens in its key")
    figure = Figure(figsize=(8, 3), dpi=120, layout="constrained")
    left, right = figure.subplots(1, 2)
    steps = torch.arange(0, 13)
    for head, leak in enumerate(memory.leak):
        left.plot(steps, leak**steps, label=f"head {head}", **head_line(head))
    left.set(xlabel="steps before the query", ylabel="part in its key")
    left.set_title("key: leaky average", loc="left")
    left.legend(frameon=False)
    recency_profile(memory, right)
    figure.savefig(out / "time-scales.png")


def long_term(trace: Trace, out: Path) -> None:
    """The tokens for which the long-term memories lower the loss most, and what they recalled."""
    memories = [memory for memory in trace.memories if memory.kind == "long_term"]
    for memory in memories:
        change = memory.loss_change.nan_to_num()
        print(f"layer {memory.layer}, long-term memory: {memory.loss_change[66:].mean():+.4f} nats from token 66 on")
        for position in change.sort(descending=True).indices[:8].tolist():
            weights: dict[int, float] = {}
            for head in range(memory.num_heads):
                for pair, weight in zip(*(part.tolist() for part in memory.recalled(position - 1, head))):
                    weights[pair] = weights.get(pair, 0.0) + weight / memory.num_heads
            top = sorted(weights, key=weights.__getitem__, reverse=True)[:3]
            texts = ", ".join(f"{trace.tokens[p]!r}->{trace.tokens[p + 1]!r} {weights[p]:.2f}" for p in top)
            before, following = "".join(trace.tokens[position - 4 : position]), trace.tokens[position]
            print(f"  {change[position]:+.2f} {before!r} -> {following!r}: {texts}")
    best = max(memories, key=lambda memory: float(memory.loss_change[66:].mean()))
    query = int(best.loss_change.nan_to_num().argmax()) - 1
    recalled_text(trace, best, None, query).figure.savefig(out / "long-term-memory.png")


def main() -> None:
    """Draw all three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("demo", type=Path)
    parser.add_argument("long_term", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    demo = Trace.load(arguments.demo)
    induction(demo, arguments.out)
    time_scales(demo, arguments.out)
    long_term(Trace.load(arguments.long_term), arguments.out)


if __name__ == "__main__":
    main()
