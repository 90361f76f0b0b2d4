"""States in training mode: a text in parts is the text, with its gradients, and can be cut off between parts."""

import pytest
import torch

from tessera.models.carried_state import detached, read_on, state_name
from tests.memory_files.models import MAKERS, make


def read(model, ids, state):
    """Logits and state; a segmented model ends its segment, and hands on its memory."""
    if state_name(model) == "memory_state":
        output = model(ids, memory_state=state)
        return output.logits, output.memory_state
    return read_on(model, ids, state)


@pytest.mark.parametrize("kind", MAKERS)
def test_parts_of_a_text_in_training(kind):
    model, ids = make(kind).train(), torch.randint(0, 256, (1, 24))
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    if kind == "v2":
        model.config.training_long_term_delay = (4, 4)
    embeddings = model.get_input_embeddings().weight
    whole = model(ids).logits
    expected = torch.autograd.grad(whole[:, 16:].square().mean(), embeddings)[0]

    def in_parts(cut=lambda state: state):
        parts, state = [], None
        for part in ids.split(8, 1):
            logits, state = read(model, part, state)
            parts.append(logits)
            state = cut(state)
        return torch.cat(parts, 1)

    through = in_parts()
    torch.testing.assert_close(through, whole, rtol=1e-4, atol=1e-5)
    gradient = torch.autograd.grad(through[:, 16:].square().mean(), embeddings)[0]
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-6)
    truncated = in_parts(detached)
    torch.testing.assert_close(truncated, whole, rtol=1e-4, atol=1e-5)
    only_last = torch.autograd.grad(truncated[:, 16:].square().mean(), embeddings)[0]
    rows = torch.tensor(list(set(ids[0, :16].tolist()) - set(ids[0, 16:].tolist())))
    assert torch.isfinite(only_last).all()
    if model.get_output_embeddings() is None or model.get_output_embeddings().weight is not embeddings:
        assert not only_last[rows].any(), "nothing flows into parts before"
        assert gradient[rows].any()
    with torch.no_grad():
        torch.testing.assert_close(in_parts(), whole, rtol=1e-4, atol=1e-5)
