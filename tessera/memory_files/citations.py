"""Where an answer came from: the passages whose pairs were recalled, and what the answer loses without them."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tessera.base.errors import expect
from tessera.inspection.recall import recall_weights
from tessera.inspection.text import TokenTexts
from tessera.memory_files.answering import Answer
from tessera.memory_files.document import without
from tessera.models.carried_state import logits_behind

if TYPE_CHECKING:
    from tessera.memory_files.memory import Memory

PLACES = 64  # tokens with the largest weights, around which passages are looked for
AROUND = 256  # tokens on either side in which a passage's ends are looked for
TRIED = 8  # passages that are left out in turn
# White space belongs to the next sentence, as in most tokenizers to the next token; Chinese and Japanese have none.
SENTENCE_END = re.compile(r"""[.!?؟۔।]["'”’)\]]*(?=\s)|[。！？]+["'”’）」』]*|(?=\n\s*\n)""")


@dataclass(frozen=True)
class Citation:
    """A sentence of a document.

    Attributes:
        first, end: its bytes in the document's source. weight: its share of all that the memories of pairs recalled
            while the answer was said. drop: what the answer's probability loses where its pairs are left out.
    """

    document: str
    first: int
    end: int
    text: str
    weight: float
    drop: float


@torch.no_grad()
def citations(memory: "Memory", state: Any, answer: Answer, count: int) -> tuple[Citation, ...]:
    """The `count` passages without which `answer` loses most probability, of those that were recalled most.

    A pair belongs to the token that its value holds: the one after its key. Every passage is left out by running again
    without its pairs.
    Raises `TesseraError`: an answer by beam search.
    """
    expect(len(answer.tokens) > 0, "cite", "the answer", "hold tokens that were chosen one by one", "none")
    if state is None:
        return ()
    ids = torch.cat([answer.question, answer.tokens.to(answer.question.device)])[None]
    recalled = recalled_of_tokens(memory, state, answer)
    weights = torch.stack(list(recalled.values())).sum(0)
    weights = weights[:-1] / weights.sum().clamp_min(1e-30)
    passages = _passages(memory, weights)
    full = _probability(memory, state, ids, len(answer.question))
    cited = []
    for document, start, first, end, text in passages[:TRIED]:
        left_out = without(state, start + first - 1, start + end)  # also the pair whose key is its last token
        drop = full - _probability(memory, left_out, ids, len(answer.question))
        starts = memory.documents[document].starts()
        weight = float(weights[start + first : start + end].sum())
        name = memory.documents[document].name
        cited.append(Citation(name, int(starts[first]), int(starts[end]), text, weight, drop))
    return tuple(sorted(cited, key=lambda citation: (-citation.drop, -citation.weight))[:count])


@torch.no_grad()
def recalled_of_tokens(memory: "Memory", state: Any, answer: Answer) -> dict[str, Tensor]:
    """Memory -> the weight (N + 1,) with which it recalled each of the N tokens of all documents, and anything else.

    Weights are sums over the heads and the tokens of the answer. Persistent memories are left out.
    """
    ids = torch.cat([answer.question, answer.tokens.to(answer.question.device)])[None, :-1]
    total = sum(len(document.tokens) for document in memory.documents)
    recalled = {}
    for recall in recall_weights(memory.model, ids, range(len(answer.question) - 1, ids.shape[1]), state):
        if recall.site.kind == "persistent":
            continue
        weights, row = torch.zeros(total + 1), recall.weights.float().sum((0, 1))
        is_before = (recall.pairs < -1) & (recall.pairs >= -total)
        weights.index_add_(0, total + recall.pairs[is_before] + 1, row[is_before])
        weights[total] = row.sum() - weights.sum()
        recalled[recall.site.name] = weights
    return recalled


def _passages(memory: "Memory", weights: Tensor) -> list[tuple[int, int, int, int, str]]:
    """(document, its first step, first token, end, text) of the sentences of the largest weights, the largest first.

    No token belongs to two of them: sentences may be longer than what is looked at, and a token may end one and begin
    the next.
    """
    texts = TokenTexts(memory.tokenizer)
    passages: list[tuple[int, int, int, int, str]] = []
    starts = torch.tensor([0, *(len(document.tokens) for document in memory.documents)]).cumsum(0)
    for step in weights.topk(min(PLACES, len(weights))).indices.tolist():
        if not weights[step]:
            break
        index = int(torch.searchsorted(starts, step, right=True)) - 1
        start, document = int(starts[index]), memory.documents[index]
        others = [(first, end) for known, _, first, end, _ in passages if known == index]
        opening = document.opening(memory.tokenizer)
        if step - start < opening or any(first <= step - start < end for first, end in others):
            continue
        low = max(opening, step - start - AROUND)
        shown = texts.of_text(document.tokens[low : step - start + AROUND].tolist())
        first, end = _sentence(shown, step - start - low)
        first = max([first, *(other - low for _, other in others if other <= step - start)])
        end = min([end, *(other - low for other, _ in others if other > step - start)])
        if text := "".join(shown[first:end]).strip():
            passages.append((index, start, low + first, low + end, text))
    return sorted(passages, key=lambda passage: -float(weights[passage[1] :][passage[2] : passage[3]].sum()))


def _sentence(shown: tuple[str, ...], token: int) -> tuple[int, int]:
    """The tokens from the end of the sentence before `token` to the end of its own."""
    ends = torch.tensor([len(text) for text in shown]).cumsum(0)
    begins = [int(ends[token]) - len(shown[token]), int(ends[token])]
    borders = [border.end() for border in SENTENCE_END.finditer("".join(shown))]
    before = max((border for border in borders if border <= begins[0]), default=0)
    after = min((border for border in borders if border >= begins[1]), default=int(ends[-1]))
    first, last = int(torch.searchsorted(ends, before, right=True)), int(torch.searchsorted(ends, after))
    return min(first, token), max(last, token) + 1


def _probability(memory: "Memory", state: Any, ids: Tensor, length: int) -> float:
    """Of the tokens behind the first `length`, given those."""
    logits = logits_behind(memory.model, ids[:, :-1], state)
    chosen = logits[0, length - 1 :].double().log_softmax(-1).gather(1, ids[0, length:, None])
    return float(chosen.sum().exp())
