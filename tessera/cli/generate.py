"""Continue a prompt, printing tokens as they are generated.

MODEL is a run folder, a checkpoint or any folder that save_pretrained wrote. The default samples at temperature 0.8
among the 50 likeliest tokens; --temperature 0 takes the likeliest token each time.
"""

import argparse

from tessera.cli.arguments import positive_int, probability, seed, temperature, whole_number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera generate`."""
    parser.add_argument("model", help="folder of the model")
    parser.add_argument("--prompt", required=True, help="text to continue")
    parser.add_argument("--max-new-tokens", type=positive_int, default=200, help="stop after so many (default: 200)")
    parser.add_argument("--temperature", type=temperature, default=0.8, help="0: the likeliest token (default: 0.8)")
    parser.add_argument(
        "--top-k", type=whole_number, default=50, help="sample among the k likeliest; 0: all (default: 50)"
    )
    parser.add_argument(
        "--top-p", type=probability, default=1.0, help="sample among the likeliest of total probability p"
    )
    parser.add_argument(
        "--num-beams", type=positive_int, default=1, help="beam search of this width (printed at the end)"
    )
    parser.add_argument("--seed", type=seed, default=0, help="seed of the sampling (default: 0)")


def run(arguments: argparse.Namespace) -> int:
    """Load the model and print prompt and continuation."""
    from tessera.models.loading import load_model, load_tokenizer

    tokenizer = load_tokenizer(arguments.model)
    model = load_model(arguments.model)
    stream(model, tokenizer, arguments)
    return 0


def stream(model, tokenizer, options: argparse.Namespace) -> None:
    """Print the prompt and its continuation; `options` are those of `tessera generate`."""
    import torch
    from transformers import TextStreamer

    from tessera.errors import TesseraError, expect
    from tessera.models.transformer import context_limit

    for name, low in (("max_new_tokens", 1), ("num_beams", 1), ("top_k", 0), ("temperature", 0)):
        value = getattr(options, name)
        expect(value >= low, "generate", f"--{name.replace('_', '-')}", f"be at least {low}", value)
    expect(0 < options.top_p <= 1, "generate", "--top-p", "lie in (0, 1]", options.top_p)
    inputs = tokenizer(options.prompt, return_tensors="pt", add_special_tokens=False)
    if not inputs["input_ids"].numel():
        raise TesseraError("generate: --prompt must hold at least one token; got an empty text.")
    largest, size = int(inputs["input_ids"].max()), model.config.vocab_size
    if largest >= size:
        raise TesseraError(
            f"generate: the tokenizer must fit the model (vocab_size {size}); got token id {largest}. "
            "The folder holds another model's tokenizer."
        )
    length, longest = inputs["input_ids"].shape[1] + options.max_new_tokens, context_limit(model.config)
    if longest is not None and length > longest:
        raise TesseraError(f"generate: prompt and new tokens must fit {longest} positions of this model; got {length}.")
    torch.manual_seed(options.seed)
    sampling = {"do_sample": options.temperature > 0 and options.num_beams == 1, "num_beams": options.num_beams}
    if sampling["do_sample"]:
        sampling |= {"temperature": options.temperature, "top_k": options.top_k, "top_p": options.top_p}
    streamer = TextStreamer(tokenizer, skip_special_tokens=True) if options.num_beams == 1 else None
    tokens = model.generate(
        input_ids=inputs["input_ids"].to(model.device),
        attention_mask=inputs["attention_mask"].to(model.device),
        max_new_tokens=options.max_new_tokens,
        pad_token_id=tokenizer.pad_token_id,
        streamer=streamer,
        **sampling,
    )
    if streamer is None:
        print(tokenizer.decode(tokens[0], skip_special_tokens=True))
