"""What takes logits and labels from a model by its class gets from ours what it gets from GPT-2; also changed heads."""

import copy

import pytest
import torch
from accelerate import cpu_offload
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parametrize
from transformers import Trainer, TrainingArguments
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tessera.models.registry import strict_configs
from tests.models.armt.bases import BASES
from tests.models.contract import CASES, tokens, without_dropout
from tests.models.three_models import MAKE, make
from tests.models.three_models import tokens as small_tokens
from tests.refusals import refused
from tests.tolerances import close

SMOOTHING = 0.1
NAMES = ["v1 published", "v2 gaussian", "linear attention gla", "armt around gpt2", "rmt around gpt2"]
NAMES += ["prmt around memory_mosaic", "lstm"]


@pytest.fixture(params=["gpt2", *NAMES])
def model(request):
    return BASES["gpt2"]().eval() if request.param == "gpt2" else CASES[request.param].build().float()


def trainer_of(model, folder, trainer_class=Trainer, **options):
    quiet = {"report_to": [], "use_cpu": True, "disable_tqdm": True}
    functions = {name: options.pop(name) for name in ("compute_loss_func", "train_dataset") if name in options}
    return trainer_class(model, TrainingArguments(str(folder), **quiet, **options), **functions)


def smoothed(logits, targets):
    log_probabilities = logits.log_softmax(-1)
    true = -log_probabilities.gather(-1, targets[..., None])[..., 0]
    return ((1 - SMOOTHING) * true - SMOOTHING * log_probabilities.mean(-1)).mean()


@pytest.mark.filterwarnings("ignore:fan_in_fan_out:UserWarning")  # peft's word on GPT-2
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")  # peft asks by the old name
@pytest.mark.parametrize("is_adapted", [False, True])
def test_smoothed_labels_are_those_of_the_next_token(model, is_adapted, tmp_path):
    ids = tokens()
    if is_adapted and model.config.model_type != "lstm":
        peft = pytest.importorskip("peft")
        adapter = peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", r=2)
        model = peft.get_peft_model(model, adapter).eval()
    with torch.no_grad():
        logits = model(input_ids=ids).logits
        trainer = trainer_of(model, tmp_path, label_smoothing_factor=SMOOTHING)
        loss = trainer.compute_loss(model, {"input_ids": ids, "labels": ids.clone()})
    torch.testing.assert_close(loss, smoothed(logits[:, :-1], ids[:, 1:]))


def test_a_loss_function_of_the_users_own(model, tmp_path):
    """The Trainer keeps the labels from the model and hands them to the function with its output."""

    def loss_of(output, labels, num_items_in_batch=None):
        return cross_entropy(output.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

    ids = tokens()
    trainer = trainer_of(without_dropout(model).train(), tmp_path, compute_loss_func=loss_of)
    torch.manual_seed(3)  # for the delays that v2 draws in training
    loss = trainer.compute_loss(model, {"input_ids": ids, "labels": ids.clone()})
    torch.manual_seed(3)
    torch.testing.assert_close(loss, model(ids, labels=ids).loss)


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_function_that_no_model_would_call_is_refused(name):
    """transformers' own models call it in place of theirs."""
    message = "loss_function must be the model's own; got cross_entropy. Give it to the Trainer"
    refused(message, setattr, CASES[name].build(), "loss_function", cross_entropy)


def test_every_model_is_known_by_its_name():
    """lm-eval, pipelines and the Trainer ask so."""
    for config in strict_configs():
        assert MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type] == MODEL_FOR_CAUSAL_LM_MAPPING[config].__name__


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
@pytest.mark.parametrize("steps", [15, 40])  # fewer and more than the hidden size
@pytest.mark.parametrize("name", ["v1 published", "v1 convolution", "v2 gaussian", "linear attention retnet"])
def test_every_adapter_acts_and_learns_and_merging_changes_nothing(name, steps):
    peft = pytest.importorskip("peft")
    model, ids = CASES[name].build(), tokens(1, steps)
    config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", r=2, init_lora_weights=False)
    adapted = peft.get_peft_model(model, config).train()
    adapted(input_ids=ids, labels=ids).loss.backward()
    gradients = {name: p.grad for name, p in adapted.named_parameters() if p.requires_grad}
    assert len(gradients) > 10
    assert not [name for name, gradient in gradients.items() if gradient is None or not gradient.abs().max() > 0]
    with torch.no_grad():
        before = adapted.eval()(input_ids=ids).logits
        merged = adapted.merge_and_unload()
        torch.testing.assert_close(merged(ids).logits, before)


class EightBits(torch.nn.Module):
    """A linear layer whose weight is stored in eight bits."""

    def __init__(self, linear):
        super().__init__()
        self.scale = linear.weight.detach().abs().max() / 127
        rounded = (linear.weight.detach() / self.scale).round()
        self.weight = torch.nn.Parameter(rounded.to(torch.int8), requires_grad=False)
        self.in_features, self.out_features, self.bias = linear.in_features, linear.out_features, linear.bias

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight.to(x.dtype) * self.scale, self.bias)


@torch.no_grad()
@pytest.mark.parametrize("name", ["v1 published", "v1 convolution", "v2 gaussian", "linear attention retnet"])
def test_layers_of_eight_bits(name):
    """Every linear layer replaced; many steps, so that no fast path is left out."""
    model, ids = CASES[name].build(), tokens(2, 40)
    expected = model(ids).logits
    for parent in list(model.modules()):
        for key, child in list(parent.named_children()):
            if type(child) is torch.nn.Linear:
                setattr(parent, key, EightBits(child))
    output = model(ids, labels=ids)
    assert 0 < (output.logits - expected).abs().mean() < 0.1 * expected.std()
    torch.testing.assert_close(output.loss, cross_entropy(output.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()))


@torch.no_grad()
@pytest.mark.filterwarnings(
    "ignore:.*torch.ao.quantization:DeprecationWarning", "ignore:torch.quantize_per_tensor:UserWarning"
)
@pytest.mark.parametrize("name", ["v1 published", "v2 gaussian", "linear attention gla", "armt around gpt2"])
def test_dynamic_quantisation(name):
    model, ids = CASES[name].build().float(), tokens(2, 40)
    expected = model(ids).logits
    logits = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear})(ids).logits
    assert 0 < (logits - expected).abs().mean() < 0.1 * expected.std()


@pytest.mark.parametrize("name", NAMES)
def test_what_was_read_in_inference_mode_goes_on_where_gradients_flow(name):
    model, ids = CASES[name].build(), tokens()
    expected = model(ids).logits[:, 9:]
    with torch.inference_mode():
        state = model(ids[:, :9], use_cache=True).past_key_values
    logits = model(ids[:, 9:], past_key_values=state).logits
    torch.testing.assert_close(logits, expected)
    logits.sum().backward()


@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_was_called_with_other_weights_can_be_copied(name):
    """MAML and GradMem call it so; what it remembers of its weights must not be theirs."""
    model, ids = CASES[name].build(), tokens()
    expected = model(ids, use_cache=True).logits
    weights = {name: 1.1 * weight for name, weight in model.named_parameters()}
    others = torch.func.functional_call(model, weights, (ids,), {"use_cache": True}).logits
    assert not torch.equal(others, expected)
    copied = copy.deepcopy(model)
    assert torch.equal(copied(ids, use_cache=True).logits, expected)


@pytest.mark.parametrize("name", NAMES)
def test_weights_offloaded_by_accelerate(name):
    model, ids = CASES[name].build(), tokens()
    expected = model(ids).logits
    if name.startswith(("armt", "rmt", "prmt")):
        offloaded = cpu_offload(copy.deepcopy(model), execution_device=torch.device("cpu"))
        refused(r"the memory must stay where it is computed; got .* Offload the base", offloaded, ids)
        cpu_offload(model.base, execution_device=torch.device("cpu"))
    else:
        cpu_offload(model, execution_device=torch.device("cpu"))
    torch.testing.assert_close(model(ids).logits, expected)


@pytest.fixture(params=MAKE)
def stack_or_armt(request):
    return make(request.param)


class TwiceLinear(nn.Linear):
    """A linear layer that does more, as subclasses may."""

    def forward(self, hidden):
        return 2 * super().forward(hidden)


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


@pytest.mark.filterwarnings("ignore")  # peft's own
@pytest.mark.parametrize("change", ["eight bits", "adapter", "hook", "parametrization", "method", "subclass"])
def test_a_changed_head_is_asked_itself(stack_or_armt, change):
    ids = small_tokens()
    if change == "eight bits":
        stack_or_armt.set_output_embeddings(EightBits(stack_or_armt.get_output_embeddings()))
    elif change == "adapter":
        peft = pytest.importorskip("peft")
        config = peft.LoraConfig(target_modules=["lm_head"], init_lora_weights=False)
        assert peft.get_peft_model(stack_or_armt, config).generate(ids, max_new_tokens=2).shape == (2, 14)
    else:  # with weights of its own, which the embeddings do not share
        stack_or_armt.set_output_embeddings(copy.deepcopy(stack_or_armt.get_output_embeddings()))
        head = stack_or_armt.get_output_embeddings()
        if change == "hook":
            head.register_forward_hook(lambda module, arguments, output: 2 * output)
        elif change == "parametrization":
            parametrize.register_parametrization(head, "weight", Doubled())
        elif change == "subclass":
            head.__class__ = TwiceLinear
        else:
            forward = head.forward
            head.forward = lambda hidden: 2 * forward(hidden)
    output = stack_or_armt(ids, labels=ids)
    expected = cross_entropy(output.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    close(output.loss, expected)
    close(stack_or_armt.train()(ids, labels=ids, skip_logits=True).loss, expected)
