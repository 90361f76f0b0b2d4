"""Stage `armt`: reading up to a million tokens, and the association matrix by Triton against PyTorch's own products."""

from collections.abc import Callable
from functools import partial

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import tessera.armt
from benchmarks.gpu_stages.settings import Settings
from benchmarks.gpu_stages.timing import milliseconds, once
from tessera.models.armt.diagonal import read_stream_diagonally
from tessera.models.recurrence import read_stream
from tessera.ops.association_matrix import read_association, write_association

TOLERANCE = 0.05  # of the matrices after eight segments in bfloat16


def cases(settings: Settings) -> dict[str, Callable[[], dict]]:
    """The issue's model: 4 layers of width 256, segments of 512, 10 memory tokens; matrices of GPT-2's size."""
    lengths = settings.pick((65_536, 1_048_576), (40,))
    cases_by_name: dict[str, Callable[[], dict]] = {"association matrix": partial(matrices, settings)}
    return cases_by_name | {f"reading {length} tokens": partial(reading, settings, length) for length in lengths}


def matrices(settings: Settings) -> dict:
    """One reading of a segment and one writing of its memory tokens, forward, by both backends."""
    batch, segment, pairs, features, width = settings.pick((4, 522, 10, 384, 768), (1, 9, 3, 20, 16))

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=settings.device)

    matrix, normaliser = normal(batch, features, width), normal(batch, features).abs()
    query, key = normal(batch, segment, features).abs(), normal(batch, pairs, features).abs()
    value, strength = normal(batch, pairs, width), torch.rand(batch, pairs, device=settings.device)
    empty = torch.zeros(batch, dtype=torch.bool, device=settings.device)

    def read(backend: str) -> torch.Tensor:
        return read_association(matrix, normaliser, query, backend=backend)

    def write(backend: str) -> torch.Tensor:
        return write_association(matrix, normaliser, key, value, strength, empty, backend=backend)[0]

    worst = max(((f("triton") - f("reference")).abs().max() / f("reference").abs().max()).item() for f in (read, write))
    if not worst <= 1e-3:
        raise ArithmeticError(f"the association matrix by Triton is off by {worst:.1e}")
    runs = {f"{f.__name__} {name}": partial(f, name) for f in (read, write) for name in ("triton", "reference")}
    times = milliseconds(settings, runs)
    ratios = {name: times[f"{name} reference"] / times[f"{name} triton"] for name in ("read", "write")}
    return {"milliseconds": times, "times_as_fast_as_torch": ratios, "deviation": worst}


@torch.inference_mode()
def reading(settings: Settings, length: int) -> dict:
    """Tokens per second and peak memory of the plain loop over segments, and of diagonal batching."""
    segment = settings.pick(512, 8)
    sizes = settings.pick({"n_embd": 256, "n_layer": 4, "n_head": 4}, {"n_embd": 16, "n_layer": 2, "n_head": 2})
    torch.manual_seed(0)
    base = GPT2LMHeadModel(GPT2Config(vocab_size=settings.pick(50_257, 64), n_positions=1024, **sizes))
    options = {"num_memory_tokens": settings.pick(10, 2), "memory_dim": settings.pick(64, 8)}
    model = tessera.armt.wrap(base, segment, **options).eval()
    for memory in model.memories:
        torch.nn.init.normal_(memory.value.weight, 0.0, 0.02)  # a memory that has an effect
    model = model.to(settings.device, settings.dtype)
    tokens = torch.randint(0, base.config.vocab_size, (length,)).tolist()
    expected, by_diagonals = (way(model, tokens[: 8 * segment]).A for way in (read_stream, read_stream_diagonally))
    deviation = ((by_diagonals - expected).norm() / expected.norm()).item()
    if not deviation <= TOLERANCE:
        raise ArithmeticError(f"diagonal batching is off by {deviation:.1e} (allowed {TOLERANCE})")
    result: dict = {}
    for name, way in {"loop": read_stream, "diagonal": read_stream_diagonally}.items():
        way(model, tokens[: 4 * segment])
        if not settings.dry:
            torch.cuda.reset_peak_memory_stats()
        time = once(settings, partial(way, model, tokens))
        peak = 0 if settings.dry else torch.cuda.max_memory_allocated() / 2**20
        result[name] = {"tokens_per_second": 1000 * length / time, "peak_megabytes": peak}
    ratio = result["diagonal"]["tokens_per_second"] / result["loop"]["tokens_per_second"]
    return {**result, "diagonal_ratio": ratio, "deviation": deviation}
