"""Small models of several families, and ways to wrap them."""

import copy

import torch
import transformers as hf

import tessera.armt as armt
from tessera.models.memory_mosaic import MemoryMosaicConfig, MemoryMosaicForCausalLM
from tests.tolerances import REORDERED_FLOAT64

ROTARY = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
ROTARY |= {"intermediate_size": 48, "max_position_embeddings": 64}
ROTARY |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
GPT2 = {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
MOSAIC = {"vocab_size": 60, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "num_persistent_slots": 8}
GROUPED = {**ROTARY, "num_key_value_heads": 2, "head_dim": 8}
BASES = {
    "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2, bos_token_id=None, eos_token_id=None, pad_token_id=0)),
    "gpt_neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**ROTARY)),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED)),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**{k: v for k, v in GROUPED.items() if k != "head_dim"})),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**GROUPED)),
    "memory_mosaic": lambda: MemoryMosaicForCausalLM(MemoryMosaicConfig(**MOSAIC)),
}
WRAPS = {"armt": lambda base, **o: armt.wrap(base, memory_dim=4, **o), "rmt": armt.wrap_rmt, "prmt": armt.wrap_prmt}
KINDS = list(WRAPS)


def make(kind="armt", family="gpt2", segment_size=8, num_memory_tokens=3, **options):
    """A small wrapped model in float64 whose memory matters from the start; one that was made before is copied."""
    made = repr((kind, family, segment_size, num_memory_tokens, options))
    if made not in _MADE:
        _MADE[made] = _make(kind, family, segment_size, num_memory_tokens, options), torch.get_rng_state()
    model, state = _MADE[made]
    torch.set_rng_state(state)
    return copy.deepcopy(model)


_MADE = {}


def _make(kind, family, segment_size, num_memory_tokens, options):
    torch.manual_seed(1)
    base = BASES[family]()
    model = WRAPS[kind](base, segment_size=segment_size, num_memory_tokens=num_memory_tokens, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.double().eval()


def is_greedy(model, text, begin):
    """Whether each token of `text` from `begin` on is the likeliest behind those before it, read as a whole."""
    return torch.equal(text[:, begin:], model(text).logits[:, begin - 1 : -1].argmax(-1))


def tokens(batch, steps, vocabulary=60):
    """Random tokens, none of them the padding 0."""
    return torch.randint(1, vocabulary, (batch, steps))


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=REORDERED_FLOAT64, atol=REORDERED_FLOAT64)


def same_memory(actual, expected):
    for name, tensor in expected.tensors().items():
        close(actual.tensors()[name], tensor)
