"""ARMT's segments: the measured updates against the states themselves."""

import torch

import tessera
from tessera.inspection import Removal, find_sites, loss_of, recall_weights, trace
from tests.covering import each_value
from tests.inspection.models import IDS, build, gpt2, v1
from tests.refusals import refused


def wrapped(make, **options):
    model = make(build(gpt2()), segment_size=8, num_memory_tokens=2, **options).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.3)
    return model


@each_value(order=["parallel", "sequential"], correction=[True, False])
def test_armt(order, correction):
    model = wrapped(tessera.wrap, memory_dim=4, update_order=order, correction=correction)
    segments = trace(model, IDS).segments
    assert segments.written.shape == (4, 2)
    state = model.empty_memory(1)
    for index, part in enumerate(IDS.split(8, 1)):
        before, state = state, model(part, memory_state=state).memory_state
        torch.testing.assert_close(segments.norm[index], state.A[:, 0].flatten(1).norm(dim=1).detach())
        change = (state.A - before.A)[:, 0].flatten(1).norm(dim=1).detach()
        # the triangle inequality both ways: what was added is what was written less what was erased
        assert (change <= segments.written[index] + segments.erased[index] + 1e-4).all()
        assert (change >= (segments.written[index] - segments.erased[index]).abs() - 1e-4).all()
    assert segments.erased[0].abs().max() < 1e-6 or order == "sequential"
    assert (segments.read[0] == 0).all()
    assert (segments.read[1:] > 0).all()
    assert torch.equal(segments.gamma[0], torch.ones(2))
    assert (segments.gamma[1:] < 1).any() == correction
    assert segments.starts.tolist() == [0, 8, 16, 24]
    for index, part in enumerate(segments.reads.split(8)):
        torch.testing.assert_close(part.mean(0), segments.read[index])


def test_closed_gates_write_and_erase_nothing():
    model = wrapped(tessera.wrap, memory_dim=4, strength_stretch=0.1, gate_normalizer=True)
    torch.nn.init.constant_(model.memories[0].strength.bias, -40.0)
    torch.nn.init.constant_(model.memories[1].strength.bias, 40.0)
    segments = trace(model, IDS).segments
    for measured in (segments.written, segments.erased, segments.norm, segments.read):
        assert (measured[:, 0] == 0).all()
        assert (measured[1:, 1] > 0).all()


def test_without_an_association_memory_is_with_nothing_in_it():
    model = wrapped(tessera.wrap, memory_dim=4)
    done = trace(model, IDS)
    for layer in range(2):
        memory = done.memory(layer, "association")
        other = wrapped(tessera.wrap, memory_dim=4)
        torch.nn.init.zeros_(other.memories[layer].value.weight)
        torch.testing.assert_close(
            memory.loss_change, loss_of(other, IDS) - done.losses, rtol=0, atol=1e-5, equal_nan=True
        )
        assert memory.loss_change[9:].abs().max() > 1e-3
        assert memory.loss_change[1:8].abs().max() < 1e-6  # nothing is read in the first segment


def test_rmt_and_prmt():
    for make, layers in ((tessera.wrap_rmt, 1), (tessera.wrap_prmt, 2)):
        model = wrapped(make)
        segments = trace(model, IDS).segments
        assert segments.norm.shape == (4, layers)
        assert (segments.written > 0).all()
        assert segments.gamma.isnan().all()
        assert segments.reads is None


@each_value(kind=["wrap", "wrap_rmt", "wrap_prmt"], alignment=["left", "right", "center"])
def test_attention_inside_a_segment(kind, alignment):
    """Against the weights that eager attention returns, segment by segment."""
    make, front = getattr(tessera, kind), 0 if kind == "wrap" else 2
    model = wrapped(make, segment_alignment=alignment)
    recalls = recall_weights(model, IDS, queries=[28, 3, 13])
    starts = trace(model, IDS, removals="none").segments.starts.tolist() + [IDS.shape[1]]
    model.base.set_attn_implementation("eager")
    for layer, recall in enumerate(recalls):
        seen = []
        attention = model.base.transformer.h[layer].attn
        with attention.register_forward_hook(lambda module, arguments, output, seen=seen: seen.append(output[1][0])):
            model(IDS)
        for number, query in enumerate([28, 3, 13]):
            segment = next(index for index, end in enumerate(starts[1:]) if query < end)
            start, step = starts[segment], query - starts[segment] + front
            expected = seen[segment][:, step, : step + 1]
            pairs = [*range(-front, 0), *range(start, query + 1)]
            columns = [recall.pairs.tolist().index(pair) for pair in pairs]
            torch.testing.assert_close(recall.weights[:, number, columns], expected, rtol=0, atol=1e-5)
            assert recall.num_pairs[number] == len(pairs)


def test_a_mosaic_inside_armt():
    base = build(v1(num_layers=1))
    alone = recall_weights(base, IDS[:, :8], queries=range(8))
    model = tessera.wrap(base, segment_size=8, num_memory_tokens=2, memory_dim=4).eval()
    inside = recall_weights(model, IDS, queries=range(29))
    assert [recall.site.kind for recall in inside] == ["contextual", "persistent"]
    first = inside[0].pairs.tolist().index(0)
    torch.testing.assert_close(inside[0].weights[:, :8, first : first + 7], alone[0].weights, rtol=0, atol=1e-5)
    torch.testing.assert_close(inside[1].weights[:, :8], alone[1].weights, rtol=0, atol=1e-5)
    done = trace(model, IDS, removals="none").memory(0, "contextual")
    for query in range(29):
        pairs, weights = done.recalled(query, 0)
        assert set(pairs.tolist()) <= set(range(8 * (query // 8), query))
        assert weights.sum() > 0.98 or query % 8 == 0


def test_a_pair_is_taken_out_of_its_segment():
    model = wrapped(tessera.wrap_rmt)
    done = trace(model, IDS, removals="none", removed_pairs=[10, -1])
    full = loss_of(model, IDS)
    memory = done.memory(0, "attention")
    site = next(site for site in find_sites(model) if site.name == memory.name)
    for number, pair in enumerate((10, -1)):
        changed = loss_of(model, IDS, Removal(site, pair=pair))
        torch.testing.assert_close(memory.pair_loss_change[number, 1:], (changed - full)[1:])
    assert memory.pair_loss_change[0, 1:11].abs().max() < 1e-6
    assert memory.pair_loss_change[0, 11:].abs().max() > 1e-3
    assert memory.pair_loss_change[1, 1:8].abs().max() > 1e-3  # a memory token stands in front of every segment
    refused("pair must be stored by attention of layer 0; got 29", loss_of, model, IDS, Removal(site, pair=29))


def test_a_stored_memory():
    """A text behind a memory is the rest of a longer text."""
    model = wrapped(tessera.wrap, memory_dim=4)
    at_once = trace(model, IDS, queries=range(16, 29))
    state = model(IDS[:, :16]).memory_state
    rest = trace(model, IDS[:, 16:], state=state)
    torch.testing.assert_close(rest.losses[1:], at_once.losses[17:])
    for name in ("written", "erased", "read", "norm", "gamma"):
        torch.testing.assert_close(getattr(rest.segments, name), getattr(at_once.segments, name)[2:])
    torch.testing.assert_close(rest.segments.reads, at_once.segments.reads[16:])
    refused("memory_state", trace, model, IDS, state=wrapped(tessera.wrap_rmt).empty_memory(1))
