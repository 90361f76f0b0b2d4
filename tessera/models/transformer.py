"""The baseline: a GPT-2-sized transformer from the transformers library, with a choice of positions.

Every choice has learned query, key, value and output matrices with biases, a feed-forward network of four times the
width, pre-norm blocks in sequence and a tied lm_head, so that they differ in positions alone (BLOOM also
normalises the embeddings):

| positions | transformers model | reference |
|---|---|---|
| absolute | GPT-2 | learned position embeddings, Radford et al. 2019 |
| rope | GPT-NeoX, rotary on all dimensions, sequential residual | Su et al. 2021 |
| alibi | BLOOM | Press et al. 2021 |
"""

from typing import Any

from transformers import BloomConfig, GPT2Config, GPTNeoXConfig, PreTrainedConfig

from tessera.base.dataclass_io import is_count
from tessera.base.errors import expect
from tessera.models.causality import learned_positions
from tessera.models.sizes import meta_model

POSITIONS = ("absolute", "rope", "alibi")
_LIMITS: dict[tuple[str, int], int | None] = {}  # by model type and what it states; a large model takes a second


def transformer_config(
    *,
    positions: str = "absolute",
    hidden_size: int = 768,
    num_layers: int = 12,
    num_heads: int = 12,
    intermediate_size: int | None = None,
    vocab_size: int = 50257,
    max_positions: int = 1024,
    dropout: float = 0.0,
    tie_word_embeddings: bool = True,
    bos_token_id: int | None = None,
    eos_token_id: int | None = None,
    pad_token_id: int | None = None,
) -> PreTrainedConfig:
    """Configuration of the baseline; `AutoModelForCausalLM.from_config` builds the model.

    `positions`: absolute (learned, GPT-2), rope (rotary, GPT-NeoX) or alibi (BLOOM). `max_positions` is the longest
    context of absolute positions (the others have none). `dropout` acts on attention weights, residual and embeddings,
    as far as the model has these places. Raises `TesseraError` naming the argument.
    """
    where = "transformer"
    expect(positions in POSITIONS, where, "positions", "be one of " + ", ".join(POSITIONS), repr(positions))
    for name, value in (("hidden_size", hidden_size), ("num_layers", num_layers), ("num_heads", num_heads)):
        expect(is_count(value), where, name, "be a positive integer", repr(value))
    expect(hidden_size % num_heads == 0, where, "num_heads", f"divide hidden_size ({hidden_size})", num_heads)
    even = positions != "rope" or hidden_size // num_heads % 2 == 0
    expect(even, where, "hidden_size / num_heads", "be even for rope", hidden_size // num_heads)
    expect(0 <= dropout < 1, where, "dropout", "lie in [0, 1)", dropout)
    inner = intermediate_size or 4 * hidden_size
    shared: dict[str, Any] = {  # names that all three know
        "hidden_size": hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "vocab_size": vocab_size,
        "tie_word_embeddings": tie_word_embeddings,
        "bos_token_id": bos_token_id,
        "eos_token_id": eos_token_id,
        "pad_token_id": pad_token_id,
    }
    if positions == "absolute":
        dropouts = dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), dropout)
        return GPT2Config(n_inner=inner, n_positions=max_positions, **dropouts, **shared)
    shared |= dict.fromkeys(("attention_dropout", "hidden_dropout"), dropout)
    if positions == "rope":
        return GPTNeoXConfig(
            intermediate_size=inner,
            hidden_act="gelu_new",
            max_position_embeddings=max_positions,
            use_parallel_residual=False,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
            **shared,
        )
    expected = f"be 4 hidden_size ({4 * hidden_size}) for alibi"
    expect(inner == 4 * hidden_size, where, "intermediate_size", expected, inner)
    return BloomConfig(**shared)


def context_limit(config: PreTrainedConfig) -> int | None:
    """The longest sequence that a model of `config` can read: the number of learned positions; None: no limit."""
    if hasattr(config, "n_positions") or not hasattr(config, "max_position_embeddings"):
        return getattr(config, "n_positions", None)
    known = (config.model_type, config.max_position_embeddings)
    if known not in _LIMITS:
        _LIMITS[known] = learned_positions(meta_model(config))
    return _LIMITS[known]


def expect_positions(config: PreTrainedConfig, tokens: int, where: str, what: str, advice: str = "") -> None:
    """Raise `TesseraError` where `what` has more tokens than the learned positions; "{}" in `advice` are these."""
    longest = context_limit(config)
    needed = f"be at most {longest}, the positions that this {config.model_type} has learned"
    expect(longest is None or tokens <= longest, where, what, needed, tokens, advice.format(longest))
