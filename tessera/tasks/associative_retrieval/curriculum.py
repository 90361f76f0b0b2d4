"""Training by a curriculum: each stage starts from the best of the last one and ends at its target exact match."""

import copy
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from tessera.tasks.associative_retrieval.generator import RetrievalTask
from tessera.tasks.associative_retrieval.metrics import exact_match


@dataclass(frozen=True)
class Stage:
    """Train on `min_pairs` to `max_pairs` pairs (drawn per batch) until `target` exact match at `max_pairs`.

    Attributes:
        max_pairs, min_pairs, key_size: the samples. target: exact match on held-out samples at which the stage ends.
        share: of the remaining CPU time; what a stage does not use goes to the later ones.
        lr: peak learning rate, reached after `warmup` steps.
    """

    max_pairs: int
    min_pairs: int = 1
    key_size: int = 1
    target: float = 0.99
    share: float = 1.0
    lr: float = 2e-3
    warmup: int = 20


@dataclass(frozen=True)
class TrainingOptions:
    """What all stages share (ARMT, appendix A.5, with a smaller batch of more questions to the same memory)."""

    batch: int = 16
    questions: int = 8
    weight_decay: float = 1e-3
    clip_value: float = 1.0
    check_every: int = 25
    check_samples: int = 500
    seed: int = 0


def predictor(model: nn.Module, task: RetrievalTask) -> Callable[[Tensor], Tensor]:
    """Greedy answers of `model`, a language model whose segments hold one pair each."""

    @torch.no_grad()
    def predict(prompts: Tensor) -> Tensor:
        was_training = model.training
        model.eval()
        model.config.segment_size = task.segment_size
        logits = model(input_ids=prompts, logits_to_keep=1).logits
        model.train(was_training)
        return logits[:, -1].argmax(-1)

    return predict


def train(
    model: nn.Module,
    task_name: str,
    stages: list[Stage],
    options: TrainingOptions,
    seconds: float,
    log: Callable[[dict], None],
) -> list[dict]:
    """Train `model` in place through all `stages` in `seconds` of CPU time; returns (and logs) one record per stage."""
    generator = torch.Generator().manual_seed(options.seed)
    records, end = [], time.process_time() + seconds
    for number, stage in enumerate(stages):
        limit = (end - time.process_time()) * stage.share / sum(later.share for later in stages[number:])
        record = _train_stage(model, RetrievalTask(task_name, stage.key_size), stage, options, limit, generator)
        log(record)
        records.append(record)
    return records


def answer_loss(model: nn.Module, context: Tensor, questions: Tensor) -> Tensor:
    """Cross entropy of the answers: contexts (B, T) are read once, all questions (B, Q, t) asked of their memory."""
    memory = model(input_ids=context, skip_logits=True).memory_state
    tokens = questions.flatten(0, 1)
    labels = torch.full_like(tokens, -100)
    labels[:, -1] = tokens[:, -1]
    # With a cache the questions' segments stay open: nothing of them is written.
    asked = memory.repeat_batch(questions.shape[1])
    return model(input_ids=tokens, labels=labels, memory_state=asked, use_cache=True).loss


def _train_stage(model, task: RetrievalTask, stage: Stage, options: TrainingOptions, limit: float, generator) -> dict:
    model.train()
    model.config.segment_size = task.segment_size
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=stage.lr, weight_decay=options.weight_decay)
    started, step, best, weights = time.process_time(), 0, -1.0, None
    while True:
        for group in optimizer.param_groups:
            group["lr"] = stage.lr * min(1.0, (step + 1) / stage.warmup)
        pairs = int(torch.randint(stage.min_pairs, stage.max_pairs + 1, (), generator=generator))
        loss = answer_loss(model, *task.sample_questions(pairs, options.batch, options.questions, generator))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(parameters, options.clip_value)
        optimizer.step()
        step += 1
        seconds = time.process_time() - started
        if step % options.check_every and seconds < limit:
            continue
        share = exact_match(predictor(model, task), task, stage.max_pairs, options.check_samples, seed=step)
        if share > best:
            best, weights = share, copy.deepcopy(model.state_dict())
        if share >= stage.target or seconds >= limit:
            break
    model.load_state_dict(weights)
    return {**asdict(stage), "steps": step, "seconds": round(seconds, 1), "loss": loss.item(), "exact_match": best}
