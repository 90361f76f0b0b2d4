"""What a text begins with, in the tokens of a model."""

from typing import TYPE_CHECKING

from tessera.base.errors import expect

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BEGINS_WITH_BOS = "texts_begin_with_bos"  # in the tokenizer_config.json of a run: whether its training began texts so


def opening_tokens(tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    """What a text begins with, in front of its own tokens: nothing or the BOS token, of some tokenizers others.

    The tokenizer of a run keeps what its training did (`BEGINS_WITH_BOS`); of any other it is what the tokenizer adds.
    Raises `TesseraError`: what is kept is not true or false, or true without a BOS token.
    """
    kept = tokenizer.init_kwargs.get(BEGINS_WITH_BOS)
    if kept is not None:
        known, needed = tokenizer.bos_token_id, "be false, or true with a bos_token"
        is_possible = kept is False or (kept is True and known is not None)
        expect(is_possible, "tokenizer_config.json", BEGINS_WITH_BOS, needed, repr(kept))
        return [known] * kept
    text = next(iter(tokenizer.get_added_vocab()), "a")  # a token in every vocabulary that has added ones
    encoded = tokenizer(text, return_special_tokens_mask=True)
    added = [*encoded["special_tokens_mask"], 0]
    return encoded["input_ids"][: added.index(0)]


def prompt_tokens(tokenizer: "PreTrainedTokenizerBase", prompt: str) -> list[int]:
    """Token ids of a text that goes on: with what the tokenizer puts in front of it, without what it puts behind."""
    return [*opening_tokens(tokenizer), *tokenizer(prompt, add_special_tokens=False, verbose=False)["input_ids"]]
