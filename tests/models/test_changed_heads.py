"""Adapters, quantised and otherwise changed output embeddings are asked themselves."""

import copy

import pytest
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parametrize

from tests.models.test_companions import EightBits
from tests.models.three_models import MAKE, close, make, tokens


@pytest.fixture(params=MAKE)
def model(request):
    return make(request.param)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")  # peft asks by the old name
@pytest.mark.filterwarnings("ignore:Model has .tie_word_embeddings:UserWarning")
def test_peft_as_its_documentation_writes_it(model):
    peft = pytest.importorskip("peft")
    ids, expected = tokens(), model(tokens(1, 3)).logits.shape
    config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["lm_head"], r=2)
    adapted = peft.get_peft_model(model, config)
    assert adapted(input_ids=tokens(1, 3)).logits.shape == expected
    adapted.train()
    adapted(input_ids=ids, labels=ids).loss.backward()
    gradients = {n: p.grad for n, p in adapted.named_parameters() if p.requires_grad}
    assert any("lora_B" in name and gradient.abs().max() > 0 for name, gradient in gradients.items())
    assert adapted.generate(input_ids=ids, attention_mask=ids > 0, max_new_tokens=2).shape == (2, 14)


class TwiceLinear(nn.Linear):
    """A linear layer that does more, as subclasses may."""

    def forward(self, hidden):
        return 2 * super().forward(hidden)


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


@pytest.mark.parametrize("change", ["eight bits", "hook", "parametrization", "method", "subclass"])
def test_a_changed_head_is_asked_itself(model, change):
    ids = tokens()
    if change == "eight bits":
        model.set_output_embeddings(EightBits(model.get_output_embeddings()))
    else:  # with weights of its own, which the embeddings do not share
        model.set_output_embeddings(copy.deepcopy(model.get_output_embeddings()))
        head = model.get_output_embeddings()
        if change == "hook":
            head.register_forward_hook(lambda module, arguments, output: 2 * output)
        elif change == "parametrization":
            parametrize.register_parametrization(head, "weight", Doubled())
        elif change == "subclass":
            head.__class__ = TwiceLinear
        else:
            forward = head.forward
            head.forward = lambda hidden: 2 * forward(hidden)
    output = model(ids, labels=ids)
    expected = cross_entropy(output.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    close(output.loss, expected)
    close(model.train()(ids, labels=ids, skip_logits=True).loss, expected)
