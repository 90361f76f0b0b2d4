"""transformers' own Trainer trains the models as it trains any: they learn, and a resumed training ends the same."""

import shutil
from functools import partial

import pytest
import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, set_seed
from transformers.utils.generic import find_labels

from tessera import wrap
from tests.covering import some
from tests.models.armt.bases import make as wrapped
from tests.models.contract import CASES, v1, v2
from tests.tolerances import close


class Counting(Dataset):
    """Rows that count up from anywhere."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = (torch.arange(12) + index) % 20
        return {"input_ids": tokens, "labels": tokens}


SMALL = {"vocab_size": 20, "hidden_size": 16, "num_layers": 1, "num_heads": 2}
BUILD = {
    "v1": partial(v1, **SMALL, weight_dropout=0.1),
    "v2": partial(v2, **SMALL),
    "armt": lambda: wrap(v1(**SMALL, weight_dropout=0.1), memory_dim=4, segment_size=6, num_memory_tokens=2),
}


def trainer(name, folder, **options):
    set_seed(0)
    arguments = TrainingArguments(
        str(folder), max_steps=8, save_steps=4, per_device_train_batch_size=4, gradient_accumulation_steps=2,
        learning_rate=0.01, logging_steps=1, report_to="none", disable_tqdm=True, use_cpu=True, **options,
    )  # fmt: skip
    return Trainer(model=BUILD[name](), args=arguments, train_dataset=Counting())


@pytest.mark.parametrize("name", CASES)
def test_labels_are_the_only_argument_of_labels(name):
    """The Trainer evaluates nothing where another argument with labels in its name is left out."""
    assert find_labels(type(CASES[name].build())) == ["labels"]


@some("name", BUILD, by_default=["armt"])
def test_it_learns_and_resumes_to_the_same_bits(name, tmp_path):
    uninterrupted = trainer(name, tmp_path / "run")
    uninterrupted.train()
    losses = [line["loss"] for line in uninterrupted.state.log_history if "loss" in line]
    assert losses[-1] < losses[0] - 0.2
    rows = torch.stack([Counting()[index]["input_ids"] for index in range(len(Counting()))])
    with torch.no_grad():
        expected = uninterrupted.model.eval()(rows, labels=rows).loss.item()
    assert abs(uninterrupted.evaluate(Counting())["eval_loss"] - expected) < 1e-4
    shutil.rmtree(tmp_path / "run" / "checkpoint-8")
    resumed = trainer(name, tmp_path / "run")
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-4"))
    assert resumed.state.global_step == 8
    for (key, weight), other in zip(uninterrupted.model.named_parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(weight, other), key


PADDED = ("v1 published", "linear attention gla", "armt around memory_mosaic")


def padded(rows, side):
    """A batch as collators of transformers make it: padding is token 0 without a label."""
    width = max(map(len, rows))
    batch = {"input_ids": torch.zeros(len(rows), width, dtype=torch.long)}
    batch |= {"labels": torch.full((len(rows), width), -100), "attention_mask": torch.zeros(len(rows), width).long()}
    for number, row in enumerate(rows):
        place = slice(width - len(row), width) if side == "left" else slice(len(row))
        for name, value in (("input_ids", row), ("labels", row), ("attention_mask", torch.ones_like(row))):
            batch[name][number, place] = value
    return batch


@some("name", PADDED, by_default=["v1 published", "armt around memory_mosaic"])
def test_padding_changes_no_loss_of_the_trainer(name, tmp_path):
    """The Trainer counts the first token of a row behind padding, which nothing predicts, among the predictions."""
    model = CASES[name].build().double().train()
    rows = [torch.arange(length) % 7 + 1 for length in (9, 5, 3, 12)]
    counts = [len(row) - 1 for row in rows]
    expected = sum(model(row[None], labels=row[None]).loss * count for row, count in zip(rows, counts)) / sum(counts)
    run = Trainer(model=model, args=TrainingArguments(str(tmp_path), report_to="none", use_cpu=True))
    for side in ("left", "right"):
        batch = padded(rows, side)
        items = run._get_num_items_in_batch([batch], torch.device("cpu"))
        close(run.compute_loss(model, batch, num_items_in_batch=items), expected)
        close(model(**batch, num_items_in_batch=1).loss, expected * sum(counts))
    packed = torch.cat(rows)[None]
    if "armt" not in name:  # documents in one row: their first tokens are counted too
        documents = torch.cat([torch.full_like(row, number) for number, row in enumerate(rows)])[None]
        batch = {"input_ids": packed, "labels": packed, "document_ids": documents}
        close(model(**batch, num_items_in_batch=packed.shape[1] - 1).loss, expected)


UNMASKED = ("v1 published", "v2 gaussian", "linear attention gla", "lstm", "armt around gpt2", "rmt around gpt2")


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", [*UNMASKED, "prmt around gpt2"])
def test_padding_does_not_count_whatever_its_labels_are(name, side):
    if side == "left" and not CASES[name].pads_left:
        return
    model, rows = CASES[name].build(), [torch.arange(length) % 7 + 1 for length in (21, 9)]
    batch = padded(rows, side)
    labels = batch.pop("labels").clamp(min=1)
    alone = sum(model(row[None], labels=row[None]).loss * (len(row) - 1) for row in rows)
    same = torch.testing.assert_close if name == "lstm" else close  # whose losses are float32
    same(model(**batch, labels=labels).loss, alone / 28)
    same(model(**batch, labels=labels, num_items_in_batch=1).loss, alone)


@some("name", PADDED, by_default=["v1 published", "armt around memory_mosaic"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_batches_in_parts_are_one_where_the_first_label_behind_padding_is_left_out(name, side, tmp_path):
    """With it the Trainer's count says of no part how many of its labels nothing predicts: parts weigh by labels."""
    model = CASES[name].build().double().train()
    rows = [torch.arange(length) % 7 + 1 for length in (9, 5, 3, 12, 12, 4)]
    run = Trainer(model=model, args=TrainingArguments(str(tmp_path), report_to="none", use_cpu=True))

    def loss_and_gradients(parts):
        batches = [padded(part, side) for part in parts]
        for batch in batches:
            batch["labels"][torch.arange(len(batch["labels"])), batch["attention_mask"].argmax(1)] = -100
        items = run._get_num_items_in_batch(batches, torch.device("cpu"))
        loss = sum(run.compute_loss(model, batch, num_items_in_batch=items) for batch in batches)
        return loss, torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)

    close(loss_and_gradients([rows[:2], rows[2:3], rows[3:]]), loss_and_gradients([rows]))


@some("name", [name for name in CASES if name != "transformer"], by_default=["v1 published", "rmt around gpt2", "lstm"])
def test_a_step_without_labels_has_loss_zero_and_no_gradients(name, tmp_path):
    """Where all prompts of a step fill their rows: the Trainer counts no items and goes backward all the same.

    So does a part of a step in which others have labels.
    """
    model, ids = CASES[name].build().train(), torch.arange(12)[None] % 7 + 1
    batch = {"input_ids": ids, "labels": torch.full_like(ids, -100)}
    batch["labels"][:, 0] = 1  # is predicted by nothing
    run = Trainer(model=model, args=TrainingArguments(str(tmp_path), report_to="none", use_cpu=True))
    items = run._get_num_items_in_batch([batch], torch.device("cpu"))
    assert items == 0
    for count in (items, torch.tensor(7)):
        loss = run.compute_loss(model, batch, num_items_in_batch=count)
        loss.backward()
        assert loss == 0
        assert model.get_output_embeddings().weight.grad is not None
        assert not any(weights.grad.any() for weights in model.parameters() if weights.grad is not None)


def test_a_step_in_parts_is_charged_for_its_gates_once_and_one_without_labels_for_none():
    model = wrapped("armt", "memory_mosaic", segment_size=4, gate_penalty=5.0, strength_stretch=1.1).train()
    ids = torch.randint(1, 60, (4, 12))
    assert model(ids, labels=torch.full_like(ids, -100), num_items_in_batch=0).loss == 0
    at_once = model(ids, labels=ids, num_items_in_batch=4 * 11)
    assert at_once.penalty > 0.1
    parts = [model(rows, labels=rows, num_items_in_batch=4 * 11) for rows in (ids[:1], ids[1:])]
    assert sum(part.loss for part in parts).item() == pytest.approx(at_once.loss.item(), abs=1e-5)  # a float32 in it
    assert sum(part.penalty for part in parts).item() == pytest.approx(at_once.penalty.item(), abs=1e-5)
