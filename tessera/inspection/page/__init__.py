"""The inspection page: traces as one HTML file that opens from disk and asks no network for anything."""

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from tessera.errors import TesseraError, expect
from tessera.files import write_text_atomically
from tessera.inspection.trace import MemoryTrace, SegmentTrace, StoredMemory, Trace

HERE = Path(__file__).parent
MANY_TOKENS = 20_000  # of longer texts, losses and their changes are kept in half precision


def write_page(path: str | Path, traces: Sequence[Trace], titles: Sequence[str]) -> None:
    """Write the page of some traces, each under a title, to `path`.

    The page's own script and style are named in its content security policy by their hashes: nothing else can run,
    and no connection can be opened. Strings of the traces are data in it, never markup.

    Raises:
        TesseraError: no trace, or the file cannot be written.
    """
    expect(bool(traces) and len(traces) == len(titles), "write_page", "traces", "come with one title each", len(titles))
    text = page_of(traces, titles)
    try:
        write_text_atomically(Path(path), text)
    except OSError as error:
        raise TesseraError(f"{path}: the page cannot be written ({error.strerror}).") from None


def page_of(traces: Sequence[Trace], titles: Sequence[str]) -> str:
    """The page's text."""
    script, style = ((HERE / name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    parts = {
        "TITLE": html.escape("Inspection: " + ", ".join(titles)),
        "SCRIPT_HASH": _hash(script),
        "STYLE_HASH": _hash(style),
        "STYLE": style,
        "SCRIPT": script,
        "DATA": _as_script(_data(traces, titles)),
    }
    page = (HERE / "page.html").read_text(encoding="utf-8")
    chunks = page.split("{{")  # filled in one pass, so that data cannot be taken for a placeholder
    filled = [chunks[0]]
    for chunk in chunks[1:]:
        name, rest = chunk.split("}}", 1)
        filled += [parts[name], rest]
    return "".join(filled).encode("utf-8", "replace").decode("utf-8")


def notebook_html(trace: Trace) -> str:
    """What a notebook shows for a trace: the page, in a frame that may run the page's script and nothing else."""
    page = html.escape(page_of([trace], [str(trace.model.get("class", "trace"))]))
    return f'<iframe srcdoc="{page}" width="100%" height="640" sandbox="allow-scripts allow-downloads"></iframe>'


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _as_script(value: object) -> str:
    """JSON that no browser takes for the end of a script, nor for anything but text."""
    text = json.dumps(value, separators=(",", ":"))  # non-ASCII, lone surrogates and NUL as \uXXXX
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


class _Arrays:
    """Arrays one after the other, each known by `[type, first byte, length]`."""

    def __init__(self) -> None:
        self.bytes = bytearray()

    def add(self, array: np.ndarray) -> list[object]:
        """Append an array at a multiple of eight bytes; returns how the page knows it."""
        self.bytes += b"\0" * (-len(self.bytes) % 8)
        place = [array.dtype.str.lstrip("<|"), len(self.bytes), array.size]
        self.bytes += array.tobytes()
        return place

    def floats(self, tensor: Tensor | None) -> list[object] | None:
        """Numbers in float32."""
        return None if tensor is None else self.add(tensor.float().numpy().astype("<f4").ravel())

    def integers(self, tensor: Tensor | None) -> list[object] | None:
        """Integers in int32."""
        return None if tensor is None else self.add(tensor.numpy().astype("<i4").ravel())

    def changes(self, tensor: Tensor | None) -> list[object] | None:
        """Numbers of which a long text has many: with three digits there."""
        if tensor is None or tensor.shape[-1] <= MANY_TOKENS:
            return self.floats(tensor)
        return self.add(tensor.float().numpy().astype("<f2").ravel())

    def shares(self, tensor: Tensor | None) -> list[object] | None:
        """Numbers in [0, 1] in 65,535ths."""
        if tensor is None:
            return None
        return self.add((tensor.double().clamp(0, 1) * 65535).round().numpy().astype("<u2").ravel())


def _data(traces: Sequence[Trace], titles: Sequence[str]) -> dict[str, object]:
    arrays = _Arrays()
    described = [_trace(trace, title, arrays) for trace, title in zip(traces, titles)]
    packed = base64.b64encode(gzip.compress(bytes(arrays.bytes), 6, mtime=0)).decode()
    return {"traces": described, "binary": packed}


def _trace(trace: Trace, title: str, arrays: _Arrays) -> dict[str, object]:
    return {
        "title": title,
        "model": trace.model,
        "tokens": trace.tokens,
        "losses": arrays.changes(trace.losses),
        "queries": arrays.integers(trace.queries),
        "removedPairs": arrays.integers(trace.removed_pairs),
        "vocabulary": trace.vocabulary,
        "memories": [_memory(memory, arrays) for memory in trace.memories],
        "segments": None if trace.segments is None else _segments(trace.segments, arrays),
        "stored": None if trace.stored is None else _stored(trace.stored, arrays),
    }


def _segments(segments: SegmentTrace, arrays: _Arrays) -> dict[str, object]:
    names = ("written", "erased", "read", "norm", "gamma", "reads")
    return {
        "count": segments.written.shape[0],
        "layers": segments.written.shape[1],
        "starts": arrays.integers(segments.starts),
        **{name: arrays.floats(getattr(segments, name)) for name in names},
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
        "scores": arrays.floats(stored.scores),
    }


def _memory(memory: MemoryTrace, arrays: _Arrays) -> dict[str, object]:
    return {
        "name": memory.name,
        "layer": memory.layer,
        "kind": memory.kind,
        "recalls": memory.recalls,
        "heads": memory.num_heads,
        "words": 0 if memory.own_tokens is None else memory.own_tokens.shape[1],
        "rows": arrays.integers(memory.rows),
        "pairs": arrays.integers(memory.pairs),
        "weights": arrays.shares(memory.weights),
        "share": arrays.floats(memory.share),
        "numPairs": arrays.integers(memory.num_pairs),
        "bandwidth": arrays.floats(memory.bandwidth),
        "ages": arrays.floats(memory.ages),
        "leak": arrays.floats(memory.leak),
        "ownTokens": arrays.integers(memory.own_tokens),
        "ownScores": arrays.floats(memory.own_scores),
        "afterTokens": arrays.integers(memory.after_tokens),
        "afterScores": arrays.floats(memory.after_scores),
        "lossChange": arrays.changes(memory.loss_change),
        "headLossChange": arrays.changes(memory.head_loss_change),
        "pairLossChange": arrays.changes(memory.pair_loss_change),
    }
