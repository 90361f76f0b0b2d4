"""Lossless generation with drafts: several tokens are guessed, read at once, and kept as far as the model agrees.

transformers refuses this to models with a state, because a cache must be cropped where a guess was wrong. A state of
this library is a value: going back is to go on from the state before. Every token is chosen as without drafts, the
likeliest or drawn from the model's distribution; a guess only says which tokens are read together. One that is certain
is kept with the probability that the model gives it, as in Leviathan et al. (2023), algorithm 1, and with the same
random numbers the text is the same.
"""

import copy
from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers.generation import GenerationMode
from transformers.generation.utils import GenerateDecoderOnlyOutput

from tessera.base.errors import TesseraError, expect
from tessera.models.forward_arguments import demand

LONGEST_UNREAD = 8  # tokens that are read again behind the last state before a step without a draft ends this
LARGEST_LOSS = 0.03  # of all steps, which drafts may have cost before they stop
MOST_GAINED = 16.0  # steps: what drafts have gained is remembered up to here
WHERE = "generate"
WITH_CACHE = "be left out with past_key_values, which has its own"  # a memory


class PromptLookup:
    """Guesses what followed the last n tokens where they stood before, n as large as possible, or careful: largest.

    A token of a draft costs `steps` of the model's.
    """

    steps = 0.0

    def __init__(self, longest_match: int) -> None:
        self.sizes = range(longest_match, 0, -1)
        self.places: dict[tuple[int, ...], int] = {}  # n tokens -> where what follows them begins
        self.seen = 0

    def draft(self, tokens: list[int], most: int, careful: bool) -> list[int]:
        """At most `most` tokens that may follow `tokens`; `careful`: none that are doubtful."""
        for end in range(self.seen, len(tokens)):
            for size in self.sizes:
                if end >= size:
                    self.places[tuple(tokens[end - size : end])] = end
        self.seen = len(tokens)
        for size in self.sizes[:1] if careful else self.sizes:
            follower = self.places.get(tuple(tokens[-size:])) if len(tokens) > size else None
            if follower is not None:
                return tokens[follower : follower + most]
        return []


class AssistantModel:
    """Guesses what another model generates greedily."""

    def __init__(self, model: Any, steps: float) -> None:
        self.model, self.steps, self.state, self.read = model, steps, None, 0

    def draft(self, tokens: list[int], most: int, careful: bool) -> list[int]:
        """As `PromptLookup.draft`."""
        unread = torch.tensor([tokens[self.read :]], device=self.model.device)
        if unread.shape[1] > 1:
            output = self.model(unread[:, :-1], past_key_values=self.state, use_cache=True)
            self.state, self.read = output.past_key_values, len(tokens) - 1
        # Drafted tokens must not stay in what the assistant has read.
        state = self.state if hasattr(self.state, "select_batch") else copy.deepcopy(self.state)
        drafted, last = [], unread[:, -1:]
        for _ in range(most):
            output = self.model(last, past_key_values=state, use_cache=True)
            state, last = output.past_key_values, output.logits[:, -1:].argmax(-1)
            drafted.append(int(last))
        return drafted


class _Balance:
    """How many tokens to guess: twice as many after a right draft, half after a wrong one, none where they cost more
    than they give. All is counted in steps of one token, so that the same text is read in the same parts every time.

    most : of a draft. steps_per_block : what a call with several tokens costs at most. steps : a drafted token.
    """

    def __init__(self, most: int, steps_per_block: float, steps: float) -> None:
        self.most, self.steps_per_block, self.steps = most, steps_per_block, steps
        self.length, self.lost, self.made = min(4, most), 0.0, 0

    def next(self) -> int:
        return self.length if self.lost <= LARGEST_LOSS * self.made else 0

    def learn(self, read: int, drafted: int, made: int) -> None:
        """A call with `read` tokens, `drafted` of them guessed, gave `made` new ones."""
        self.made += made
        cost = (self.steps_per_block if read > 1 else 1) + drafted * self.steps
        self.lost = max(self.lost + cost - made, -MOST_GAINED)
        if made > drafted > 0:
            self.length = min(self.most, 2 * self.length)
        elif made == 1 and drafted:
            self.length = max(1, self.length // 2)


class DraftedGeneration:
    """Gives `generate` of a model whose state is a value `prompt_lookup_num_tokens` and `assistant_model`.

    As in transformers: guess up to so many tokens from earlier in the text, after the longest match of up to
    `max_matching_ngram_size` (3) tokens; or a smaller model of the same vocabulary guesses up to `num_assistant_tokens`
    (20). For one sequence; lossless, as the module says. With `return_dict_in_generate` the state may have read less
    than the sequence holds.
    """

    steps_per_block = 2.0  # with a few tokens, where products of a vector and a matrix become products of matrices

    def _prepare_cache_for_generation(self, generation_config, model_kwargs, *arguments):
        state, mask = model_kwargs.get("past_key_values"), model_kwargs.get("attention_mask")
        if mask is not None:  # transformers warns, and goes on from what the model says at padding
            requirement = "end with a one in every row: prompts are padded on the left"
            demand(mask[:, -1].bool().all(), WHERE, "attention_mask", requirement, lambda: "a row that ends with zeros")
        if state is None:  # transformers would mark one, but a state is a value
            super()._prepare_cache_for_generation(generation_config, model_kwargs, *arguments)  # type: ignore[misc]
            return
        own = model_kwargs.get("memory_state")
        expect(own is None, WHERE, "memory_state", WITH_CACHE, type(own).__name__)
        generation_config.use_cache = True  # without it every step would read the whole text again, behind the state
        # Of a prompt that was read to its end, transformers reads all tokens a second time.
        length = getattr(generation_config, "_mask_length", -1) if mask is None else mask.shape[1]
        read = state.get_seq_length()
        is_left = length < 0 or read < length
        expect(is_left, WHERE, "past_key_values", "leave a token of the prompt to read", f"{read} of {length} read")

    def _prefill(self, input_ids, generation_config, model_kwargs, is_first_iteration=True):
        """In parts of `prefill_chunk_size` tokens, for which transformers wants a cache: that of the first part."""
        size, read = generation_config.prefill_chunk_size, super()._prefill  # type: ignore[misc]
        if size is not None:
            needed, advice = "be a positive number of tokens", "Give input_ids, or leave prefill_chunk_size out."
            expect(isinstance(size, int) and size >= 1, WHERE, "prefill_chunk_size", needed, repr(size))
            is_text = model_kwargs.get("inputs_embeds") is None
            expect(is_text, WHERE, "a prompt that is read in parts", "be tokens", "inputs_embeds", advice)
            expect(model_kwargs.get("use_cache"), WHERE, "use_cache", "be True with prefill_chunk_size", False)
            alignment = getattr(self.config, "segment_alignment", "left")  # type: ignore[attr-defined]
            expect(alignment == "left", WHERE, "segment_alignment", "be left with prefill_chunk_size", alignment)
        if size is not None and model_kwargs.get("past_key_values") is None:
            at_once = copy.copy(generation_config)
            at_once.prefill_chunk_size = None
            mask = model_kwargs.get("attention_mask")
            if mask is not None and hasattr(self.config, "segment_size"):  # type: ignore[attr-defined]
                size = max(size, int(mask.int().argmax(1).max()) + 1)  # these models take no row of padding alone
            of_steps = {name: model_kwargs[name] for name in ("attention_mask", "position_ids") if name in model_kwargs}
            first = model_kwargs | {name: part[..., :size] for name, part in of_steps.items() if part is not None}
            output = read(input_ids[:, :size], at_once, first, is_first_iteration)
            if input_ids.shape[1] <= size:
                return output
            input_ids, model_kwargs = input_ids[:, size:], model_kwargs | {"past_key_values": output.past_key_values}
            model_kwargs.pop("memory_state", None)
        return read(input_ids, generation_config, model_kwargs, is_first_iteration)

    def _update_model_kwargs_for_generation(self, outputs: Any, model_kwargs: dict, *arguments: Any, **options: Any):
        """The memory that the prompt was read behind is in the cache from the first step on."""
        updated = super()._update_model_kwargs_for_generation(  # type: ignore[misc]
            outputs, model_kwargs, *arguments, **options
        )
        if updated.get("past_key_values") is not None:
            updated.pop("memory_state", None)
        return updated

    def _reorder_cache(self, past_key_values: Any, beam_idx: Tensor) -> Any:
        """For beams; a cache that is a base's too is used up."""
        return getattr(past_key_values, "reorder", past_key_values.select_batch)(beam_idx)

    def init_continuous_batching(self: Any, *arguments: Any, **keywords: Any) -> NoReturn:
        """Refused, as is `generate_batch`: transformers pages a cache of keys and values, and errs in a thread."""
        got = f"{self.config.model_type}, whose state is a value"
        advice = "Use generate, which takes several prompts at once (padded on the left)."
        raise TesseraError(f"generate_batch: the model must keep a cache that can be paged; got {got}. {advice}")

    def _validate_generation_mode(self, generation_mode: Any, generation_config: Any, mode_arguments: Any) -> None:
        if generation_mode != GenerationMode.ASSISTED_GENERATION:
            super()._validate_generation_mode(generation_mode, generation_config, mode_arguments)  # type: ignore[misc]

    def _assisted_decoding(
        self: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        synced_gpus: bool = False,
        streamer: Any = None,
        assistant_model: Any = None,
        tokenizer: Any = None,
        **model_kwargs: Any,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        """What `generate` does for one sequence, several tokens a call where drafts are right."""
        expect(len(input_ids) == 1, WHERE, "a prompt with drafts", "be one sequence", f"{len(input_ids)} sequences")
        drafter, most = _drafter(self, generation_config, assistant_model)
        balance = _Balance(most, self.steps_per_block, drafter.steps)
        options: dict[str, Any] = {"use_cache": True, "return_dict": True}
        options |= {name: model_kwargs[name] for name in ("extend_segment",) if name in model_kwargs}
        tokens, unread = input_ids[0].tolist(), input_ids[:, :0]
        state: Any = None
        kept: dict[str, list[Tensor]] = {"scores": [], "logits": []}
        draft: list[int] = []
        output = self._prefill(input_ids, generation_config, {**model_kwargs, "use_cache": True})
        while True:
            made, is_over = 0, False
            for guess, logits in zip([*draft, None], output.logits[0, -len(draft) - 1 :].float()):
                scores = logits_processor(input_ids, logits[None])
                if generation_config.do_sample:
                    token = torch.multinomial(scores.softmax(-1), 1)
                else:
                    token = scores.argmax(-1, keepdim=True)
                input_ids, made = torch.cat([input_ids, token], 1), made + 1
                tokens.append(int(token))
                for name, part in (("scores", scores), ("logits", logits[None])):
                    if getattr(generation_config, f"output_{name}"):
                        kept[name].append(part)
                if streamer is not None:
                    streamer.put(token[0].cpu())
                is_over = bool(stopping_criteria(input_ids, scores).all())
                if is_over or tokens[-1] != guess:
                    break
            balance.learn(unread.shape[1] + len(draft), len(draft), made)
            if made > len(draft):
                state, unread = output.past_key_values, input_ids[:, -1:]
            else:  # the new state holds wrong tokens: go on from the one before, the right ones before the next draft
                state.take_back()
                unread = torch.cat([unread, input_ids[:, -made:]], 1)
            if is_over:
                break
            room = generation_config.max_length - len(tokens) - 1
            number = min(balance.next() if unread.shape[1] <= LONGEST_UNREAD else 0, room)
            draft = drafter.draft(tokens, number, balance.lost >= 0) if number > 0 else []
            read = torch.cat([unread, unread.new_tensor([draft])], 1) if draft else unread
            if self._supports_logits_to_keep():
                options["logits_to_keep"] = len(draft) + 1
            output = self(read, past_key_values=state, **options)
        if streamer is not None:
            streamer.end()
        if generation_config.return_dict_in_generate:
            shown = {name: tuple(parts) or None for name, parts in kept.items()}
            return GenerateDecoderOnlyOutput(sequences=input_ids, past_key_values=state, **shown)
        return input_ids


def _drafter(model: Any, settings: Any, assistant: Any) -> tuple[PromptLookup | AssistantModel, int]:
    """Who guesses, and how many tokens at most."""
    for name in ("output_hidden_states", "output_attentions"):
        expect(not getattr(settings, name), WHERE, name, "be False with drafts", True)
    is_given = [each is not None for each in (settings.prompt_lookup_num_tokens, assistant)]
    names, got = "prompt_lookup_num_tokens and assistant_model", "both" if all(is_given) else "neither"
    expect(is_given[0] != is_given[1], WHERE, names, "be given one without the other", got)
    most = (settings.num_assistant_tokens or 20) if assistant is not None else settings.prompt_lookup_num_tokens
    expect(isinstance(most, int) and most >= 1, WHERE, "the number of drafted tokens", "be at least 1", most)
    if assistant is None:
        return PromptLookup(settings.max_matching_ngram_size or 3), most
    own, other = (each.config.get_text_config().vocab_size for each in (model, assistant))
    expect(own == other, WHERE, "assistant_model", f"have the vocabulary of the model ({own})", other)
    return AssistantModel(assistant, _share(model, assistant)), most


def _share(model: Any, assistant: Any) -> float:
    """What a token costs the assistant, in tokens of the model: by layers, which calls cost, or by numbers."""
    numbers = [sum(parameter.numel() for parameter in each.parameters()) for each in (assistant, model)]
    layers = [getattr(each.config.get_text_config(), "num_hidden_layers", 1) for each in (assistant, model)]
    return max(numbers[0] / numbers[1], layers[0] / layers[1])
