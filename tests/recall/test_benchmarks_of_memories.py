"""What `benchmarks.long_decoding` and `benchmarks.support_sizes` measure is what they say."""

import pytest
import torch

from benchmarks.long_decoding import long_term_pairs, read_on, state_behind
from benchmarks.support_sizes import heaviest, quantiles
from tessera import MemoryMosaicV2Config, MemoryMosaicV2ForCausalLM
from tessera.recall import long_memories


@pytest.mark.usefixtures("small_blocks")
def test_a_token_behind_the_pairs_of_one_piece_is_that_of_the_whole_text(monkeypatch):
    """One piece, so that nothing of an earlier one is missing: through the index and by scanning."""
    config = MemoryMosaicV2Config(
        vocab_size=50, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=16, kernel="sparsemax"
    )
    model = MemoryMosaicV2ForCausalLM(config).eval()
    text = torch.randint(0, 50, (120,), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(text[None]).logits[0, -1]
    pairs = long_term_pairs(model, text[:100], 100)
    for shortest, together in ((1, 1), (1, 10), (1 << 62, 1)):
        monkeypatch.setattr(long_memories, "SHORTEST", shortest)
        times, state = read_on(
            model, state_behind(model, pairs, pairs[0][0].shape[2], text[:100]), text[100:-1], together
        )
        with torch.no_grad():
            logits = model(text[None, -1:], past_key_values=state).logits[0, -1]
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
        assert len(times) == -(-19 // together)


def test_the_heaviest_pairs_hold_the_share():
    weights = torch.tensor([[0.5, 0.0, 0.3, 0.2], [1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]])
    assert heaviest(weights, 0.75).tolist() == [2, 1, 3]
    found = quantiles(weights, 0.75)
    assert (found["with_weight"], found["with_share"]) == (3, 2)
    assert found["with_weight_90"] > 3
