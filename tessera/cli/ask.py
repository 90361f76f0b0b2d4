"""Ask a question of a memory that `tessera memorize` stored, and print the model's continuation of it."""

import argparse

from tessera.cli.arguments import positive_int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera ask`."""
    parser.add_argument("model", help="folder of the model that memorized")
    parser.add_argument("question", help="text to continue")
    parser.add_argument("--memory", required=True, help="file that `tessera memorize` stored")
    parser.add_argument("--max-new-tokens", type=positive_int, default=50, help="stop after so many (default: 50)")


def run(arguments: argparse.Namespace) -> int:
    """Load, continue greedily, print."""
    import torch

    from tessera.cli.memorize import segmented_model, stored_memory
    from tessera.errors import TesseraError
    from tessera.models.loading import load_tokenizer

    model, tokenizer = segmented_model(arguments.model, "ask"), load_tokenizer(arguments.model)
    memory = stored_memory(model, arguments.memory, "ask")
    ids = tokenizer(arguments.question, return_tensors="pt", add_special_tokens=False)["input_ids"]
    if not ids.numel():
        raise TesseraError("ask: QUESTION must hold at least one token; got an empty text.")
    found = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        memory_state=memory,
        max_new_tokens=arguments.max_new_tokens,
        do_sample=False,
        pad_token_id=tokenizer.pad_token_id,
    )
    print(tokenizer.decode(found[0, ids.shape[1] :], skip_special_tokens=True))
    return 0
