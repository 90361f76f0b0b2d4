"""Tokens for small models: pieces of words, and one token for each part of the prompt that never changes."""

from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

from tessera.papers.many_shot.prompts import ANONYMOUS, Template

PAD, UNKNOWN, LINE_BREAK = "<pad>", "<unk>", "\n"


def train_vocabulary(texts: Iterable[str], template: Template, num_labels: int, vocab_size: int) -> Tokenizer:
    """Lower-case byte-pair pieces of `texts`; "class 1" and the names of text and label are one token each.

    Tokens 0 and 1 are padding and what is unknown. There are `vocab_size` tokens, or fewer if the texts have fewer.
    """
    fixed = [LINE_BREAK, f"{template.text_name}:", f"{template.label_name}:"]
    fixed += [ANONYMOUS.format(number=number) for number in range(1, num_labels + 1)]
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(fixed), special_tokens=[PAD, UNKNOWN], show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in fixed])
    return tokenizer
