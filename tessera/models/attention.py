"""The kernels as attention of any model of transformers: `attn_implementation="tessera_biweight"`.

Attention is kernel regression whose pairs are the keys and values of a layer (Sparse Attention as Compact Kernel
Regression, section 2): the output is `sum_i w_i v_i` with `w = kernel.weights(scaling * q . k_i)`. With the Gaussian
kernel these weights are softmax's. Importing `tessera.models` registers the names in `ATTENTION_KERNELS` with
transformers' `AttentionInterface` and, for each, a mask with its `AttentionMaskInterface`: without one transformers
makes no mask at all, and a causal model sees the future.

Options of a kernel are attributes of the model's configuration: `entmax_alpha` (1.5), `relumax_margin` (1.0) and
`num_neighbours` (32). `learn_alpha` gives each head of a model an alpha of its own.
"""

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import MODEL_MAPPING, AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import sdpa_mask
from transformers.utils import output_capturing

from tessera.base.arguments import explains_mistakes
from tessera.base.errors import TesseraError, expect
from tessera.base.precision import without_autocast
from tessera.base.shapes import Bool, Float
from tessera.kernels import (
    Biweight,
    Entmax,
    Epanechnikov,
    Gaussian,
    Kernel,
    NearestNeighbours,
    RectifiedPolynomial,
    ReLUmax,
    Triweight,
    kernel_from_config,
)
from tessera.layers.bandwidth import LearnedAlpha
from tessera.ops.kernel_regression import Window, kernel_regression

STRUCTURE = "_tessera_structure"  # attribute of a mask: the `_Structure` that says the same
# What transformers hands to an attention function and none of the kernels has a meaning for.
REFUSED = {"softcap": "soft-capping of scores", "position_bias": "a position bias"}
REFUSED |= dict.fromkeys(("s_aux", "sinks"), "attention sinks")
REFUSED |= dict.fromkeys(("indices", "block_indices"), "a choice of keys for each query")
NEEDED = "take its attention from transformers' AttentionInterface"

ENTMAX = "tessera_entmax"
LEARNED = "learned_entmax"  # in a configuration: the start and bounds of the alphas; in its attention: their module
_HEADS: list[dict[nn.Module, int]] = []  # while `learn_alpha` looks, the attention modules and their numbers of heads


def _entmax(config: PreTrainedConfig) -> Kernel:
    alpha = getattr(config, "entmax_alpha", 1.5)
    expect(1 <= alpha <= 2, "tessera_entmax", "the configuration's entmax_alpha", "lie in [1, 2]", alpha)
    return Gaussian() if alpha == 1 else RectifiedPolynomial(order=1 / (alpha - 1))


# Name of the attention -> its kernel for a model's configuration. Kernels whose weights change when all scores of a
# query move together (normalised ReLU) are left out: keys of a transformer are no unit vectors.
ATTENTION_KERNELS: dict[str, Callable[[PreTrainedConfig], Kernel]] = {
    "tessera_gaussian": lambda config: Gaussian(),
    "tessera_sparsemax": lambda config: Epanechnikov(),
    "tessera_biweight": lambda config: Biweight(),
    "tessera_triweight": lambda config: Triweight(),
    ENTMAX: _entmax,
    "tessera_relumax": lambda config: ReLUmax(margin=getattr(config, "relumax_margin", 1.0)),
    "tessera_knn": lambda config: NearestNeighbours("gaussian", getattr(config, "num_neighbours", 32)),
}


def register() -> None:
    """Make every name in `ATTENTION_KERNELS` an `attn_implementation` of transformers.

    A model of text, or a part of one, whose attention never asks for it is refused where it is made or told so:
    transformers would go on with the attention of its own, or with none, without a word.
    """
    for name in ATTENTION_KERNELS:
        AttentionInterface.register(name, _attention_of(name))
        AttentionMaskInterface.register(name, attention_mask)
    PreTrainedModel._check_and_adjust_attn_implementation = _refusing_names(
        PreTrainedModel._check_and_adjust_attn_implementation
    )
    PreTrainedModel.post_init = _refusing(PreTrainedModel.post_init)
    PreTrainedModel.set_attn_implementation = _refusing(PreTrainedModel.set_attn_implementation)


def _refusing_names(method: Callable[..., str]) -> Callable[..., str]:
    """Of models that look the name up in a table of their own (GPT-J, GIT): their layers would end in a KeyError."""

    @wraps(method)
    def checked(model: PreTrainedModel, name: str | None, *arguments: Any, **options: Any) -> str:
        if name in ATTENTION_KERNELS:
            kind, module = type(model).__name__, sys.modules[type(model).__module__]
            tables = [own for own in vars(module) if own.endswith("_ATTENTION_CLASSES")]
            is_asked = any(("VISION" in table) == ("Vision" in kind) for table in tables)
            expect(not is_asked, str(name), "the model", NEEDED, kind)
        return method(model, name, *arguments, **options)

    return checked


def _refusing(method: Callable[..., None]) -> Callable[..., None]:
    @wraps(method)
    def checked(model: PreTrainedModel, *arguments: Any, **options: Any) -> None:
        method(model, *arguments, **options)
        chosen = model.config._attn_implementation
        if chosen in ATTENTION_KERNELS:
            for part in filter(_reads_tokens, model.modules()):
                expect(any(map(_asks_interface, part.modules())), chosen, "the model", NEEDED, type(part).__name__)
        for config in {id(each): each for each in (model.config, config_of_attention(model))}.values():
            if chosen in ATTENTION_KERNELS:  # saved with the others: transformers would load the model with softmax
                config.attn_implementation = chosen
            elif vars(config).get("attn_implementation") in ATTENTION_KERNELS:
                del config.attn_implementation

    return checked


def _reads_tokens(module: nn.Module) -> bool:
    """Is it a model of text? Towers for images and sounds may keep an attention of their own."""
    try:
        return isinstance(module, PreTrainedModel) and isinstance(module.get_input_embeddings(), nn.Embedding)
    except (NotImplementedError, AttributeError):
        return False


def _asks_interface(module: nn.Module) -> bool:
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and not {"ALL_ATTENTION_FUNCTIONS", "AttentionInterface"}.isdisjoint(code.co_names)


@explains_mistakes
def learn_alpha(
    model: PreTrainedModel, kernel: Kernel | str | dict | None = None, folder: str | Path | None = None
) -> dict[str, LearnedAlpha]:
    """Make a model's attention `tessera_entmax` with a learned alpha for each head; module name -> its alphas.

    The alphas become parameters of the model, which `save_pretrained` writes with the others, and their start and
    bounds a field of its configuration. transformers does not read them again: call this on the loaded model with its
    `folder` (`load_model` does). Until then the model refuses to run.

    Args:
        kernel: an entmax kernel with start and bounds; None: those of the configuration, else its defaults.
        folder: of a saved model whose alphas are taken.
    Raises:
        TesseraError: a kernel that is not entmax, an attention that takes no kernels, a folder without the alphas.
    """
    config = config_of_attention(model)
    kernel = kernel_from_config(getattr(config, LEARNED, "entmax") if kernel is None else kernel)
    if not isinstance(kernel, Entmax):
        raise TesseraError(f"learn_alpha: kernel must be entmax; got {kernel.name!r}.")
    model.set_attn_implementation(ENTMAX)
    setattr(config, LEARNED, kernel.to_config())
    heads: dict[nn.Module, int] = {}
    _HEADS.append(heads)
    try:
        with torch.no_grad():
            model(torch.zeros(1, 2, dtype=torch.long, device=model.device), use_cache=False)
    finally:
        _HEADS.remove(heads)
    expect(bool(heads), "learn_alpha", "model", "have attention that takes kernels", type(model).__name__)
    names = {module: name for name, module in model.named_modules()}
    learned = {}
    for module, count in heads.items():
        alphas = LearnedAlpha(count, kernel).to(model.device)
        setattr(module, LEARNED, alphas)
        learned[names[module]] = alphas
    if folder is not None:
        _read_alphas(Path(folder), learned)
    return learned


def config_of_attention(model: PreTrainedModel) -> PreTrainedConfig:
    """The configuration that the attention of `model` asks, or of the base that it is wrapped around."""
    return getattr(model.config, "base_config", model.config).get_text_config()


def _read_alphas(folder: Path, learned: dict[str, LearnedAlpha]) -> None:
    missing = {f"{name}.{LEARNED}.alpha_logit": alphas.alpha_logit for name, alphas in learned.items()}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as weights:
            for name in missing.keys() & set(weights.keys()):
                missing.pop(name).data.copy_(weights.get_tensor(name))
    if missing:
        raise TesseraError(f"learn_alpha: {folder} must hold every head's alpha; it lacks {min(missing)}.")


def kernel_in(module: nn.Module, heads: int, name: str) -> Kernel:
    """The kernel by which an attention module of so many heads computes the attention `name`."""
    config: Any = module.config
    is_learned = name == ENTMAX and hasattr(config, LEARNED)
    return _of_heads(module, heads) if is_learned else ATTENTION_KERNELS[name](config)


def _of_heads(module: nn.Module, heads: int) -> Kernel:
    """The kernel of a module with learned alphas."""
    if _HEADS:
        _HEADS[-1][module] = heads
        return Gaussian()
    alphas = getattr(module, LEARNED, None)
    if alphas is None:
        raise TesseraError(
            f"{ENTMAX}: the alphas of this model were learned and must be read from its folder: "
            "tessera.models.attention.learn_alpha(model, folder=FOLDER)."
        )
    return alphas()


def attention_mask(*arguments: Any, local_size: int | None = None, **options: Any) -> Bool[Tensor, "B 1 T N"] | None:
    """Which keys a query sees, as transformers makes it for PyTorch's attention: None is plainly causal (or all).

    A mask that is a causal window over documents (packed texts, padding on either side) is recognised by comparing
    the two, so that long texts need no scores of all pairs.
    Raises `TesseraError`: a model with an attention of its own, which would be softmax, and without this mask.
    """
    config: Any = options.get("config")
    model: Any = None if torch.compiler.is_compiling() else MODEL_MAPPING.get(type(config), None)
    if hasattr(model, "_can_set_attn_implementation"):  # a class, or several
        name = config._attn_implementation
        expect(model._can_set_attn_implementation(), name, "the model", NEEDED, model.__name__)
        options["allow_is_causal_skip"] = model._supports_sdpa and options.get("allow_is_causal_skip", True)
    mask = sdpa_mask(*arguments, local_size=local_size, **options)
    if mask is not None and not torch.compiler.is_compiling():
        setattr(mask, STRUCTURE, _structure(mask, local_size))
    return mask


def _attention_of(name: str) -> Callable[..., Any]:
    """The attention function, as transformers calls it, of the kernel for a model's configuration."""

    def attention(
        module: nn.Module,
        query: Float[Tensor, "B H T K"],
        key: Float[Tensor, "B G N K"],
        value: Float[Tensor, "B G N V"],
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        is_causal: bool | None = None,
        **options: Any,
    ) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H T N"] | None]:
        """(output, weights where the model is asked for them); G heads of keys serve H heads of queries."""
        for option, meaning in REFUSED.items():
            if options.get(option) is not None:
                raise TesseraError(f'{name}: {meaning} must be absent; {type(module).__name__} has it. Use "eager".')
        kernel = kernel_in(module, query.shape[1], name)
        # Under autocast rotated queries and keys are float32 and values are not; PyTorch's own attention does the same.
        query, key = query.to(value.dtype), key.to(value.dtype)
        groups = query.shape[1] // key.shape[1]
        if groups > 1:  # grouped heads: every key and value head serves as many query heads
            key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        slope = query.shape[-1] ** -0.5 if scaling is None else scaling
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        call = _Call(query, key, value, attention_mask, kernel, slope, dropout, causal and query.shape[2] > 1)
        # The attention of some models (GPT-2) takes the argument and does not hand it on.
        collected = output_capturing._active_collector.get() or {}
        if "attentions" in collected or options.get(
            "output_attentions", getattr(module.config, "output_attentions", False)
        ):
            output, weights = _all_weights(call)
        else:
            output, weights = _attend(call), None
        return output.transpose(1, 2).contiguous(), weights

    attention.__name__ = name
    return attention


class _Call(NamedTuple):
    """One call of an attention, with as many heads of keys as of queries.

    `causal`: where there is no mask, query i sees keys 0 to i, however many keys there are, as in PyTorch's attention.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    kernel: Kernel
    slope: float
    dropout: float
    causal: bool


def _attend(call: _Call) -> Tensor:
    structure = getattr(call.mask, STRUCTURE, None)
    if call.mask is not None and structure is None:
        return _all_weights(call)[0]
    window, documents = structure or (_causal_window(None) if call.causal else None, None)
    return kernel_regression(
        call.query,
        call.key,
        call.value,
        kernel=call.kernel,
        slope=call.query.new_tensor(call.slope),
        window=window,
        # A window ends one pair before its query: a query that sees its own key stands one position further on. Where
        # there is no mask, keys behind those of the queries are the empty rest of a static cache.
        query_offset=1,
        query_documents=documents,
        pair_documents=documents,
        dropout=call.dropout,
    )


def _all_weights(call: _Call) -> tuple[Tensor, Tensor]:
    """(output, weights), with the scores of all pairs in memory."""
    query, key, value, mask, *_ = call
    if mask is None and call.causal:
        steps = torch.arange(max(query.shape[2], key.shape[2]), device=query.device)
        mask = steps[: query.shape[2], None] >= steps[: key.shape[2]]
    with without_autocast(query):  # as `kernel_regression`: a large score in bfloat16 is off by more than its weight
        wide = torch.promote_types(query.dtype, torch.float32)
        scores = call.slope * (query.to(wide) @ key.to(wide).mT)
    if mask is not None and mask.dtype != torch.bool:  # added to scores: a bias, or the lowest number to hide a key
        expect(mask.is_floating_point(), "attention", "a mask (B, 1, T, N)", "be of booleans or floats", mask.dtype)
        bias, mask = mask, mask > torch.finfo(mask.dtype).min / 2
        scores = scores + bias.masked_fill(~mask, 0.0)
    weights = call.kernel.weights(scores, mask)
    kept = nn.functional.dropout(weights, call.dropout) if call.dropout else weights
    return kept.to(value.dtype) @ value, weights.to(query.dtype)


_Structure = tuple[Window, Tensor | None]


def _causal_window(size: int | None) -> Window:
    return Window(delay=1, span=None if size is None else size + 1)


def _structure(mask: Bool[Tensor, "B 1 T N"], local_size: int | None) -> _Structure | None:
    """The causal window (of `local_size` keys) and documents (B, T) that say what `mask` says; None: there are none.

    A document begins where a query does not see the key before its own. What no query sees is padding.
    """
    batch, heads, queries, keys = mask.shape
    if heads != 1 or queries != keys or keys < 2 or local_size == 0:  # 0: Qwen2-MoE makes one that no layer asks for
        return None
    positions = torch.arange(keys, device=mask.device)
    age = positions[:, None] - positions
    window = (age >= 0) if local_size is None else (age >= 0) & (age < local_size)
    seen = mask[:, 0]
    stored = seen.any(dim=1)  # keys that any query sees
    before = torch.cat([stored.new_zeros(batch, 1), seen.diagonal(offset=-1, dim1=1, dim2=2)], dim=1)
    begins = stored & ~before
    documents = begins.cumsum(1).masked_fill(~stored, -1)
    same = (documents[:, :, None] == documents[:, None, :]) & stored[:, None, :]
    if not torch.equal(seen, window & same):
        return None
    single = bool((documents == 1).all())
    return _causal_window(local_size), None if single else documents
