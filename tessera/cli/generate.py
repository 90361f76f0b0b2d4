"""Continue a prompt, printing tokens as they are generated; or many prompts by several models, as a table.

MODEL is a run folder, a checkpoint or any folder that save_pretrained wrote. A prompt begins as its tokenizer begins
texts. The default samples at temperature 0.8 among the 50 likeliest tokens; --temperature 0 takes the likeliest token
each time. With --prompts, or several models, a Markdown table comes out, with a row for each prompt and a column for
each model; --prompts stories continues the 24 prompts of the papers, for example
  tessera generate runs/a runs/b --prompts stories --num-beams 2 --max-new-tokens 30
"""

import argparse
import sys
from dataclasses import fields
from pathlib import Path

from tessera.base.errors import expect
from tessera.base.files import write_text_atomically, writing
from tessera.cli.options import hold_output, of_each, positive_int, probability, seed, temperature, whole_number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera generate`."""
    add = parser.add_argument
    add("models", nargs="+", metavar="model", help="folder of the model; with several, a table compares them")
    prompts = parser.add_mutually_exclusive_group(required=True)
    prompts.add_argument("--prompt", help="the text to continue")
    meaning = 'continue each line of this text file; "stories": the 24 prompts of the papers'
    prompts.add_argument("--prompts", metavar="FILE", help=meaning)
    add("--out", type=Path, metavar="FILE", help="also write the table into this new file")
    meaning = "compile the layers first, which takes a minute, once, and makes each token faster"
    add("--compile", action="store_true", help=meaning)
    meaning = "read up to N tokens at once that stood in the text before: sooner where it repeats itself, and the same "
    meaning += "text, but where a model that is not of this library takes samples"
    add("--prompt-lookup", type=positive_int, metavar="N", help=meaning)
    meaning = "with --compile, round the weights to this type: fewer bytes to read, slightly other numbers"
    add("--weights", choices=("bf16", "int8"), help=meaning)
    add_sampling(parser, max_new_tokens=200, default_temperature=0.8)


def add_sampling(
    parser: argparse.ArgumentParser, max_new_tokens: int, default_temperature: float, title: str = "choice of tokens"
) -> None:
    """How tokens are chosen: the fields of `Sampling`."""
    add = parser.add_argument_group(title).add_argument
    meaning = f"the most tokens to write (default: {max_new_tokens})"
    add("--max-new-tokens", type=positive_int, default=max_new_tokens, help=meaning)
    meaning = f"divide logits by this; 0: always the likeliest token (default: {default_temperature:g})"
    add("--temperature", type=temperature, default=default_temperature, help=meaning)
    meaning = "choose among so many of the likeliest tokens; 0: among all (default: 50)"
    add("--top-k", type=whole_number, default=50, help=meaning)
    meaning = "choose among the fewest tokens whose probabilities sum to this (default: 1, all)"
    add("--top-p", type=probability, default=1.0, help=meaning)
    meaning = "keep so many continuations at a time and print the likeliest at the end (default: 1)"
    add("--num-beams", type=positive_int, default=1, help=meaning)
    add("--seed", type=seed, default=0, help="another seed chooses other tokens (default: 0)")
    options = ("max_new_tokens", "temperature", "top_k", "top_p", "num_beams")
    parser.set_defaults(sampling_defaults={name: parser.get_default(name) for name in options})


def refuse_sampling(arguments: argparse.Namespace, where: str, is_trained: bool) -> None:
    """Raise `TesseraError` for an option of `add_sampling`, but for the seed, that a model ignores which `is_trained`
    on questions."""
    needed = "be left out: this model answers questions, with its likeliest word"
    for name, default in arguments.sampling_defaults.items():
        value = getattr(arguments, name)
        expect(not is_trained or value == default, where, "--" + name.replace("_", "-"), needed, value)


def sampling_of(arguments: argparse.Namespace):
    """The `Sampling` that the arguments of `add_sampling` describe."""
    from tessera.generation.sampling import Sampling

    return Sampling(**{field.name: getattr(arguments, field.name) for field in fields(Sampling)})


def run(arguments: argparse.Namespace) -> int:
    """Load the models; print prompt and continuation, or the table."""
    from tessera.generation.sampling import continuation, markdown_table, read_prompts
    from tessera.memory_files.answering import answers_questions
    from tessera.models.causality import expect_next_token
    from tessera.models.decoding import compile_decoding
    from tessera.models.saving.loading import load_model, load_tokenizer

    weights = arguments.weights
    expect(weights is None or arguments.compile, "generate", "--weights", "be used with --compile", weights)
    is_possible = arguments.prompt_lookup is None or arguments.num_beams == 1
    expect(is_possible, "generate", "--prompt-lookup", "be left out with --num-beams", arguments.prompt_lookup)
    hold_output(arguments, "generate", "out")
    prompts = [arguments.prompt] if arguments.prompts is None else read_prompts(arguments.prompts)
    models = {folder: (load_model(folder), load_tokenizer(folder)) for folder in dict.fromkeys(arguments.models)}
    for folder, (model, tokenizer) in models.items():
        expect_next_token(model, f"model {folder}")
        if arguments.compile:
            compile_decoding(model, weights or "float32")
        if answers_questions(tokenizer):
            print(f"generate: {folder} answers questions about a text: see tessera ask", file=sys.stderr)
    drafts, sampling = {"prompt_lookup_num_tokens": arguments.prompt_lookup}, sampling_of(arguments)
    if arguments.prompts is None and len(models) == 1 and arguments.out is None:
        continuation(*next(iter(models.values())), arguments.prompt, sampling, stream=True, **drafts)
        return 0

    def column(folder: str) -> tuple[str, list[str]]:
        """The model's folder, and what it writes after each prompt."""
        return folder, [continuation(*models[folder], prompt, sampling, **drafts) for prompt in prompts]

    columns, status = of_each(models, column)
    if not columns:
        return status
    table = markdown_table(prompts, dict(columns))
    print(table)
    if arguments.out is not None:
        with writing(arguments.out):
            write_text_atomically(arguments.out, table + "\n")
    return status
