"""Weights as a decoding program reads them: as they are, in bfloat16 or in 8 bits. Sums are of the model's own type."""

from collections.abc import Iterator
from itertools import chain
from math import isclose
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.overrides import TorchFunctionMode
from transformers.pytorch_utils import Conv1D

from tessera.base.errors import expect
from tessera.memories.persistent import PersistentMemory
from tessera.models.fingerprint import is_readable, middle_numbers

FORMATS = ("float32", "bf16", "int8")
LEAST = 4096  # numbers of a weight below which less precision saves nothing
OWN_HOOKS = "tessera.models.recurrence.layer_hooks"  # of ARMT, which leave single tokens alone
BLOCK = 8  # rows: four such blocks share 32-bit integers
MASKS = (0xFF, 0xFF00, 0xFF0000, -(2**24))  # the bytes of such an integer; the last has its sign
PACKED = "_tessera_packed"
Parts = tuple[Tensor, ...]


class StoredWeights:
    """How the parameters of the modules that are like `module` are stored, in the order of `named_parameters`.

    A product of a row with (a transposed) one is what is computed of matrices: those of linear layers, and of the slots
    of persistent memories, whose rows are keys, and components of values.
    """

    def __init__(self, module: nn.Module, form: str):
        self.form = form
        matrices = dict(_matrices(module))
        parameters = list(module.named_parameters())
        self.names = [name for name, _ in parameters]
        self.is_transposed = [matrices.get(name, False) for name in self.names]
        self.shapes = [tuple(p.shape) for _, p in parameters]
        self.forms = [_form(p, form, name in matrices) for name, p in parameters]

    @torch.no_grad()
    def of(self, module: nn.Module) -> list[Parts]:
        """The parameters of `module`, which are rounded in place to what is stored."""
        result: list[Parts] = []
        for weight, form, transposed in zip(module.parameters(), self.forms, self.is_transposed, strict=True):
            kept = weight.detach()
            rows = kept.mT.contiguous() if transposed else kept
            if form == "int8":
                scale = rows.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny) / 127
                rounded = (rows / scale).round()
                kept.copy_((rounded * scale).mT if transposed else rounded * scale)
                result.append((_packed(rounded.to(torch.int32)), scale[..., 0].contiguous()))
            elif form == "bf16":
                kept.copy_(kept.bfloat16())
                result.append((rows.bfloat16(),))
            else:
                result.append((rows,))
        return result

    def read(self, tensors: list[Parts], like: Tensor) -> dict[str, Tensor]:
        """The parameters by name, for `torch.func.functional_call`, in the type of `like`, (rows, ...).

        A packed one is only a name, full of NaN, for `RowProducts`; where there are several rows, slots are unpacked.
        """
        weights = {}
        for name, shape, transposed, parts in zip(self.names, self.shapes, self.is_transposed, tensors, strict=True):
            if len(parts) == 1:
                weight = parts[0].to(like.dtype)
            elif len(shape) == 2 or len(like) == 1:
                weights[name] = like.new_full(shape, torch.nan)
                setattr(weights[name], PACKED, parts)
                continue
            else:
                weight = _unpacked(parts[0], parts[1], like.dtype)
            weights[name] = weight.mT if transposed else weight
        return weights


class Watch:
    """Whether modules are still what a program was made of, which reads their weights past them."""

    def __init__(self, *roots: nn.Module):
        modules = [module for root in roots for module in root.modules()]
        self.weights = [weight for root in roots for weight in root.parameters()]
        self.counted = [weight for weight in self.weights if not weight.is_inference()]
        # These are filled in place: to look through them costs less at every step than to ask the modules.
        self.tables = [table for x in modules for table in (x._modules, x._parameters) if table]
        self.hooks = [table for x in modules for table in (x._forward_hooks, x._forward_pre_hooks)]
        self.adapted = [module for module in modules if hasattr(module, "_get_available_adapters")]  # of PEFT
        self.readable = [weight for weight in self.weights if is_readable(weight)]
        self.parts, self.numbers = self._parts(), self._numbers()
        self.sample, self.is_as_sampled = middle_numbers(self.readable), True
        self.kinds, self.adapters = self._kinds(), self._adapters()

    def look(self) -> None:
        """Look at a number of each weight, for the next `may_run`: PyTorch counts nothing of what is written into
        `weight.data`. Too slow for every step."""
        if not torch.compiler.is_compiling():
            pairs = zip(middle_numbers(self.readable), self.sample)
            # Adapters that were merged and taken out again leave their rounding.
            self.is_as_sampled = all(isclose(a, b, rel_tol=1e-4, abs_tol=1e-6) or a != a for a, b in pairs)

    def may_run(self) -> bool:
        """Whether the program may run in place of the modules: not with a hook, other adapters, or another type.

        Raises `TesseraError` where weights are others.
        """
        parts = self._parts()
        is_same = len(parts) == len(self.parts) and all(map(is_, parts, self.parts))
        is_same = is_same and self.is_as_sampled and self._numbers() == self.numbers
        if self._adapters() != self.adapters or not (is_same or self._kinds() == self.kinds):
            return False
        advice = "Call compile_decoding again, after training and after adapters are put on."
        expect(is_same, "compile_decoding", "the model", "be the one that was compiled", "other weights", advice)
        hooks = chain.from_iterable(table.values() for table in filter(None, self.hooks))
        return all(getattr(hook, "__module__", "") == OWN_HOOKS for hook in hooks)

    def _parts(self) -> list[Any]:
        """The modules and weights that stand where the program's stood."""
        return list(chain.from_iterable(table.values() for table in self.tables))

    def _numbers(self) -> list[int]:
        """Numbers of which one is another where weights were written, or lie elsewhere."""
        return [*map(attrgetter("_version"), self.counted), *map(Tensor.data_ptr, self.weights)]

    def _kinds(self) -> list[Any]:
        return [(weight.dtype, weight.device) for weight in self.weights]

    def _adapters(self) -> list[Any]:
        """Which act, and which are part of the weights."""
        return [(x.disable_adapters, x.active_adapters, list(getattr(x, "merged_adapters", ()))) for x in self.adapted]


OF_ALL_SLOTS = (Tensor.to, Tensor.__getitem__, Tensor.transpose, Tensor.mT.__get__)  # type: ignore[attr-defined]


class RowProducts(TorchFunctionMode):
    """While a program is made: products of one row with a matrix become sums, one pass over what is stored of it."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        """See `TorchFunctionMode`."""
        kwargs = kwargs or {}
        if function is nn.functional.linear:
            return _product(*args, **kwargs)
        if function is torch.addmm and not kwargs:  # of Conv1D
            bias, x, weight = args
            parts = getattr(weight, PACKED, None)
            return _product(x, weight.mT, bias) if parts is None else _packed_product(x, *parts) + bias
        if function in (torch.matmul, Tensor.matmul, Tensor.__matmul__) and hasattr(args[1], PACKED):
            packed, scale = getattr(args[1], PACKED)
            return _packed_product(args[0].squeeze(-2), packed[0], scale[0]).unsqueeze(-2)
        result = function(*args, **kwargs)
        parts = getattr(args[0], PACKED, None) if args else None
        if parts is not None and function in OF_ALL_SLOTS:
            setattr(result, PACKED, parts)
        elif parts is not None and function in (Tensor.unbind, Tensor.__iter__):  # of one bank
            result = list(result)
            setattr(result[0], PACKED, parts)
        elif parts is not None and isinstance(result, Tensor):  # its numbers are four integers each
            raise TypeError(f"a packed matrix is multiplied by rows alone; got {function}")
        return result


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x W^T + b`."""
    parts = getattr(weight, PACKED, None)
    y = (weight * x.unsqueeze(-2)).sum(-1) if parts is None else _packed_product(x, *parts)
    return y if bias is None else y + bias


def _packed(rows: Tensor) -> Tensor:
    """Integers -127..127 (..., R, C), four in 32 bits: rows r, r + 8, r + 16, r + 24 of each 32, (..., R / 32, 8, C).

    The bits are called float32, which PyTorch's compiled code loads faster than integers.
    """
    blocks = pad(rows, (0, 0, 0, -rows.shape[-2] % (4 * BLOCK))).unflatten(-2, (-1, 4, BLOCK))
    a, b, c, d = blocks.unbind(-3)
    return ((a + 128) | (b + 128) << 8 | (c + 128) << 16 | d << 24).contiguous().view(torch.float32)


def _packed_product(x: Tensor, packed: Tensor, scale: Tensor) -> Tensor:
    """`x` (..., C) with the rows of `_packed`: (..., R). A byte in its place is a whole number, exact in float32."""
    integers, total = packed.view(torch.int32), x.sum(-1)[..., None, None]
    x, sums = x[..., None, None, :], []
    for byte, mask in enumerate(MASKS):
        bytes_sum = ((integers & mask).to(x.dtype) * x).sum(-1) * 2.0 ** (-8 * byte)
        sums.append(bytes_sum if mask < 0 else bytes_sum - 128 * total)
    return torch.stack(sums, -2).flatten(-3)[..., : scale.shape[-1]] * scale


def _unpacked(packed: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """(..., R, C)."""
    integers = packed.view(torch.int32)
    planes = [(integers & mask).to(dtype) * 2.0 ** (-8 * byte) for byte, mask in enumerate(MASKS)]
    planes = [plane if mask < 0 else plane - 128 for plane, mask in zip(planes, MASKS, strict=True)]
    return torch.stack(planes, -3).flatten(-4, -2)[..., : scale.shape[-1], :] * scale[..., None]


def _matrices(module: nn.Module) -> Iterator[tuple[str, bool]]:
    """Names of parameters that are matrices, and whether their rows stand in the second of their last dimensions."""
    for name, child in module.named_modules():
        prefix = f"{name}." if name else ""
        if type(child) in (nn.Linear, Conv1D):
            yield f"{prefix}weight", type(child) is Conv1D
        if isinstance(child, PersistentMemory) and len(child.slot_keys) == 1:
            yield from ((f"{prefix}slot_keys", False), (f"{prefix}slot_values", True))


def _form(weight: Tensor, form: str, is_matrix: bool) -> str:
    if form == "float32" or weight.dim() < 2 or weight.numel() < LEAST:
        return "float32"
    return "bf16" if form == "int8" and not is_matrix else form


def flat(tensors: list[Parts]) -> Iterator[Tensor]:
    """All tensors of what `StoredWeights.of` gave."""
    for parts in tensors:
        yield from parts


def unsized(tensors: Any) -> Any:
    """For `torch.export`: no dimension of these may vary."""
    return torch.utils._pytree.tree_map(lambda _: None, tensors)
