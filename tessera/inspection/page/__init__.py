"""The inspection page: traces as one HTML file that opens from disk and asks no network for anything."""

import base64
import gzip
import hashlib
import html
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tessera.base.arguments import explain_all
from tessera.base.errors import expect
from tessera.base.files import is_marked, write_text_atomically, writing
from tessera.inspection.trace import MemoryTrace, SegmentTrace, StoredMemory, Trace

HERE = Path(__file__).parent
HEAD = "<title>Inspection: "
MANY_TOKENS = 20_000  # of longer texts, losses and their changes are kept in thousandths of a nat, as they are shown
OCTAVE = 64  # weights and probabilities are kept in steps of 1/64 octave: within 0.6 % of themselves
SAFE = str.maketrans("&<>", ",./")  # of the digits of base 85, those that mean something in HTML
COLUMNS = 400  # of the strip of segments: neighbours are merged, where a browser would draw a million cells
NONE = 65535  # in place of a weight: 0
MISSING = 2**30  # in place of thousandths: no number


def write_page(path: str | Path, traces: Sequence[Trace], titles: Sequence[str]) -> None:
    """Write the page of some traces, each under a title, to `path`.

    The page's own script and style are named in its content security policy by their hashes: nothing else can run,
    and no connection can be opened. Strings of the traces are data in it, never markup.
    Raises `TesseraError`: no trace, or the file cannot be written.
    """
    expect(bool(traces) and len(traces) == len(titles), "write_page", "traces", "come with one title each", len(titles))
    text = page_of(traces, titles)
    with writing(path, "the page"):
        write_text_atomically(Path(path), text)


def is_page(path: Path) -> bool:
    """Whether `path` is a file that `write_page` wrote."""
    return is_marked(path, HEAD)


def page_of(traces: Sequence[Trace], titles: Sequence[str]) -> str:
    """The page's text."""
    script, style = ((HERE / name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    parts = {
        "TITLE": html.escape("Inspection: " + ", ".join(titles)),
        "SCRIPT_HASH": content_hash(script),
        "STYLE_HASH": content_hash(style),
        "STYLE": style,
        "SCRIPT": script,
        "DATA": _packed(traces, titles),
    }
    page = (HERE / "page.html").read_text(encoding="utf-8")
    # Filled in one pass, so that data cannot be taken for a placeholder.
    page = re.sub(r"{{(\w+)}}", lambda placeholder: parts[placeholder[1]], page)
    return page.encode("utf-8", "replace").decode("utf-8")


def notebook_html(trace: Trace) -> str:
    """What a notebook shows for a trace: the page, in a frame that may run the page's script and nothing else."""
    page = html.escape(page_of([trace], [str(trace.model.get("class", "trace"))]))
    return f'<iframe srcdoc="{page}" width="100%" height="640" sandbox="allow-scripts allow-downloads"></iframe>'


def content_hash(text: str) -> str:
    """As a content security policy names a script or a style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


class _Arrays:
    """Arrays one after the other, each known by `[type, first byte, length]`.

    Of every array the lowest bytes of all numbers come first, then the next ones: so they compress better. Types:
    "f4"; "i4", integers with the sign in the lowest bit; "d4", the same of the differences between neighbours; "m4",
    the same of thousandths; "w2", logarithms of weights.
    """

    def __init__(self) -> None:
        self.bytes = bytearray()

    def _add(self, kind: str, tensor: Tensor | None, encoded: Callable[[Tensor], np.ndarray]) -> list[object] | None:
        if tensor is None:
            return None
        array = encoded(tensor.flatten())
        entry: list[object] = [kind, len(self.bytes), array.size]
        self.bytes += array.reshape(-1, 1).view(np.uint8).T.tobytes()
        return entry

    def floats(self, tensor: Tensor | None) -> list[object] | None:
        """As they are."""
        return self._add("f4", tensor, lambda values: values.float().numpy().astype("<f4"))

    def integers(self, tensor: Tensor | None) -> list[object] | None:
        """As they are."""
        return self._add("i4", tensor, _signs_last)

    def steps(self, tensor: Tensor | None) -> list[object] | None:
        """Integers of which neighbours are near each other."""
        return self._add("d4", tensor, lambda values: _signs_last(values.int().diff(prepend=torch.zeros(1).int())))

    def losses(self, tensor: Tensor | None) -> list[object] | None:
        """Nats; thousandths of a long text."""
        if tensor is None or tensor.shape[-1] <= MANY_TOKENS:
            return self.floats(tensor)
        thousandths = (1000 * tensor.double()).round().nan_to_num(nan=MISSING, posinf=MISSING, neginf=MISSING)
        return self._add("m4", thousandths, _signs_last)

    def weights(self, tensor: Tensor | None) -> list[object] | None:
        """Numbers in [0, 1], by their logarithms; 0 stays 0, and no other number becomes 0; what is none is 0."""
        return None if tensor is None else self.logarithms(tensor.double().log())

    def logarithms(self, tensor: Tensor | None) -> list[object] | None:
        """The same, given natural logarithms."""
        steps = None if tensor is None else (tensor.double() * (-OCTAVE / math.log(2))).round()
        return self._add("w2", steps, lambda them: them.nan_to_num(NONE).clamp(0, NONE).numpy().astype("<u2"))


def _signs_last(values: Tensor) -> np.ndarray:
    """0, -1, 1, -2, 2, ... as 0, 1, 2, 3, 4, ...: numbers near 0 have high bytes of 0."""
    array = values.numpy().astype("<i4")
    return ((array << 1) ^ (array >> 31)).astype("<i4")


def _in_order(memory: MemoryTrace) -> tuple[Tensor | None, Tensor | None]:
    """Pairs and weights with the pairs of each row in the order of their numbers."""
    if not memory.recalls:
        return None, None
    rows, pairs, weights = memory.all_recalled
    row = torch.arange(len(rows) - 1).repeat_interleave(rows.diff())
    order = torch.from_numpy(np.lexsort((pairs.numpy(), row.numpy())))
    return pairs[order], weights[order]


def _packed(traces: Sequence[Trace], titles: Sequence[str]) -> str:
    """All that the script reads: the length of a JSON text, the text, and the arrays that it names."""
    arrays = _Arrays()
    described = [_trace(trace, title, arrays) for trace, title in zip(traces, titles)]
    # JSON in ASCII keeps every string, also lone surrogates and NUL; in base 85 none of them can be markup.
    text = json.dumps(described, separators=(",", ":")).encode("ascii")
    packed = len(text).to_bytes(4, "little") + text + bytes(arrays.bytes)
    return base64.b85encode(gzip.compress(packed, 6, mtime=0)).decode().translate(SAFE)


def _trace(trace: Trace, title: str, arrays: _Arrays) -> dict[str, object]:
    texts = sorted(set(trace.tokens))
    numbers = {text: number for number, text in enumerate(texts)}
    return {
        "title": title,
        "model": trace.model,
        "texts": texts,
        "tokens": arrays.integers(torch.tensor([numbers[text] for text in trace.tokens], dtype=torch.int32)),
        "losses": arrays.losses(trace.losses),
        "queries": arrays.steps(trace.queries),
        "removedPairs": arrays.integers(trace.removed_pairs),
        "vocabulary": trace.vocabulary,
        "words": 0 if trace.before_tokens is None else trace.before_tokens.shape[1],
        "beforeTokens": arrays.integers(trace.before_tokens),
        "beforeScores": arrays.logarithms(trace.before_scores),
        "memories": [_memory(memory, arrays) for memory in trace.memories],
        "segments": None if trace.segments is None else _segments(trace.segments, arrays),
        "stored": None if trace.stored is None else _stored(trace.stored, arrays),
    }


def _segments(segments: SegmentTrace, arrays: _Arrays) -> dict[str, object]:
    """Means of as many neighbours as leave `COLUMNS`; what each token read is told beside the largest."""
    count, layers = segments.written.shape
    merged, names = max(1, -(-count // COLUMNS)), ("written", "erased", "read", "norm", "gamma")
    columns = {name: [part.nanmean(0) for part in getattr(segments, name).split(merged)] for name in names}
    largest = 0.0 if segments.reads is None else float(segments.reads.nan_to_num(0, 0).max())
    return {
        "count": count,
        "merged": merged,
        "layers": layers,
        "starts": arrays.steps(segments.starts),
        "largestRead": largest,
        "reads": None if segments.reads is None else arrays.weights(segments.reads / (largest or 1)),
        **{name: arrays.floats(torch.stack(column)) for name, column in columns.items()},
    }


def _stored(stored: StoredMemory, arrays: _Arrays) -> dict[str, object]:
    return {
        "kind": stored.kind,
        "tokensRead": stored.tokens_read,
        "segmentsRead": stored.segments_read,
        "shape": list(stored.tokens.shape),
        "norms": arrays.floats(stored.norms),
        "strengths": arrays.floats(stored.strengths),
        "tokens": arrays.integers(stored.tokens),
        "scores": arrays.logarithms(stored.scores),
    }


def _memory(memory: MemoryTrace, arrays: _Arrays) -> dict[str, object]:
    pairs, weights = _in_order(memory)
    return {
        "name": memory.name,
        "layer": memory.layer,
        "kind": memory.kind,
        "recalls": memory.recalls,
        "heads": memory.num_heads,
        "words": 0 if memory.own_tokens is None else memory.own_tokens.shape[1],
        "rows": arrays.steps(memory.rows),
        "pairs": arrays.steps(pairs),
        "weights": arrays.weights(weights),
        "share": arrays.weights(memory.share),
        "numPairs": arrays.steps(memory.num_pairs),
        "bandwidth": arrays.floats(memory.bandwidth),
        "ages": arrays.floats(memory.ages),
        "leak": arrays.floats(memory.leak),
        "ownTokens": arrays.integers(memory.own_tokens),
        "ownScores": arrays.logarithms(memory.own_scores),
        "afterTokens": arrays.integers(memory.after_tokens),
        "afterScores": arrays.logarithms(memory.after_scores),
        "lossChange": arrays.losses(memory.loss_change),
        "lossChangeMean": None if memory.loss_change is None else arrays.floats(memory.loss_change.nanmean(-1)),
        "headLossChange": arrays.losses(memory.head_loss_change),
        "pairLossChange": arrays.losses(memory.pair_loss_change),
        "pairLossSum": None if memory.pair_loss_change is None else arrays.floats(memory.pair_loss_change.nansum(-1)),
    }


explain_all(globals(), ("write_page", "page_of", "is_page"))
