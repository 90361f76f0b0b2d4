"""The loss is the first output, and logits of a training step are there when somebody looks."""

import copy
import pickle

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils import _pytree as pytree
from transformers import Trainer

from tessera.base.errors import TesseraError
from tessera.models.lazy_logits import LazyLogits
from tests.covering import each_value
from tests.models.contract import CASES, tokens, without_dropout
from tests.models.test_companions import trainer_of

STACKS = ["v1 published", "v2 distant", "linear attention gla", "armt around gpt2", "rmt around gpt2"]


@pytest.fixture(params=STACKS)
def model(request):
    model = CASES[request.param].build().train()
    if "v2" in request.param:
        model.config.training_long_term_delay = (4, 4)  # nothing is drawn
        model.config.long_term_delay = 4
    return without_dropout(model)


def test_the_loss_comes_first(model):
    ids = tokens()
    for training in (True, False):
        expected = model.train(training)(ids, labels=ids, skip_logits=True).loss
        for keywords in ({}, {"return_dict": False}, {"return_dict": True, "use_cache": True}):
            output = model(ids, labels=ids, **keywords)
            torch.testing.assert_close(output[0], expected)
        model.config.return_dict = False
        output = model(ids, labels=ids)
        model.config.return_dict = True
        assert isinstance(output, tuple)
        assert output[1].shape == (*ids.shape, model.config.vocab_size)


WAYS = {
    "attribute": lambda output: output.logits,
    "key": lambda output: output["logits"],
    "index": lambda output: output[1],
    "slice": lambda output: output[:2][1],
    "get": lambda output: output.get("logits"),
    "tuple": lambda output: output.to_tuple()[1],
    "dictionary": lambda output: dict(output)["logits"],
    "keywords": lambda output: (lambda logits, **others: logits)(**output),
    "copy": lambda output: copy.copy(output).logits,
    "pickle": lambda output: pickle.loads(pickle.dumps(pytree.tree_map(torch.detach, _looked_at(output)))).logits,
    "rebuilt from items": lambda output: type(output)(dict(output.items())).logits,
    "rebuilt from a pytree": lambda output: pytree.tree_map(lambda leaf: leaf, output).logits,
}


def _looked_at(output):
    assert output.logits is not None
    return output


@each_value(model=STACKS, way=WAYS.keys(), indirect=["model"])
def test_logits_of_a_training_step(model, way):
    ids = tokens()
    logits = WAYS[way](model(ids, labels=ids))
    torch.testing.assert_close(logits, model.eval()(ids).logits)
    assert logits.requires_grad or way == "pickle"


def test_logits_are_not_made_before_somebody_looks(model, monkeypatch):
    ids, calls, value = tokens(), [], LazyLogits.value
    monkeypatch.setattr(LazyLogits, "value", lambda lazy: calls.append(1) or value(lazy))
    output = model(ids, labels=ids)
    output.loss.backward()
    assert (output[0], output.keys(), output.past_key_values) is not None
    assert not calls
    assert output.logits is output.logits
    assert len(calls) == 1


def test_logits_that_the_loss_did_not_keep_are_refused():
    """Of segments without labels, and of heads that are more than a product."""
    model, ids = CASES["armt around gpt2"].build().train(), tokens()
    labels = ids.clone()
    labels[:, :-2] = -100
    scaled = CASES["armt around memory_mosaic"].build().train()
    scaled.base.config.logit_scale = 0.5
    for output in (model(ids, labels=labels), scaled(ids, labels=ids)):
        output.loss.backward()
        with pytest.raises(TesseraError, match="skip_logits=False"):
            output.logits  # noqa: B018
    assert model(ids, labels=labels, logits_to_keep=2).logits.shape[1] == 2


def test_logits_of_changed_weights_are_refused(model):
    ids = tokens()
    output = model(ids, labels=ids)
    output.loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    with pytest.raises(TesseraError, match="Read output.logits before the optimizer's step"):
        output.logits  # noqa: B018


class OwnLoss(Trainer):
    """As its documentation writes it: labels go to the model too, and logits are read from its output."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        loss = cross_entropy(outputs.logits[:, :-1].flatten(0, 1), inputs["labels"][:, 1:].flatten())
        torch.testing.assert_close(loss, outputs["loss"], rtol=1e-2, atol=1e-2)
        return (loss, outputs) if return_outputs else loss


@each_value(model=STACKS, bf16=[False, True], indirect=["model"])
def test_a_trainer_with_a_loss_of_its_own(model, tmp_path, bf16):
    rows = [{"input_ids": row, "labels": row} for row in tokens(8)]
    weight = model.float().get_input_embeddings().weight
    before = weight.detach().clone()
    options = {"max_steps": 2, "per_device_train_batch_size": 4, "save_strategy": "no", "bf16": bf16}
    trainer = trainer_of(model, tmp_path, train_dataset=rows, trainer_class=OwnLoss, **options)
    trainer.train()
    assert not torch.equal(weight.detach(), before)
