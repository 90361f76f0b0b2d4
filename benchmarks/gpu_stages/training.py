"""Stage `training`: tokens per second of training steps, against the equal transformer. Targets: 0.8 x, 0.75 x."""

from collections.abc import Callable
from functools import partial

import torch

from benchmarks.gpu_stages.models import build, pair
from benchmarks.gpu_stages.settings import Settings
from benchmarks.gpu_stages.timing import ceilings, milliseconds
from tessera.models.sizes import count_parameters, flops_per_token

TARGETS = {"v1": 0.8, "v2": 0.75}
TOKENS = 32_768


def cases(settings: Settings) -> dict[str, Callable[[], dict]]:
    """Two models at two contexts, compiled; and as they are, since compilation is where surprises are."""
    return {
        f"{name}, context {context}, {'compiled' if compiled else 'eager'}": partial(
            compare, settings, name, context, compiled
        )
        for name in TARGETS
        for context in settings.pick((512, 4096), (12,))
        for compiled in (True, False)
    }


def compare(settings: Settings, name: str, context: int, compiled: bool) -> dict:
    """Forward, backward and AdamW under bfloat16 autocast; `ratio` > 1: faster than the transformer."""
    batch = settings.pick(TOKENS // context, 2)
    configs = pair(settings, name, context)
    losses: dict[str, list[torch.Tensor]] = {kind: [] for kind in configs}
    steps = {
        kind: training_step(settings, config, (batch, context), compiled, losses[kind])
        for kind, config in configs.items()
    }
    times = milliseconds(settings, steps, budget=10.0)
    for kind, seen in losses.items():
        assert all(loss.isfinite() for loss in seen), f"{kind} has a loss that is not finite"
        assert len(seen) < 4 or seen[-1] < seen[0], f"{kind} does not learn its one batch"
    tokens = batch * context
    # The backward pass costs twice the forward.
    teraflops = {kind: 3 * flops_per_token(config, context) * tokens / 1e12 for kind, config in configs.items()}
    ceiling = ceilings(settings)["bf16_teraflops"]
    return {
        "batch": batch,
        "parameters": {kind: count_parameters(config) for kind, config in configs.items()},
        "tokens_per_second": {kind: 1000 * tokens / time for kind, time in times.items()},
        "share_of_bf16_products": {kind: teraflops[kind] / times[kind] * 1000 / ceiling for kind in times},
        "ratio": times["transformer"] / times["mosaic"],
        "target": TARGETS[name],
    }


def training_step(
    settings: Settings, config, shape: tuple[int, int], compiled: bool, losses: list[torch.Tensor]
) -> Callable[[], None]:
    """One optimiser step on a fixed batch; its loss is appended to `losses`, on the device."""
    model = build(settings, config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, config.vocab_size, shape, device=settings.device)
    forward = torch.compile(model, backend=settings.pick("inductor", "eager")) if compiled else model

    def step() -> None:
        with torch.autocast(settings.device.type, torch.bfloat16):
            loss = forward(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())

    return step
