"""A memory beside any decoder, without training: `tessera.attach`."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tessera.base.arguments import checks_arguments, explain_all
from tessera.base.beginnings import prompt_tokens
from tessera.base.errors import expect, expect_text
from tessera.base.shapes import Int
from tessera.kernels import Kernel
from tessera.models.causality import evaluating, expect_causal
from tessera.models.fingerprint import Fingerprint, expect_same_model
from tessera.models.forward_arguments import token_ids
from tessera.recall.token_memory import TokenMemory


class Attached:
    """A memory that stands beside the output layer of a model; see `attach`.

    Attributes:
        memory: what was read, a `TokenMemory`. It is a value: keep it, and set it again on this or a later attachment
            to the same model.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: Any, memory: TokenMemory, window: int) -> None:
        self.model, self.tokenizer, self.memory, self.window = model, tokenizer, memory, window
        self._fingerprint = Fingerprint()
        self._read: dict[int, list[tuple[Tensor, Tensor]]] = {}  # by the thread that reads; others ask meanwhile
        head = model.get_output_embeddings()
        expect(isinstance(head, nn.Module), "attach", "model", "have an output layer", type(model).__name__)
        expect_causal(model, "attach")
        self._hook = head.register_forward_hook(self._add)
        try:
            self._expect_last()
        except BaseException:
            self.detach()
            raise

    def read(self, text: str | Int[Tensor, " T"]) -> Self:
        """Remember a text, or token ids (T,), and fit the mixture to it; returns itself.

        The text is read in windows of which each is predicted from what the memory held before it, then stored. A token
        sees at least a quarter of a window before it. It begins a context of its own, as the tokenizer begins texts:
        its first token is no next token.
        """
        ids = self._token_ids(torch.tensor(self._encoded(text), dtype=torch.long) if isinstance(text, str) else text)
        step = self.window - self.window // 4
        with evaluating(self.model):
            for first in range(0, max(len(ids) - 1 - self.window // 4, min(len(ids) - 1, 1)), step):
                self._read_window(ids[first : first + self.window + 1], 0 if first == 0 else self.window - step)
        return self

    def detach(self) -> None:
        """The model is again what it was. The memory stays readable."""
        self._hook.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()

    @torch.no_grad()
    def _read_window(self, ids: Int[Tensor, " T"], known: int) -> None:
        ids = ids.to(self.model.device)
        with self._recording() as seen:
            self.model(ids[None, :-1], use_cache=False)
        needed, advice = "be attached to the output layer while it reads", "Attach it again: attach(model, memory=...)."
        expect(len(seen) > 0, "attach", "the memory", needed, "a detached one", advice)
        hidden, logits = (torch.cat(parts, 1)[0, known:] for parts in zip(*seen))
        tokens = ids[1 + known :]
        own = (logits.float().gather(1, tokens[:, None])[:, 0] - logits.float().logsumexp(1)).exp()
        memory = self._own_memory(begins=True).fitted(hidden, tokens, own).remembered(hidden, tokens)
        self.memory = replace(memory, model=self._fingerprint.of(self.model, False))

    def _token_ids(self, tokens: Any) -> Int[Tensor, " T"]:
        """`tokens` (T,) as a tensor. Raises `TesseraError` unless they are tokens of the model, before any is read."""
        ids = token_ids("attach", "text", "be text or token ids (T,)", tokens)
        size = self.model.get_input_embeddings().num_embeddings
        lowest, highest = (int(ids.min()), int(ids.max())) if len(ids) else (0, 0)
        needed, got = f"lie in 0..{size - 1}, the model's vocabulary", f"values from {lowest} to {highest}"
        advice = "Does the tokenizer belong to this model?"
        expect(lowest >= 0 and highest < size, "attach", "token ids", needed, got, advice)
        return ids

    def _encoded(self, text: str) -> list[int]:
        expect(self.tokenizer is not None, "attach", "tokenizer", "be given to read text", None)
        expect_text(text, "attach")
        return prompt_tokens(self.tokenizer, text)

    def _add(self, head: nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> Tensor | None:
        if (seen := self._read.get(threading.get_ident())) is not None:
            seen.append((inputs[0], logits))
            return None
        return self._own_memory(begins=logits.shape[1] > 1).mixed(inputs[0], logits)

    def _own_memory(self, begins: bool) -> TokenMemory:
        """The memory. Raises `TesseraError` where another model, or this one with other weights, has read it."""
        if len(self.memory):
            expect_same_model("attach", "memory", self.memory.model, self._fingerprint.of(self.model, begins))
        return self.memory

    @contextmanager
    def _recording(self) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """What the output layer is given and gives, without memory."""
        reader = threading.get_ident()
        self._read[reader] = []
        try:
            yield self._read[reader]
        finally:
            del self._read[reader]

    @torch.no_grad()
    def _expect_last(self) -> None:
        """Refuse a model that does not use its output layer as a module, or changes what it gives (soft-capping)."""
        with evaluating(self.model), self._recording() as seen:
            last = self.model.get_input_embeddings().num_embeddings - 1  # token 0 is often padding, and its logits 0
            logits = self.model(torch.tensor([[last, last // 2]], device=self.model.device)).logits
        is_last = len(seen) == 1 and torch.equal(logits, seen[0][1].to(logits))
        name = type(self.model).__name__
        expect(is_last, "attach", "model", "return what its output layer gives, unchanged (no soft-capping)", name)


@checks_arguments
def attach(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    kernel: Kernel | str | dict = "gaussian",
    memory: TokenMemory | None = None,
    window: int = 512,
    budget: int | None = None,
    eviction: str = "oldest",
) -> Attached:
    """Give a decoder of transformers a memory of texts that it reads, beside its own prediction and without training.

    The model's last hidden states are keys, the tokens behind them values (see `tessera.recall.token_memory`). While
    attached, `model(...)`, its loss and `generate` predict with the memory; `detach()` takes it away.

    Args:
        model: a causal language model. tokenizer: needed to read text; token ids can be read without.
        kernel: the similarity kernel or its name. memory: one that was read earlier, in place of an empty one; it keeps
            its kernel, budget and eviction.
        window: tokens that the model reads at once. budget, eviction: see `TokenMemory`.
    Raises:
        TesseraError: an unknown kernel or eviction, others than those of `memory`, or a model that changes the logits
            of its output layer or sees later tokens.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2, n_positions=32)).eval()
    >>> with attach(model, window=16) as attached:
    ...     len(attached.read(torch.arange(50).repeat(3)).memory)
    149
    """
    most = getattr(model.config, "max_position_embeddings", None) or window
    expect(window >= 8, "attach", "window", "be at least 8 tokens", window)
    chosen, default = TokenMemory.empty(kernel, budget, eviction), TokenMemory.empty("gaussian")
    for name in () if memory is None else ("kernel", "budget", "eviction"):
        given, known = getattr(chosen, name), (getattr(default, name), getattr(memory, name))
        expect(given in known, "attach", name, "be left out with memory, which has its own", given)
    return Attached(model, tokenizer, chosen if memory is None else memory, min(window, most))


explain_all(globals(), ("Attached", "attach"))
