"""A GPT-2 of transformers as a GGUF file, and decoding it with llama.cpp.

Needs `pip install llama-cpp-python gguf` (its archive is compiled for this processor).
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.language_models import NEW_TOKENS

NAMES = {
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


def write(model: nn.Module, path: Path) -> None:
    """The GPT-2 `model` with matrices in Q8_0 and the rest in float32; its tokens are named by their numbers."""
    from gguf import GGMLQuantizationType, GGUFWriter, quants

    config, writer = model.config, GGUFWriter(path, "gpt2")
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(4 * config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"<{number}>" for number in range(config.vocab_size)])
    writer.add_token_types([1] * config.vocab_size)
    writer.add_token_merges(["< 0"])  # a list without any is refused

    def add(name: str, values: torch.Tensor) -> None:
        numbers = values.detach().float().contiguous().numpy()
        if numbers.ndim == 1 or name.startswith("position"):
            writer.add_tensor(name, numbers)
        else:
            eight_bit = quants.quantize(np.ascontiguousarray(numbers), GGMLQuantizationType.Q8_0)
            writer.add_tensor(name, eight_bit, raw_dtype=GGMLQuantizationType.Q8_0)

    body = model.transformer
    add("token_embd.weight", body.wte.weight)
    add("position_embd.weight", body.wpe.weight)
    for name, parameter in body.ln_f.named_parameters():
        add(f"output_norm.{name}", parameter)
    for index, block in enumerate(body.h):
        for theirs, ours in NAMES.items():
            for kind, parameter in block.get_submodule(theirs).named_parameters():
                add(f"blk.{index}.{ours}.{kind}", parameter.T if parameter.dim() == 2 else parameter)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def decoding(path: Path, vocab_size: int, context: int) -> tuple[Callable[[], None], Callable[[list[int]], np.ndarray]]:
    """`NEW_TOKENS` greedy tokens on one thread behind a context read beforehand; and the last logits of any tokens."""
    from llama_cpp import Llama

    options = {"n_threads": 1, "n_threads_batch": 1, "verbose": False, "logits_all": False}
    llama = Llama(str(path), n_ctx=context + NEW_TOKENS, **options)
    tokens = np.random.default_rng(0).integers(0, vocab_size, context).tolist()
    llama.eval(tokens[:-1])

    def last_logits(ids: list[int]) -> np.ndarray:
        llama.reset()
        llama.eval(ids)
        logits = np.ctypeslib.as_array(llama._ctx.get_logits(), shape=(vocab_size,)).copy()
        llama.reset()
        llama.eval(tokens[:-1])
        return logits

    def generate() -> None:
        llama.n_tokens, token = context - 1, tokens[-1]  # `eval` forgets what lies behind
        for _ in range(NEW_TOKENS):
            llama.eval([token])
            token = int(np.ctypeslib.as_array(llama._ctx.get_logits(), shape=(vocab_size,)).argmax())

    return generate, last_logits
