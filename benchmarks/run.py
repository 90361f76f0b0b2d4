"""`make bench`: speeds beside other code as one table of ratios, in under half an hour, on one thread.

    python -m benchmarks.run [--only training ...] [--reference-mosaics PATH] [--llama-cpp] [--model FOLDER] [--store]

Ours and its peer take turns in one process, and processor time is what counts: other load on the machine disturbs it
least. A ratio is the peer's time over ours, above 1 where ours is faster: the median over rounds, and their spread.
What is slower than in `results/bench/` (written with --store, a file for each kind of processor) by more than the two
spreads is flagged, and the exit status is 1. Peers are models of transformers of the same sizes, as people run them
(eager, a dynamic cache). Larger comparisons, also with published code, are commands of their own in this folder.
--model is a trained model of ours: how much its loss on text changes with rounded weights.
"""

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import normalize, scaled_dot_product_attention
from transformers import AutoModelForCausalLM, DynamicCache

from benchmarks import language_models
from benchmarks.v2 import filled_state
from tessera import MemoryMosaicV2Config, MemoryMosaicV2ForCausalLM, compile_decoding, kernel_regression, wrap
from tessera.base.files import write_text_atomically
from tessera.base.precision import autocast, resolve_precision
from tessera.evaluation.provenance import hardware, provenance
from tessera.models.presets import matching_llama_config
from tessera.models.recurrence import read_stream
from tessera.ops.kernel_regression import Window
from tessera.papers.tables import markdown

Work = Callable[[], object]
Case = tuple[str, Work, Work]  # what is measured, ours, the peer
RESULTS = Path("results/bench")
V2 = {"vocab_size": 8192, "hidden_size": 512, "num_layers": 4, "num_heads": 8, "intermediate_size": 1408}
NEW_TOKENS = 16


def training() -> Iterator[Case]:
    """A step of v1 (forward, backward, AdamW) beside GPT-2; forward and backward of v2 beside Llama; of equal sizes."""
    ours, peer = (
        language_models.training_step(language_models.build(name, 512), 512) for name in ("mosaic", "transformer")
    )
    yield "training: v1, T 512 / GPT-2", ours, peer
    (compiled := language_models.build("mosaic", 512)).compile()
    yield "training: v1, compiled / eager", language_models.training_step(compiled, 512), ours
    config = MemoryMosaicV2Config(**V2, tie_word_embeddings=True)
    ids, precision = torch.randint(0, 8192, (1, 2048)), resolve_precision("auto", "cpu")

    def step(model: nn.Module) -> None:
        with autocast(precision, "cpu"):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        model.zero_grad()

    llama = AutoModelForCausalLM.from_config(matching_llama_config(config, equal_parameters=True))
    ours, peer = (partial(step, model.train()) for model in (MemoryMosaicV2ForCausalLM(config), llama))
    yield "training: v2, T 2,048 / Llama of equal size", ours, peer
    (compiled := MemoryMosaicV2ForCausalLM(config).train()).compile()
    yield "training: v2, compiled / eager", partial(step, compiled), ours


def decoding() -> Iterator[Case]:
    """Greedy tokens of v1 beside GPT-2 behind short and long contexts, of v2 beside Llama behind 16,384."""
    for context in language_models.CONTEXTS:
        longest = context + language_models.NEW_TOKENS
        make = partial(language_models.build, steps=longest)
        peer = language_models.decoding(make("transformer"), context)
        yield f"decoding: v1 behind {context:,} / GPT-2", language_models.decoding(make("mosaic"), context), peer
        for form in ("float32", "bf16", "int8"):
            ours = language_models.decoding(compile_decoding(make("mosaic"), form), context)
            yield f"decoding: v1 compiled, {form}, behind {context:,} / GPT-2", ours, peer
            theirs = language_models.decoding(compile_decoding(make("transformer"), form), context)
            yield f"decoding: v1 / GPT-2, both compiled, {form}, behind {context:,}", ours, theirs
    yield from _v2_decoding(16_384)


@torch.no_grad()
def _v2_decoding(context: int) -> Iterator[Case]:
    config = MemoryMosaicV2Config(**V2, tie_word_embeddings=True)
    llama = AutoModelForCausalLM.from_config(matching_llama_config(config)).eval()
    token, heads, width = torch.zeros(1, 1, dtype=torch.long), llama.config.num_attention_heads, llama.config.head_dim
    cache = DynamicCache(config=llama.config)
    for layer in range(llama.config.num_hidden_layers):
        cache.update(*torch.randn(2, 1, heads, context, width), layer)

    @torch.no_grad()
    def peer() -> None:
        for _ in range(NEW_TOKENS):
            llama(token, past_key_values=cache, use_cache=True)
        cache.crop(-NEW_TOKENS)

    for form in (None, "float32", "bf16", "int8"):
        torch.manual_seed(0)
        model = MemoryMosaicV2ForCausalLM(config).eval()
        if form is not None:
            compile_decoding(model, form)  # rounds the weights, and a state knows its model's
        states = [filled_state(model, context)]

        @torch.no_grad()
        def ours(model=model, states=states) -> None:
            for _ in range(NEW_TOKENS):  # it goes on: to read on from one state a second time copies its pairs
                states[0] = model(input_ids=token, past_key_values=states[0], use_cache=True).past_key_values

        how = "" if form is None else f" compiled, {form},"
        yield f"decoding: v2{how} behind {context:,} / Llama", ours, peer


def drafts() -> Iterator[Case]:
    """Greedy decoding with prompt lookup beside without: an edit of the prompt, and words drawn from a few."""
    draw = torch.Generator().manual_seed(0)
    read, drawn = torch.randint(0, 8191, (96,), generator=draw), torch.randint(0, 64, (192,), generator=draw)
    edit = read.clone()
    edit[::12] = torch.randint(0, 8191, (8,), generator=draw)
    transformer = language_models.build("transformer", 1100)
    models = {
        "v1": language_models.build("mosaic", 512),
        "v1 compiled": compile_decoding(language_models.build("mosaic", 512).eval()),
        "v2": MemoryMosaicV2ForCausalLM(MemoryMosaicV2Config(**V2, tie_word_embeddings=True)),
        "ARMT": wrap(transformer, 512, 10, 64),
    }
    for name, model in models.items():
        for kind, text in (("repeats itself", torch.cat([read, edit])), ("does not", drawn)):
            options = {"max_new_tokens": 96, "do_sample": False, "pad_token_id": 8191}
            plain = partial(model.eval().generate, text[None, :96], logits_processor=[_Says(text)], **options)
            drafted = partial(plain, prompt_lookup_num_tokens=10)
            yield f"prompt lookup / without: {name}, text that {kind}", drafted, plain


class _Says:
    """Weights by chance say nothing like a text: the next token of this one becomes the likeliest."""

    def __init__(self, text: torch.Tensor) -> None:
        self.text = text.tolist()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        scores[0, self.text[input_ids.shape[1]]] += 100.0
        return scores


@torch.no_grad()
def reading() -> Iterator[Case]:
    """ARMT reads a text beside GPT-2 in windows of two segments, both without logits and in automatic precision."""
    sizes, length, segment = {**language_models.SIZE, "num_layers": 4, "hidden_size": 256, "num_heads": 4}, 8192, 512
    make = partial(language_models.build_small_model, "transformer", **sizes, max_positions=1100)
    model, peer, ids = wrap(make(), segment, 10, 64).eval(), make().eval(), torch.randint(0, 8192, (1, length))
    precision = resolve_precision("auto", "cpu")

    @torch.no_grad()
    def windows() -> None:
        with autocast(precision, "cpu"):
            for start in range(0, length, segment):
                peer.base_model(ids[:, max(0, start - segment) : start + segment], use_cache=False)

    eager = partial(read_stream, model, ids[0].tolist(), precision="auto")
    yield "reading: ARMT / GPT-2 in windows", eager, windows
    compiled = wrap(make(), segment, 10, 64).eval()
    for block in compiled.base.transformer.h:
        block.compile()
    yield (
        "reading: ARMT, blocks compiled / eager",
        partial(read_stream, compiled, ids[0].tolist(), precision="auto"),
        eager,
    )


def kernels() -> Iterator[Case]:
    """Forward and backward of each kind of kernel beside PyTorch's causal attention, T 1,024, 8 heads of 64."""
    query, key, value = (normalize(torch.randn(1, 8, 1024, 64), dim=-1).requires_grad_() for _ in range(3))

    def attention() -> None:
        scaled_dot_product_attention(7.4 * query, key, value, is_causal=True, scale=1.0).sum().backward()

    def ours(kernel: str | dict) -> None:
        options = {} if kernel != "normalized_relu" else {"intercept": 0.0}
        kernel_regression(query, key, value, kernel=kernel, slope=7.4, window=Window(), **options).sum().backward()

    for kernel in ("gaussian", "epanechnikov", "biweight", "triweight", "normalized_relu", "relumax"):
        yield f"kernel: {kernel} / fused softmax", partial(ours, kernel), attention


def published(path: Path) -> Iterator[Case]:
    """A training step of v1 beside the published nanoMosaics."""
    ours = language_models.training_step(language_models.build("mosaic", 512), 512)
    theirs = language_models.training_step(language_models.build("published", 512, path), 512)
    yield "training: v1, T 512 / published code", ours, theirs


def llama_cpp() -> Iterator[Case]:
    """Greedy tokens of v1 in 8 bits beside an equally large GPT-2 in llama.cpp's Q8_0."""
    from benchmarks import llama_cpp as peer

    for context in language_models.CONTEXTS:
        longest = context + language_models.NEW_TOKENS
        gpt2 = language_models.build("transformer", longest).eval()
        with tempfile.TemporaryDirectory() as folder:
            peer.write(gpt2, path := Path(folder) / "gpt2.gguf")
            theirs, last_logits = peer.decoding(path, gpt2.config.vocab_size, context)
        ids = torch.randint(0, gpt2.config.vocab_size, (1, 24))
        with torch.no_grad():
            expected = gpt2(ids).logits[0, -1]
        off = (torch.from_numpy(last_logits(ids[0].tolist())) - expected).abs().max() / expected.abs().max()
        assert off < 0.05, f"llama.cpp must say what the model says, up to 8 bits; it is {off:.2f} off"
        ours = language_models.decoding(compile_decoding(language_models.build("mosaic", longest), "int8"), context)
        yield f"decoding: v1 compiled, int8, behind {context:,} / GPT-2 by llama.cpp in Q8_0", ours, theirs


SUITES: dict[str, Callable[[], Iterator[Case]]] = {
    "training": training,
    "decoding": decoding,
    "drafts": drafts,
    "reading": reading,
    "kernels": kernels,
}


def measured(case: Case, rounds: int) -> list[float]:
    """The peer's processor time over ours in each round, after one that is not counted."""
    _, ours, peer = case
    ratios = []
    for turn in range(rounds + 1):
        seconds = []
        for work in (ours, peer):
            began = time.process_time()
            work()
            seconds.append(time.process_time() - began)
        if turn:
            ratios.append(seconds[1] / seconds[0])
    return sorted(ratios)


def flag(ratios: list[float], before: list[float] | None) -> str:
    """What is to be said beside what an earlier run measured."""
    if before is None:
        return ""
    return "slower" if ratios[-1] < before[0] else "faster" if ratios[0] > before[-1] else "as before"


def loss_changes(folder: str) -> list[str]:
    """By how much the loss of a trained model on held-out stories changes with rounded weights."""
    from tessera.data.sources import STORIES
    from tessera.models.saving.loading import load_model, load_tokenizer

    text = (STORIES / "the_red_fairy_book_540.txt").read_text(encoding="utf-8")[:60_000]
    ids = load_tokenizer(folder)(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
    rows = ids[:, : ids.shape[1] // 512 * 512].view(-1, 512)
    lines, first = [], None
    for form in ("float32", "bf16", "int8"):
        model = compile_decoding(load_model(folder), form)
        with torch.no_grad():
            loss = statistics.fmean(float(model(row[None], labels=row[None]).loss) for row in rows)
        first = loss if first is None else first
        lines.append(f"{form}: {loss:.5f} nats per token ({loss - first:+.5f})")
    return lines


def main() -> int:
    """Measure, print the table, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=SUITES, default=list(SUITES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--reference-mosaics", type=Path, help="a checkout of facebookresearch/MemoryMosaics")
    parser.add_argument("--llama-cpp", action="store_true", help="beside llama.cpp too (pip install llama-cpp-python)")
    parser.add_argument("--model", help="a trained model, for the change of its loss with rounded weights")
    parser.add_argument("--store", action="store_true", help="keep this run as what later ones are compared with")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    suites = {name: SUITES[name] for name in arguments.only}
    if arguments.reference_mosaics:
        suites["published"] = partial(published, arguments.reference_mosaics)
    if arguments.llama_cpp:
        suites["llama.cpp"] = llama_cpp
    machine = hardware()
    features = ", ".join(machine["instructions"]) or "no vector instructions known"
    print(
        f"{machine['processor']} ({features}), one thread, products of training in {resolve_precision('auto', 'cpu')}"
    )
    name = re.sub(r"\W+", "-", f"{machine['processor']} {' '.join(machine['instructions'])}").strip("-").lower()
    path = RESULTS / f"{name}.json"
    before = json.loads(path.read_text())["ratios"] if path.exists() else {}
    began, ratios, rows = time.perf_counter(), {}, []
    for suite in suites.values():
        for case in suite():
            ratios[case[0]] = rounds = measured(case, arguments.rounds)
            change = flag(rounds, before.get(case[0]))
            rows.append([case[0], f"{statistics.median(rounds):.2f}", f"{rounds[0]:.2f} to {rounds[-1]:.2f}", change])
            print(": ".join(rows[-1][:2]), file=sys.stderr, flush=True)
    print(markdown(["ours / peer", "times as fast", "rounds", "beside the stored run"], rows))
    print("\n".join(loss_changes(arguments.model) if arguments.model else []))
    if arguments.store:
        record = provenance(configuration={"rounds": arguments.rounds}, wall_seconds=time.perf_counter() - began)
        RESULTS.mkdir(parents=True, exist_ok=True)
        earlier = {} if arguments.only == list(SUITES) else before  # a whole run replaces the record
        kept = {"provenance": record, "ratios": {**earlier, **ratios}}
        write_text_atomically(path, json.dumps(kept, indent=1) + "\n")
    return any(row[-1] == "slower" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
