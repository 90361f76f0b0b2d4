"""A pretrained decoder's attention exchanged for compact kernels: without training, and after a short one with LoRA.

    tessera models get smollm2 --output smollm2
    OMP_NUM_THREADS=1 python -m benchmarks.exchanged_attention smollm2 --train novel.txt --test book.txt \\
        --out results/attached/attention.json

Loss by position in windows of the test book, the share of keys with weight by layer, and seconds per token of reading
and of decoding, each beside the softmax that the model was trained with. With --steps, the projections of the
attention get LoRA of rank 8, which is trained on the training text under the exchanged attention; the softmax gets the
same training. --out is gone on from.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tessera.base.files import write_text_atomically
from tessera.data.text_files import text_of_files
from tessera.evaluation.provenance import provenance
from tessera.models.attention import ATTENTION_KERNELS
from tessera.models.saving.loading import load_model, load_tokenizer

NAMES = ("sdpa", *(name for name in ATTENTION_KERNELS if name not in ("tessera_gaussian", "tessera_entmax")))
DECODED = 16


def token_ids(tokenizer: Any, path: Path) -> Tensor:
    return torch.tensor(tokenizer("".join(text_of_files([path])), verbose=False)["input_ids"])


@torch.inference_mode()
def by_position(model: Any, windows: Tensor, parts: int = 4) -> dict[str, Any]:
    """Mean loss of each quarter of the windows (W, T + 1), and seconds per token of reading."""
    began, losses = time.process_time(), []
    for window in windows:
        logits = model(window[None, :-1], use_cache=False).logits[0].float()
        losses.append(torch.nn.functional.cross_entropy(logits, window[1:], reduction="none"))
    seconds = (time.process_time() - began) / windows[:, 1:].numel()
    quarters = [part.mean().item() for part in torch.stack(losses).chunk(parts, 1)]
    return {"loss": torch.stack(losses).mean().item(), "quarters": quarters, "reading_cpu_seconds": seconds}


@torch.inference_mode()
def support(model: Any, window: Tensor) -> list[float]:
    """Of the last query of a window (T + 1,), the share of keys with weight in each layer, the mean of its heads."""
    weights = model(window[None, :-1], output_attentions=True, use_cache=False).attentions
    return [(layer[0, :, -1] > 0).float().mean().item() for layer in weights]


@torch.inference_mode()
def decoding(model: Any, window: Tensor) -> float:
    """Seconds per token behind a window (T + 1,)."""
    cache = model(window[None, :-1], logits_to_keep=1).past_key_values
    began = time.process_time()
    for _ in range(DECODED):
        model(window[None, -1:], past_key_values=cache)
    return (time.process_time() - began) / DECODED


def trained(model: Any, ids: Tensor, steps: int, length: int) -> Any:
    """`model` with LoRA on its attention, after `steps` windows of `length` tokens."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    adapted = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]))
    weights = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-3, weight_decay=0.0)
    for first in torch.randint(len(ids) - length, (steps,)).tolist():
        window = ids[None, first : first + length]
        adapted.train()(window, labels=window).loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return adapted.eval()


def main() -> None:
    """Measure what is not in --out yet; print a line for each kernel."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a causal language model with its tokenizer")
    parser.add_argument("--train", type=Path, required=True, help="text for LoRA")
    parser.add_argument("--test", type=Path, required=True, help="text that is scored")
    parser.add_argument("--kernels", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--windows", type=int, default=3, help="of the test text, evenly spaced (default: 3)")
    parser.add_argument("--length", type=int, default=512, help="tokens of a window (default: 512)")
    parser.add_argument("--steps", type=int, default=0, help="of LoRA, one window each (default: 0, no training)")
    parser.add_argument("--out", type=Path, required=True, help="a JSON file for what came out")
    arguments = parser.parse_args()
    tokenizer, began = load_tokenizer(arguments.model), time.perf_counter()
    record = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"cases": {}}
    ids = token_ids(tokenizer, arguments.test)
    starts = torch.linspace(0, len(ids) - arguments.length - 1, arguments.windows).long().tolist()
    windows = torch.stack([ids[first : first + arguments.length + 1] for first in starts])
    for name in arguments.kernels:
        label = f"{name}, {arguments.steps} steps"
        if label not in record["cases"]:
            model = load_model(arguments.model)
            model.set_attn_implementation(name)
            if arguments.steps:
                model = trained(model, token_ids(tokenizer, arguments.train), arguments.steps, arguments.length)
            case = {**by_position(model, windows), "decoding_cpu_seconds": decoding(model, windows[0])}
            if name != "sdpa":
                case["support_by_layer"] = support(model, windows[-1])
            record["cases"][label] = case
            record["provenance"] = provenance(wall_seconds=time.perf_counter() - began)
            write_text_atomically(arguments.out, json.dumps(record, indent=1) + "\n")
        case = record["cases"][label]
        share = sum(case.get("support_by_layer", [1.0])) / len(case.get("support_by_layer", [1.0]))
        quarters = " ".join(f"{loss:.3f}" for loss in case["quarters"])
        print(
            f"{label:<32} loss {case['loss']:.3f} (quarters {quarters}), {100 * share:.0f} % of keys, reading "
            f"{1000 * case['reading_cpu_seconds']:.1f} ms, decoding {1000 * case['decoding_cpu_seconds']:.0f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
