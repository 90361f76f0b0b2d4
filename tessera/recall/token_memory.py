"""A memory of which token came behind which hidden state, as a value, and what it adds to a model's own prediction.

With the hidden state h_T of a language model as key and the next token x_{T+1} as value (kNN-LM, arXiv 1911.00172, with
our kernels in place of nearest neighbours), and keys scaled to length 1,

    p(x | h) = (1 - a) p_model(x | h) + a sum_i w_i [x_i = x],    w = kernel.weights(slope * (h / |h|) . k_i).

`slope` and the mixing weight a are those of a grid under which what was read had the least loss when it was predicted
from what had been read before.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tessera.base.errors import did_you_mean, expect
from tessera.base.precision import without_autocast
from tessera.base.shapes import Float, Int
from tessera.kernels import Kernel, kernel_from_config
from tessera.recall.index import PairIndex
from tessera.recall.pair_store import PairStore

SLOPES = tuple(2.0**power for power in range(9))
MIXING_WEIGHTS = (0.0, 0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)
GRID = len(SLOPES), len(MIXING_WEIGHTS)
EVICTIONS = ("oldest", "least_recalled", "random")
TOKENS_OF_A_FIT = 64  # of each call of `fitted`, evenly spaced
FADING = 0.95  # what a call of `fitted` leaves of the losses before it
LARGEST_SCAN = 262_144  # pairs; of more, compact kernels read through the index
AT_ONCE = 1 << 23  # scores or logits in memory
TINY = 1e-30
ON_CPU: Any = {"dtype": torch.float64, "device": "cpu"}  # ranks and losses, whatever the default device


@dataclass(frozen=True)
class Mixture:
    """The losses (slope, mixing weight) of what was predicted so far, and the best of both."""

    losses: Float[Tensor, "S A"] = field(default_factory=lambda: torch.zeros(GRID, **ON_CPU).float())

    @property
    def slope(self) -> float:
        """Of the scores; the middle of the grid before anything was predicted."""
        return SLOPES[len(SLOPES) // 2 if self.is_new else int(self.losses.argmin()) // len(MIXING_WEIGHTS)]

    @property
    def weight(self) -> float:
        """Of the memory in the prediction; 0 before anything was predicted."""
        return 0.0 if self.is_new else MIXING_WEIGHTS[int(self.losses.argmin()) % len(MIXING_WEIGHTS)]

    @property
    def is_new(self) -> bool:
        """Whether nothing was predicted yet."""
        return not bool(self.losses.any())

    def updated(self, model: Float[Tensor, " T"], memory: Float[Tensor, "S T"]) -> Self:
        """The mixture after tokens to which the model and, with each slope, the memory gave these probabilities."""
        weights = torch.tensor(MIXING_WEIGHTS, **ON_CPU)[:, None]
        mixed = (1 - weights) * model.double().cpu() + weights * memory.double().cpu().unsqueeze(1)
        return replace(self, losses=FADING * self.losses - mixed.clamp(min=TINY).log().sum(-1).float())


@dataclass(frozen=True)
class TokenMemory:
    """Pairs (hidden state, next token), the kernel that recalls them, and the mixture fitted to what was read.

    Attributes:
        budget: the most pairs that are kept, or None. eviction: which go when there are more: "oldest", "random", or
            "least_recalled" (least weight in predictions of what was read, halved every `budget` tokens; being stored
            counts as a weight of 1).
        index: the pairs; B = H = 1. ranks: (N,), the lowest goes first. num_read: pairs that were ever stored. model:
            the fingerprint of the model that read them.
    """

    kernel: Kernel
    budget: int | None = None
    eviction: str = "oldest"
    mixture: Mixture = field(default_factory=Mixture)
    index: PairIndex | None = None
    ranks: Float[Tensor, " N"] = field(default_factory=lambda: torch.zeros(0, **ON_CPU))
    num_read: int = 0
    model: str | None = None

    @classmethod
    def empty(cls, kernel: Kernel | str | dict, budget: int | None = None, eviction: str = "oldest") -> Self:
        """A memory without pairs. Raises `TesseraError` for an unknown kernel, eviction or impossible budget."""
        known = eviction in EVICTIONS
        expect(known, "attach", "eviction", "be a known rule", repr(eviction), did_you_mean(eviction, EVICTIONS))
        expect(budget is None or budget >= 1, "attach", "budget", "be at least 1 pair, or None", budget)
        return cls(kernel_from_config(kernel), budget, eviction)

    def __len__(self) -> int:
        return 0 if self.index is None else len(self.index)

    @property
    def tokens(self) -> Int[Tensor, " N"]:
        """The stored tokens, in the order in which they were read."""
        assert self.index is not None
        return self.index.pairs.values[0, 0, :, 0].long()

    def remembered(self, hidden: Float[Tensor, "T D"], tokens: Int[Tensor, " T"]) -> Self:
        """This memory with the tokens (T,) that came behind `hidden` (T, D), within its budget."""
        if len(tokens) == 0:
            return self
        keys = normalize(hidden.float(), dim=-1)[None]
        values = tokens.to(keys)[None, :, None]  # integers below 2^24 are exact
        ranks = torch.cat([self.ranks, self._first_ranks(len(tokens))])
        stored = replace(self, ranks=ranks, num_read=self.num_read + len(tokens))
        count = len(self) + len(tokens)
        excess = count - (self.budget or count)
        if self.index is not None and count > LARGEST_SCAN and excess <= 0:
            index = self.index.append(keys, values)
        else:  # nothing is filed that will be scanned, or filed anew after the next tokens
            fresh = PairStore.of(keys[None], values[None])
            index = PairIndex(fresh if self.index is None else self.index.pairs.append(keys[None], values[None]))
        if excess <= 0:
            return replace(stored, index=index)
        kept = ranks.argsort(stable=True)[excess:].sort()[0]
        pairs = PairStore.of(index.pairs.keys[:, :, kept], index.pairs.values[:, :, kept])
        return replace(stored, index=PairIndex(pairs), ranks=ranks[kept])

    def fitted(self, hidden: Float[Tensor, "T D"], tokens: Int[Tensor, " T"], model: Float[Tensor, " T"]) -> Self:
        """This memory with its mixture fitted to `tokens` (T,), to which the model alone gives `model` (T,).

        They must not be stored yet. What recalls them counts as recalled.
        """
        if len(self) == 0 or len(tokens) == 0:
            return self
        chosen = torch.arange(0, len(tokens), max(1, len(tokens) // TOKENS_OF_A_FIT), device=hidden.device)
        probabilities = [self.probability(hidden[chosen], tokens[chosen], slope) for slope in SLOPES]
        fitted = replace(self, mixture=self.mixture.updated(model[chosen], torch.stack(probabilities)))
        if self.budget is None or self.eviction != "least_recalled":
            return fitted
        ranks = self.ranks * 0.5 ** (len(tokens) / self.budget)
        for _, weights, places in self._recalled(hidden, fitted.mixture.slope):
            ranks[places.cpu()] += weights.sum(0).to(ranks)
        return replace(fitted, ranks=ranks)

    def probability(
        self, hidden: Float[Tensor, "T D"], tokens: Int[Tensor, " T"], slope: float | None = None
    ) -> Float[Tensor, " T"]:
        """What the memory alone gives to `tokens` (T,) behind `hidden` (T, D)."""
        stored = self.tokens
        blocks = self._recalled(hidden, slope)
        return torch.cat([(w * (stored[at] == tokens[first : first + len(w), None])).sum(1) for first, w, at in blocks])

    def mixed(self, hidden: Float[Tensor, "*B D"], logits: Float[Tensor, "*B V"]) -> Float[Tensor, "*B V"]:
        """Logits of the mixture: `logits` plus `log((1 - a) + a p_memory / p_model)`; unchanged where a is 0."""
        mixing = self.mixture.weight
        if len(self) == 0 or mixing == 0:
            return logits
        flat, stored, blocks = logits.reshape(-1, logits.shape[-1]).float(), self.tokens, []
        for first, weights, places in self._recalled(hidden.reshape(-1, hidden.shape[-1]), room=flat.shape[1]):
            own = flat[first : first + len(weights)]
            memory = torch.zeros_like(own).index_add_(1, stored[places], weights.to(own))
            ratio = memory.clamp(min=TINY).log() - own.log_softmax(-1) + math.log(mixing)
            moved = torch.logaddexp(ratio, torch.full_like(ratio, math.log1p(-mixing)))
            blocks.append(own + torch.where(memory > 0, moved, math.log1p(-mixing)))
        return torch.cat(blocks).to(logits.dtype).view_as(logits)

    def _recalled(
        self, hidden: Float[Tensor, "T D"], slope: float | None = None, room: int = 1
    ) -> Iterator[tuple[int, Float[Tensor, "t n"], Int[Tensor, " n"]]]:
        """Blocks (first query, weights, places) that hold all pairs with weight; `room`: further numbers per query."""
        assert self.index is not None
        queries = normalize(hidden.float(), dim=-1)
        scale, intercept = self.kernel.affine(queries.new_tensor(self.mixture.slope if slope is None else slope))
        if len(self) > LARGEST_SCAN and self.kernel.has_floor:
            recall = self.index.recall(queries[None], kernel=self.kernel, slope=scale, intercept=intercept or 0.0)
            for query in range(len(queries)):
                places, weights = recall.support.of(0, query)
                yield query, weights[None], places
            return
        keys = self.index.pairs.keys[0, 0]
        every = torch.arange(len(keys), device=keys.device)
        for first in range(0, len(queries), step := max(1, AT_ONCE // max(len(keys), room))):
            with without_autocast(keys):
                scores = queries[first : first + step] @ keys.T * scale
            yield first, self.kernel.weights(scores if intercept is None else scores + intercept), every

    def _first_ranks(self, count: int) -> Tensor:
        if self.eviction == "oldest":
            return torch.arange(self.num_read, self.num_read + count, **ON_CPU)
        if self.eviction == "random":  # the same pairs in however many parts they come
            draws = [torch.Generator("cpu").manual_seed(seed) for seed in range(self.num_read, self.num_read + count)]
            return torch.cat([torch.rand(1, generator=draw, **ON_CPU) for draw in draws])
        return torch.ones(count, **ON_CPU)
