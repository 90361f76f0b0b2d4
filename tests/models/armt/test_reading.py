"""Laws of reading segment by segment, for all three models and all families of base models."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from tessera.models.recurrence import random_segments
from tessera.models.recurrence.base_model import layer_list
from tests.covering import each_value, some
from tests.models.armt.bases import KINDS, PAIRS, SOME, WRAPS, make, same_memory, tiny, tokens
from tests.refusals import refused
from tests.tolerances import REORDERED_FLOAT64, close


@some(
    ("kind", "family", "side"),
    [(*pair, side) for pair in PAIRS for side in ("right", "left")],
    by_default=[(*pair, side) for pair, side in zip(SOME, ("right", "left", "right", "left"))],
)
def test_a_batch_of_uneven_rows_is_its_rows_alone(kind, family, side):
    model, lengths = make(kind, family), [21, 8, 3, 16, 9, 1, 20, 17]
    ids, mask = torch.zeros(8, 21, dtype=torch.long), torch.zeros(8, 21, dtype=torch.long)
    rows = [tokens(1, length)[0] for length in lengths]
    places = [slice(0, n) if side == "right" else slice(21 - n, 21) for n in lengths]
    for i, row in enumerate(rows):
        ids[i, places[i]], mask[i, places[i]] = row, 1
    labels = torch.where(mask.bool(), ids, -100)
    output = model(ids, mask, labels=labels)
    alone = [model(row[None], labels=row[None]) for row in rows]
    for i, single in enumerate(alone):
        close(output.logits[i : i + 1, places[i]], single.logits)
        same_memory(output.memory_state.select_batch(torch.tensor([i])), single.memory_state)
    losses = sum(single.loss * (n - 1) for single, n in zip(alone, lengths) if n > 1)
    close(output.loss, losses / sum(n - 1 for n in lengths))


@torch.no_grad()
def test_uneven_rows_under_autocast():
    """Rows of which some have ended: logits of the first segments are written as float32, of the last as bfloat16."""
    model, ids = make().float(), tokens(2, 19)
    mask = torch.ones_like(ids)
    mask[1, 13:] = 0
    expected = model(ids, mask).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = model(ids, mask).logits
    assert 0 < (actual - expected)[mask.bool()].abs().mean() < 0.02 * expected.std()


@pytest.mark.parametrize("kind", KINDS)
def test_uneven_rows_have_the_gradients_of_the_rows_alone(kind):
    model, ids = make(kind), tokens(2, 19)
    mask = torch.ones_like(ids)
    mask[1, :14] = 0  # at its left: what stands at its right has no influence, even if it is read
    model(ids, mask, labels=torch.where(mask.bool(), ids, -100), num_items_in_batch=1).loss.backward()
    together = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    for row in (ids[:1], ids[1:, 14:]):
        model(row, labels=row, num_items_in_batch=1).loss.backward()
    alone = [p.grad for p in model.parameters() if p.grad is not None]
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10 * max(1.0, b.abs().max().item()))


def test_update_orders_agree_for_one_memory_token_only():
    ids = tokens(2, 29)
    for count, agree in ((1, True), (3, False)):
        one, other = (make(num_memory_tokens=count, update_order=o)(ids).logits for o in ("parallel", "sequential"))
        assert torch.allclose(one, other, rtol=REORDERED_FLOAT64) is agree


def test_random_numbers_of_segments():
    ids, generator = tokens(2, 43), torch.Generator().manual_seed(0)
    drawn = [random_segments(ids, 8, generator, least=2) for _ in range(200)]
    assert {part.shape[1] for part in drawn} == {16, 24, 32, 40}
    assert all(torch.equal(part, ids[:, -part.shape[1] :]) for part in drawn)
    refused(r"least and most must lie in 1\.\.5; got \(1, 6\)", random_segments, ids, 8, most=6)


@pytest.mark.parametrize("kind", KINDS)
def test_truncation_lets_gradients_through_the_last_segments_only(kind):
    model, ids = make(kind), tokens(1, 32)
    embeddings = model.get_input_embeddings()(ids).detach()

    def reached(segments):
        model.config.backprop_segments = segments
        leaf = embeddings.clone().requires_grad_()
        mask = torch.zeros_like(ids, dtype=torch.bool)
        mask[:, -3] = True
        model(inputs_embeds=leaf, labels=ids, loss_mask=mask).loss.backward()
        return [bool(part.abs().max() > 0) for part in leaf.grad.split(8, 1)]

    assert reached(None) == [True] * 4
    assert reached(4) == [True] * 4
    assert reached(2) == [False, False, True, True]
    assert reached(1) == [False, False, False, True]


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "llama", "qwen2", "qwen3"])
def test_the_last_feed_forward_network_computes_memory_tokens_alone(family):
    model, ids, seen = make("armt", family), tokens(2, 16), []
    layer_list(model.base, None)[-1].mlp.register_forward_hook(
        lambda module, args, output: seen.append(args[0].shape[1])
    )
    with torch.no_grad():
        model(ids)
        model(ids, skip_logits=True)
    model(ids, skip_logits=True)
    assert seen == [11, 11, 3, 3, 11, 11]


def test_an_exception_leaves_nothing_behind():
    model, ids = make(), tokens(1, 20)
    expected = model(ids).logits
    broken = model.base.transformer.h[1].layer.mlp.register_forward_hook(lambda *_: (_ for _ in ()).throw(RuntimeError))
    with pytest.raises(RuntimeError):
        model(ids)
    broken.remove()
    close(model(ids).logits, expected)
    plain = model.base(ids[:, :8]).logits  # outside of a reading the base is itself, without any memory
    close(plain, model(ids[:, :8]).logits)


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox"])
def test_an_open_segment_under_gradient_checkpointing_is_refused(family):
    """Bases of transformers keep no cache then, and questions in an open segment need it."""
    model = make("armt", family).train()
    (getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable)()
    refused("gradient checkpointing it keeps none. Turn one of the two off", model, tokens(2, 20), use_cache=True)
    assert model(tokens(2, 20), labels=tokens(2, 20)).loss.requires_grad


@pytest.mark.parametrize("kind", KINDS)
def test_an_explicit_mask_of_labels_is_the_whole_say(kind):
    model, ids, mask = make(kind), tokens(2, 21), torch.ones(2, 21, dtype=torch.long)
    mask[1, 9:] = 0
    everything = torch.ones_like(ids)  # as in the published code
    assert (model(ids, mask, labels=ids, loss_mask=everything).loss - model(ids, mask, labels=ids).loss).abs() > 1e-3


@each_value(kind=KINDS, family=["gpt2", "memory_mosaic"])
def test_padding_that_is_never_read_counts_under_no_mask(kind, family):
    """Segments behind a row's last one: they added nothing to the sum, but to the number that it is divided by."""
    model, ids, mask = make(kind, family), tokens(2, 21), torch.ones(2, 21, dtype=torch.long)
    mask[1, 5:] = 0
    output = model(ids, mask, labels=ids, loss_mask=torch.ones_like(ids))
    was_read = output.logits[:, :-1].any(-1)
    assert was_read[1].sum() in (5, 8)  # with the padding of its segment of 8, where the base skips padding
    close(output.loss, cross_entropy(output.logits[:, :-1][was_read], ids[:, 1:][was_read]))


@each_value(
    kind_family={" ".join(pair): pair for pair in [("armt", "gpt2"), ("rmt", "llama"), ("armt", "memory_mosaic")]},
    alignment=["left", "right", "center"],
)
def test_hidden_states_of_uneven_rows_are_those_of_the_rows_alone(kind_family, alignment):
    model, ids = make(*kind_family, segment_alignment=alignment), tokens(3, 19)
    mask = torch.ones_like(ids)
    mask[1, 13:], mask[2, :10] = 0, 0
    with torch.no_grad():
        together = model(ids, mask, output_hidden_states=True, use_cache=True).hidden_states
        rows = [model(row, output_hidden_states=True).hidden_states for row in (ids[:1], ids[1:2, :13], ids[2:, 10:])]
    assert len(together) == 3
    for layer, *alone in zip(together, *rows):
        for i, (places, row) in enumerate(zip((slice(0, 19), slice(0, 13), slice(10, 19)), alone)):
            close(layer[i : i + 1, places], row)


@each_value(kind=KINDS, padding=[0, 7])
def test_retained_gradients_of_several_segments(kind, padding):
    """The first hidden states are the embeddings; the attention of the first segment is what the base's layer gave."""
    model, ids, mask, weights = make(kind, "llama"), tokens(2, 20), torch.ones(2, 20), []
    model.base.set_attn_implementation("eager")
    mask[1, :padding] = 0
    attention = model.base.model.layers[1].layer.self_attn
    attention.register_forward_hook(lambda module, inputs, output: weights.append(output[1]) or output[1].retain_grad())
    embeddings = model.get_input_embeddings()(ids).detach().requires_grad_()
    output = model(None, mask, embeddings, output_hidden_states=True, output_attentions=True)
    hidden, seen = output.hidden_states, output.attentions[1]
    for tensor in (*hidden, seen):
        tensor.retain_grad()
    after = (output.logits * mask[..., None]).square().sum()  # reaches the segments alone
    direct = (hidden[0] * mask[..., None]).square().sum() + seen.square().sum()
    for loss in (after, after + direct, after):
        loss.backward(retain_graph=True)
        close(hidden[0].grad * mask[..., None], embeddings.grad * mask[..., None])
        assert all(bool((tensor.grad[mask.bool()].abs().amax(-1) > 0).all()) for tensor in hidden)
        first = slice(model.config.num_memory_tokens * model.at_front, None)
        if not padding:
            close(seen.grad[:, :, :8, :8], weights[0].grad[:, :, first, first][:, :, :8, :8])


@pytest.mark.parametrize("kind", KINDS)
def test_attentions_are_the_bases_own_within_each_segment(kind):
    model, ids = make(kind), tokens(2, 20)
    refused('attn_implementation="eager"', model, ids, output_attentions=True)
    model.base.set_attn_implementation("eager")
    output = model(ids, output_attentions=True)
    assert [weights.shape for weights in output.attentions] == [(2, 4, 20, 20)] * 2
    sees = output.attentions[0][0, 0] > 0
    same = torch.arange(20)[:, None] // 8 == torch.arange(20)[None] // 8
    assert torch.equal(sees, same.tril())
    if kind == "armt":  # the first layer of the first segment reads no memory
        close(output.attentions[0][:, :, :8, :8], model.base(ids[:, :8], output_attentions=True).attentions[0])
    first = model(ids[:, :13], use_cache=True)
    rest = model(ids[:, 13:], past_key_values=first.past_key_values, output_attentions=True)
    close(rest.attentions[1], output.attentions[1][:, :, 13:])
    mask = torch.ones_like(ids)
    mask[1, :7] = 0
    padded = model(ids, mask, output_attentions=True).attentions[1]
    close(padded[1:, :, 7:, 7:], model(ids[1:, 7:], output_attentions=True).attentions[1])


def test_positions_that_count_on_say_nothing_new():
    model, ids = make(), tokens(2, 20)
    expected = model(ids).logits
    for first in (0, 5):
        close(model(ids, position_ids=torch.arange(first, first + 20)[None]).logits, expected)
    mask = torch.ones_like(ids)
    mask[1, :6] = 0
    positions = (mask.cumsum(1) - 1).masked_fill(mask == 0, 1)  # as `generate` makes them
    close(model(ids, mask, position_ids=positions).logits, model(ids, mask).logits)


@pytest.mark.parametrize("is_recurrent", [False, True])
@torch.no_grad()
def test_the_memory_of_a_shorter_row_is_that_of_the_row_alone(is_recurrent):
    """A window counts the padding before the memory tokens, and a recurrent state goes on through it."""
    base = tiny("qwen3_next") if is_recurrent else tiny("mistral", sliding_window=4)
    model = WRAPS["rmt"](base, segment_size=8, num_memory_tokens=2).eval()
    ids, mask = tokens(2, 11), torch.ones(2, 11, dtype=torch.long)
    mask[0, :4] = 0
    memory = model(ids, attention_mask=mask).memory_state.select_batch(torch.tensor([0])).tensors()
    alone = model(ids[:1, 4:]).memory_state.tensors()
    torch.testing.assert_close(memory, alone, rtol=1e-4, atol=1e-4)  # float32 sums
