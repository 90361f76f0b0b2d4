"""Documents: what is stored at their borders, and what goes on from one call to the next."""

from types import SimpleNamespace

import torch

from tessera.memories.documents import continued_carry, continued_documents, stored_documents


def test_a_pair_whose_next_step_is_another_document_is_not_stored():
    # Document 0 comes back: the pair at its first border must not be seen from there.
    steps = torch.tensor([[0, 0, 1, 1, 0], [-1, -1, 2, 2, 2]])
    assert stored_documents(steps).tolist() == [[0, -1, 1, -1], [-1, -1, 2, 2]]


def test_the_average_goes_on_only_within_a_document():
    state = SimpleNamespace(carry=torch.ones(2, 1, 3), document=torch.tensor([[4], [5]]))
    carry = continued_carry(state, torch.tensor([[4, 4], [6, 6]]))
    assert carry[:, 0, 0].tolist() == [1.0, 0.0]
    assert continued_carry(state, None) is state.carry
    assert continued_carry(None, None) is None


def test_steps_without_documents_continue_the_last_one():
    state = SimpleNamespace(carry=None, document=torch.tensor([[4], [5]]))
    assert continued_documents(torch.zeros(2, 3, 1), state, None).tolist() == [[4, 4, 4], [5, 5, 5]]
    assert continued_documents(torch.zeros(2, 3, 1), None, None) is None
