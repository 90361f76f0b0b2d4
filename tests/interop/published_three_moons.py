"""Weights of the published three moons code as our memory. (It predicts positions, not tokens: no `from_reference`.)"""

import torch
from torch import Tensor

from tessera.interop.published import Published, check_arguments, refuse
from tessera.memories.linear_contextual import LinearContextualMemory

SOURCE = "three-moons"
ARGUMENTS = {
    "input_dim": 6,
    "n_head": 3,
    "h_dim": 2,
    "bias": False,
    "block_size": 800,
    "v_shift": 1,
    "v_ban": 0,
    "complex": True,
    "norm_keys": False,
    "scale_keys": False,
    "norm_vals": False,
    "attn_scale": 50,
    "out_proj": True,
    "out_sum": False,
    "emb": False,
}
NORM_EPS = 1e-3
MATRICES = {"emb": "embedding", "k_lin": "key_extractor", "v_lin": "value_extractor", "out_proj": "output"}


def three_moons(
    state_dict: dict[str, Tensor], arguments: dict, dtype: torch.dtype = torch.float32
) -> LinearContextualMemory:
    """`ContextMemory` of facebookresearch/MemoryMosaics, ThreeMoons, computing in `dtype`; in eval mode.

    Raises `TesseraError`: an unknown argument or one that our memory does not express, a missing or unexpected tensor.
    """
    arguments = check_arguments(SOURCE, arguments, ARGUMENTS)
    _check(arguments)
    memory = LinearContextualMemory(
        arguments["input_dim"],
        arguments["n_head"],
        arguments["h_dim"],
        complex_numbers=arguments["complex"],
        inverse_bandwidth=float(arguments["attn_scale"] or 1.0),
        norm_eps=NORM_EPS if arguments["norm_keys"] else None,
        learned_scale=arguments["scale_keys"],
        embedding_dim=arguments["n_head"] * arguments["h_dim"] if arguments["emb"] else None,
        output="sum" if arguments["out_sum"] else "projection",
        delay=1 + arguments["v_ban"],
        dtype=dtype,
    )
    precise = {name: tensor.detach().double() for name, tensor in state_dict.items()}
    memory.load_state_dict(convert(precise, arguments))
    return memory.eval()


def convert(state_dict: dict[str, Tensor], arguments: dict) -> dict[str, Tensor]:
    """Our parameters as a differentiable function of the published ones."""
    arguments = check_arguments(SOURCE, arguments, ARGUMENTS)
    published = Published(SOURCE, state_dict)
    result = {}
    present = {"emb": arguments["emb"], "k_lin": True, "v_lin": True, "out_proj": not arguments["out_sum"]}
    for theirs in (name for name, there in present.items() if there):
        weight = published.take(f"{theirs}.weight")
        result[f"{MATRICES[theirs]}.weight"] = complex_from_blocks(weight) if arguments["complex"] else weight
    if arguments["scale_keys"]:
        result["log_key_scale"] = published.take("k_scale").squeeze(0)
    published.finish()
    return result


def complex_from_blocks(weight: Tensor) -> Tensor:
    """The complex matrix (out, in) nearest to a real one (2 out, 2 in) that acts on (real, imaginary) pairs.

    A 2 x 2 block [[a, b], [-b, a]] multiplies by `a - i b`; any other block is projected onto that form.
    """
    blocks = weight.unflatten(0, (-1, 2)).unflatten(-1, (-1, 2))
    diagonal = (blocks[:, 0, :, 0] + blocks[:, 1, :, 1]) / 2
    crossed = (blocks[:, 0, :, 1] - blocks[:, 1, :, 0]) / 2
    return torch.complex(diagonal, -crossed)


def _check(arguments: dict) -> None:
    if arguments["v_shift"] != 1:
        raise refuse(SOURCE, "v_shift", "1", arguments["v_shift"])
    if arguments["bias"]:
        raise refuse(SOURCE, "bias", "False", True)
    if arguments["norm_keys"] != arguments["norm_vals"]:
        raise refuse(SOURCE, "norm_keys", "norm_vals", arguments["norm_keys"])
    if arguments["out_proj"] == arguments["out_sum"]:
        raise refuse(SOURCE, "out_proj", "the opposite of out_sum", arguments["out_proj"])
