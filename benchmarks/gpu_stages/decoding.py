"""Stage `decoding`: tokens one by one behind long contexts, against the equal transformer with its cache."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from benchmarks.gpu_stages.models import build, pair
from benchmarks.gpu_stages.settings import Settings
from benchmarks.gpu_stages.timing import milliseconds
from tessera.base.state import State

# Logits of order one, computed in bfloat16.
TOLERANCE = 0.15


def cases(settings: Settings) -> dict[str, Callable[[], dict]]:
    """v1 against GPT-2 and v2 against Llama at 1k, 16k and 128k."""
    return {
        f"{name}, context {context}": partial(compare, settings, name, context)
        for name in ("v1", "v2")
        for context in settings.pick((1024, 16_384, 131_072), (10,))
    }


@torch.inference_mode()
def compare(settings: Settings, name: str, context: int) -> dict:
    """Milliseconds per token in bfloat16; `ratio` > 1: faster than the transformer."""
    tokens = settings.pick(32, 2)
    configs = pair(settings, name, context + tokens + 1)
    models = {kind: build(settings, config).eval().to(settings.dtype) for kind, config in configs.items()}
    error = decoding_error(settings, models["mosaic"])
    ids = torch.randint(0, configs["mosaic"].vocab_size, (1, context), device=settings.device)
    runs = {kind: generation(model, ids, tokens) for kind, model in models.items()}
    times = milliseconds(settings, runs, budget=8.0)
    return {
        "milliseconds_per_token": {kind: time / tokens for kind, time in times.items()},
        "ratio": times["transformer"] / times["mosaic"],
        "deviation": error,
    }


def generation(model: nn.Module, ids: torch.Tensor, tokens: int) -> Callable[[], None]:
    """`tokens` greedy steps behind `ids`, which were read before."""
    read = model(input_ids=ids[:, :-1], use_cache=True, logits_to_keep=1).past_key_values

    def generate() -> None:
        state, token = read, ids[:, -1:]
        for _ in range(tokens):
            output = model(input_ids=token, past_key_values=state, use_cache=True)
            state, token = output.past_key_values, output.logits[:, -1:].argmax(dim=-1)
        if not isinstance(read, State):
            read.crop(-tokens)  # a transformer's cache is changed in place: back to the context

    return generate


def decoding_error(settings: Settings, model: nn.Module) -> float:
    """Largest difference of logits between a whole forward pass and its last steps taken one by one."""
    length = settings.pick(300, 12)
    ids = torch.randint(0, model.config.vocab_size, (1, length), device=settings.device)
    expected = model(input_ids=ids).logits[:, length // 2 :].float()
    output, stepwise = model(input_ids=ids[:, : length // 2], use_cache=True), []
    for step in range(length // 2, length):
        output = model(input_ids=ids[:, step : step + 1], past_key_values=output.past_key_values, use_cache=True)
        stepwise.append(output.logits.float())
    error = (torch.cat(stepwise, dim=1) - expected).abs().max().item()
    if not error <= TOLERANCE:
        raise ArithmeticError(f"decoding is off the whole forward pass by {error:.2g} (allowed {TOLERANCE})")
    return error
