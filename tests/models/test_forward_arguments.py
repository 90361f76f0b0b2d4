"""What transformers' models take in `forward` and `generate` is honoured by ours, or refused by name."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parametrize
from transformers import DynamicCache, GPT2Config

from tessera.base.errors import TesseraError
from tessera.data.tokenizers import byte_tokenizer
from tessera.inspection import recall_weights
from tessera.memories.pair_memory import PairMemory
from tessera.models.armt import ARMTConfig, ARMTForCausalLM
from tessera.models.linear_attention import LinearAttentionConfig, LinearAttentionForCausalLM
from tessera.models.memory_mosaic import MemoryMosaicConfig, MemoryMosaicForCausalLM
from tessera.models.memory_mosaic_v2 import MemoryMosaicV2Config, MemoryMosaicV2ForCausalLM
from tests.tolerances import REORDERED_FLOAT64

SIZES = {"vocab_size": 270, "hidden_size": 16, "num_layers": 2, "num_heads": 2}
NONE = {"bos_token_id": None, "eos_token_id": None, "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}
GPT2 = GPT2Config(vocab_size=270, n_embd=16, n_layer=2, n_head=2, n_positions=32, **NONE)
V2 = {"intermediate_size": 24, "short_term_span": 4, "long_term_delay": 3, "training_long_term_delay": [3, 3]}
MAKE = {
    "v1": lambda: MemoryMosaicForCausalLM(MemoryMosaicConfig(**SIZES, num_persistent_slots=8)),
    "v2": lambda: MemoryMosaicV2ForCausalLM(MemoryMosaicV2Config(**SIZES, **V2)),
    "armt": lambda: ARMTForCausalLM(ARMTConfig(base_config=GPT2, segment_size=8, num_memory_tokens=2, memory_dim=4)),
}
STACKS = ["v1", "v2"]


@pytest.fixture(params=MAKE)
def model(request):
    return make(request.param)


def make(name):
    model = MAKE[name]().double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def tokens(batch=2, steps=12):
    return torch.randint(1, 270, (batch, steps))


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=REORDERED_FLOAT64, atol=REORDERED_FLOAT64)


# PEFT, quantised and changed heads


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


class EightBit(nn.Module):
    """A head whose weight is stored in eight bits, as quantisation leaves it."""

    def __init__(self, head):
        super().__init__()
        self.scale = head.weight.detach().abs().max() / 127
        self.weight = nn.Parameter((head.weight.detach() / self.scale).round().to(torch.int8), requires_grad=False)
        self.in_features, self.out_features, self.bias = head.in_features, head.out_features, None

    def forward(self, hidden):
        return hidden @ (self.weight.to(hidden.dtype) * self.scale).T


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
        model.set_output_embeddings(EightBit(model.get_output_embeddings()))
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


# Keywords


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"output_router_logits": True}, "output_router_logits must be left out: there are no experts"),
        ({"is_causal": False}, "is_causal must be True; got False"),
        ({"cu_seq_lens_q": torch.tensor([0, 12])}, "cu_seq_lens_q must be left out"),
        ({"atention_mask": None}, "unknown argument 'atention_mask'. Did you mean 'attention_mask'"),
        (
            {"past_key_values": DynamicCache()},
            "past_key_values must be what an earlier call returned; got DynamicCache",
        ),
        ({"logits_to_keep": -1}, "logits_to_keep must be 0 \\(all\\) or positive; got -1"),
        ({"attention_mask": torch.ones(2, 13)}, r"attention_mask must be \(2, 12\) of zeros and ones.*; got \(2, 13\)"),
        ({"attention_mask": torch.ones(2, 1, 12, 12)}, "attention_mask must be"),
        ({"attention_mask": torch.full((2, 12), -1e9)}, r"attention_mask must hold zeros and ones; got \[-1"),
        ({"attention_mask": torch.full((2, 12), 2)}, r"attention_mask must hold zeros and ones; got \[2\]"),
        ({"labels": torch.full((2, 12), -1)}, r"labels must lie in 0\.\.269 \(vocab_size\) or be -100; got -1"),
        ({"labels": torch.full((2, 12), 270)}, "labels must lie in .*; got 270"),
        ({"labels": torch.ones(2, 11, dtype=torch.long)}, r"labels must be \(2, 12\); got \(2, 11\)"),
        ({"labels": torch.ones(2, 12)}, "labels must be integers; got torch.float32"),
        ({"inputs_embeds": torch.ones(2, 12, 16)}, "input_ids or inputs_embeds must be given; got both"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(model, keywords, message):
    with pytest.raises(TesseraError, match=message):
        model(tokens(), **keywords)


def test_labels_of_fewer_bits_are_the_same_labels(model):
    ids = tokens()
    close(model(ids, labels=ids.int()).loss, model(ids, labels=ids).loss)


def test_keywords_that_ask_for_nothing_pass(model):
    ids = tokens()
    logits = model(ids, output_attentions=False, output_router_logits=None, is_causal=True).logits
    close(logits, model(ids).logits)


def test_ids_of_another_shape_are_refused(model):
    with pytest.raises(TesseraError, match=r"input_ids must be \(B, T\)"):
        model(tokens()[0])


@pytest.mark.parametrize("name", STACKS)
def test_arguments_of_stacks(name):
    model, ids = make(name), tokens()
    past = model(ids, use_cache=True).past_key_values
    for keywords, message in [
        ({"document_ids": torch.zeros(2, 13, dtype=torch.long)}, r"document_ids must be \(2, 12\)"),
        ({"position_ids": torch.zeros(2, 13, dtype=torch.long)}, "position_ids must be"),
        ({"past_key_values": past, "attention_mask": torch.ones(2, 12)}, r"attention_mask must be \(2, 24\)"),
        ({"past_key_values": past, "cache_position": torch.arange(12)}, "cache_position must count on from 12"),
        ({"logits_to_keep": torch.ones(2, 2)}, "logits_to_keep must be a number or a 1-d tensor"),
    ]:
        with pytest.raises(TesseraError, match=message):
            model(ids, **keywords)
    model(ids, past_key_values=past, cache_position=torch.arange(12, 24))
    close(model(ids, logits_to_keep=torch.tensor([1, 5])).logits, model(ids).logits[:, [1, 5]])


def test_arguments_of_segmented_models():
    model, ids = make("armt"), tokens()
    cache = model(ids, use_cache=True).past_key_values
    hidden = torch.ones(2, 24)
    hidden[1, 15] = 0
    for keywords, message in [
        ({"position_ids": torch.arange(12)[None] % 7}, r"count on by 1: documents \(TRL's packing=True\) need"),
        ({"labels_mask": torch.ones(2, 12)}, "it is called loss_mask"),
        ({"logits_to_keep": torch.tensor([1])}, "logits_to_keep must be a number"),
        ({"past_key_values": cache, "attention_mask": torch.ones(2, 12)}, r"attention_mask must be \(2, 24\)"),
        ({"past_key_values": cache, "attention_mask": hidden}, "must be one for tokens after a cache; got zeros"),
    ]:
        with pytest.raises(TesseraError, match=message):
            model(ids, **keywords)
    model(ids, past_key_values=cache, attention_mask=torch.ones(2, 24))


@pytest.mark.parametrize("name", STACKS)
def test_positions_that_start_again_separate_documents(name):
    model, ids = make(name), tokens()
    starts = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3])[None]
    documents = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2]).expand(2, -1)
    kernels = {"cu_seq_lens_q": torch.tensor([0, 5, 8, 12]), "max_length_q": 5}  # as collators of packed texts add
    actual = model(ids, position_ids=starts, labels=ids, **kernels)
    expected = model(ids, document_ids=documents, labels=ids)
    close(actual.logits, expected.logits)
    close(actual.loss, expected.loss)
    assert (actual.logits - model(ids).logits).abs().max() > 1e-3
    # Cut inside a document and at its border.
    for cut in (3, 5, 7):
        first = model(ids[:, :cut], position_ids=starts[:, :cut], use_cache=True)
        second = model(ids[:, cut:], position_ids=starts[:, cut:], past_key_values=first.past_key_values)
        if cut != 5:  # at a border nothing tells positions 0, 1, ... from those of a text that goes on
            close(second.logits, expected.logits[:, cut:])
    one = model(ids, position_ids=torch.arange(12)[None], labels=ids, **kernels)
    close(one.logits, model(ids).logits)


# Hidden states


def test_hidden_states_of_every_layer(model):
    ids = tokens(2, 11)
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    output = model(ids, mask, output_hidden_states=True)
    assert len(output.hidden_states) == 3
    assert all(hidden.shape == (2, 11, 16) for hidden in output.hidden_states)
    embeddings = model.get_input_embeddings()(ids)
    if not isinstance(model, ARMTForCausalLM):  # which adds positions
        close(output.hidden_states[0], embeddings)
    close(model.get_output_embeddings()(output.hidden_states[-1])[:, :9], output.logits[:, :9])
    padded = model(ids, mask.flip(1), output_hidden_states=True)
    close(model.get_output_embeddings()(padded.hidden_states[-1])[:, 2:], padded.logits[:, 2:])
    assert (output.hidden_states[1] - output.hidden_states[0]).abs().max() > 1e-3
    assert model(ids).hidden_states is None
    model.config.output_hidden_states = True
    assert model(ids).hidden_states is not None


# Recall weights


@pytest.mark.parametrize("name", STACKS)
def test_attentions_are_the_recall_weights_of_every_memory(name):
    model, ids = make(name), tokens(2, 9)
    output = model(ids, output_attentions=True)
    assert torch.equal(output.logits, model(ids).logits)
    assert model(ids).attentions is None
    assert len(output.attentions) == 4
    for row in range(2):
        recalls = recall_weights(model, ids[row : row + 1], range(9))
        for weights, recall in zip(output.attentions, recalls, strict=True):
            close(weights[row], recall.weights)
    assert {weights.shape for weights in output.attentions} == {(2, 2, 9, 8)}  # 8 complete pairs; v1 has 8 slots
    sums = output.attentions[0].sum(-1)
    close(sums[:, :, 1:], torch.ones_like(sums[:, :, 1:]))
    assert not sums[:, :, 0].any()  # the first token finds an empty memory
    first = model(ids[:, :6], use_cache=True)
    rest = model(ids[:, 6:], past_key_values=first.past_key_values, output_attentions=True)
    close(rest.attentions[0], output.attentions[0][:, :, 6:])
    made = model.generate(ids, max_new_tokens=2, do_sample=False, output_attentions=True, return_dict_in_generate=True)
    assert [len(step) for step in made.attentions] == [4, 4]


@pytest.mark.parametrize("name", STACKS)
def test_attentions_have_gradients_and_no_dropout(name):
    model = make(name).train()
    for module in model.modules():
        module.weight_dropout = 0.5
    output = model(tokens(), output_attentions=True, labels=tokens())
    sums = output.attentions[0][:, :, 1:].sum(-1)
    close(sums, torch.ones_like(sums))
    output.attentions[0].square().sum().backward()
    keys = next(module for module in model.modules() if isinstance(module, PairMemory)).key_extractor.projection
    assert keys.weight.grad.abs().max() > 0
    model.model.layers[0].gradient_checkpointing = True
    with pytest.raises(TesseraError, match="output_attentions must be False with gradient checkpointing"):
        model(tokens(), output_attentions=True)


def test_attentions_are_refused_where_there_are_none():
    linear = LinearAttentionForCausalLM(LinearAttentionConfig(vocab_size=270, hidden_size=16))
    with pytest.raises(TesseraError, match="output_attentions must be False; got True. Its memories are matrices"):
        linear(tokens(), output_attentions=True)
    with pytest.raises(TesseraError, match="output_attentions must be False where GPT2LMHeadModel gives none"):
        make("armt")(tokens(), output_attentions=True)


# generate


def test_stop_strings_and_caches_of_other_models(model):
    tokenizer, ids = byte_tokenizer(), tokens(1, 4)
    options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 0}
    text = model.generate(ids, max_new_tokens=9, **options)[0, 4:]
    printable = next(i for i, token in enumerate(text.tolist()) if token < 128)
    stopped = model.generate(ids, max_new_tokens=9, stop_strings=[chr(text[printable])], tokenizer=tokenizer, **options)
    assert stopped.shape[1] == 4 + printable + 1
    with pytest.raises(TesseraError, match="got DynamicCache"):
        model.generate(ids, max_new_tokens=4, past_key_values=DynamicCache(), **options)


# Padding


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_the_loss_of_padded_rows_is_that_of_the_rows_alone(name, side):
    model, ids = make(name), tokens(2, 12)
    mask = torch.ones_like(ids)
    mask[1, slice(0, 5) if side == "left" else slice(7, 12)] = 0
    row = ids[1:, 5:] if side == "left" else ids[1:, :7]
    expected = (11 * model(ids[:1], labels=ids[:1]).loss + 6 * model(row, labels=row).loss) / 17
    close(model(ids, mask, labels=torch.where(mask.bool(), ids, -100)).loss, expected)
    close(model(ids, mask, labels=ids).loss, expected)  # padding does not count, whatever its labels are


@pytest.mark.parametrize("name", STACKS)
def test_zeros_of_the_mask_count_in_a_continuation_too(name):
    model, ids = make(name), tokens(2, 12)
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    mask[1, 7] = 0
    for with_first in (True, False):  # whether the first part has padding
        mask[0, :2] = 0 if with_first else 1
        expected = model(ids, mask).logits
        assert (expected - model(ids).logits)[1, 8:].abs().max() > 1e-3
        for cuts in ((6,), (7,), (8,), (5, 7, 8, 10)):
            past, actual, borders = None, [], [0, *cuts, 12]
            for start, end in itertools.pairwise(borders):
                output = model(ids[:, start:end], mask[:, :end], past_key_values=past, use_cache=True)
                past = output.past_key_values
                actual.append(output.logits)
            close(torch.cat(actual, 1)[mask.bool()], expected[mask.bool()])


@pytest.mark.parametrize("name", STACKS)
def test_a_row_goes_on_behind_padding_on_its_right(name):
    model, ids = make(name), tokens(2, 12)
    mask = torch.ones_like(ids)
    mask[1, 5:8] = 0
    past = model(ids[:, :8], mask[:, :8], use_cache=True).past_key_values
    expected = model(ids, mask).logits[:, 8:]
    close(model(ids[:, 8:], mask, past_key_values=past).logits, expected)
    close(model(ids[:, 8:], past_key_values=past).logits, expected)


# Memories


def test_an_empty_memory_is_stored(tmp_path):
    model = make("armt")
    empty = model.empty_memory(1)
    empty.save(tmp_path / "memory")
    loaded = type(empty).load(tmp_path / "memory")
    assert all(torch.equal(tensor, loaded.tensors()[name]) for name, tensor in empty.tensors().items())


# Targets that were shifted before


@pytest.mark.parametrize("name", [*STACKS, "armt"])
def test_shifted_labels_are_the_targets_themselves(name):
    model, ids = make(name), tokens(2, 12)
    mask = torch.ones_like(ids)
    mask[1, 8:] = 0
    documents = (torch.arange(12) >= 5).long().expand(2, -1)
    shifted = nn.functional.pad(ids[:, 1:], (0, 1), value=-100)
    for keywords in ({}, {"attention_mask": mask}, *([{"document_ids": documents}] if name in STACKS else [])):
        expected = model(ids, labels=ids, **keywords).loss
        close(model(ids, labels=torch.full_like(ids, 7), shift_labels=shifted, **keywords).loss, expected)
        close(model(ids, shift_labels=shifted, **keywords).loss, expected)
    # The last step of a part has a target in the next one.
    targets = torch.cat([ids[:, 1:], ids[:, :1]], 1)
    output = model(ids, shift_labels=targets)
    close(output.loss, cross_entropy(output.logits.flatten(0, 1), targets.flatten()))
    with pytest.raises(TesseraError, match="must lie in 0..269"):
        model(ids, shift_labels=targets + 300)


@pytest.mark.parametrize("name", STACKS)
def test_gradients_reach_attentions_and_hidden_states(name):
    """By the chain rule: moving a recall weight by little moves the loss by its gradient."""
    model, ids = make(name), tokens()
    output = model(ids, labels=ids, output_attentions=True, output_hidden_states=True)
    assert torch.equal(output.logits, model(ids).logits)
    for tensor in (*output.attentions, *output.hidden_states):
        tensor.retain_grad()
    output.loss.backward()
    assert all(tensor.grad is not None and tensor.grad.abs().max() > 0 for tensor in output.hidden_states)
    assert all(tensor.grad is not None and tensor.grad.abs().max() > 0 for tensor in output.attentions)
    recorded = {key: parameter.grad.clone() for key, parameter in model.named_parameters()}
    model.zero_grad()
    model(ids, labels=ids).loss.backward()
    for key, parameter in model.named_parameters():
        close(recorded[key], parameter.grad)
