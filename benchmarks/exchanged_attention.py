"""A pretrained decoder's attention exchanged for compact kernels: without training, and after a short one with LoRA.

    tessera models get smollm2 --output smollm2
    OMP_NUM_THREADS=1 python -m benchmarks.exchanged_attention smollm2 --train tessera/data/novels/*.txt \\
        --test tessera/data/test_books/the_adventures_of_sherlock_holmes_1661.txt.gz \\
        --out results/attached/attention.json

Loss by position in windows of the test book, the share of keys with weight by layer and number of keys, and seconds
per token of reading and of decoding, each beside the softmax that the model was trained with. With --steps, the
projections of the attention get LoRA of rank 8, which is trained on the training text under the exchanged attention;
the softmax gets the same training. What is killed goes on from --out, and within a training from a file beside it.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tessera.base.files import write_atomically, write_text_atomically
from tessera.data.text_files import text_of_files
from tessera.evaluation.provenance import provenance
from tessera.models.attention import ATTENTION_KERNELS, learn_alpha
from tessera.models.saving.loading import load_model, load_tokenizer

LEARNED = "learned"  # alpha-entmax, its alphas trained with LoRA from 1.5
NAMES = ("sdpa", *(name for name in ATTENTION_KERNELS if name not in ("tessera_gaussian", "tessera_entmax")), LEARNED)
RATE, ALPHA_RATE = 1e-3, 3e-2
DECODED = 16
SAVE_EVERY = 10  # steps of LoRA


def token_ids(tokenizer: Any, paths: list[Path]) -> Tensor:
    """The texts of all files, one behind the other, as tokens (T,)."""
    return torch.tensor(tokenizer("".join(text_of_files(paths)), verbose=False)["input_ids"])


@torch.inference_mode()
def by_position(model: Any, windows: Tensor, parts: int = 4) -> dict[str, Any]:
    """Mean loss of each quarter of the windows (W, T + 1), and CPU seconds per token of the fastest window."""
    losses, seconds = [], []
    for window in windows:
        began = time.process_time()
        logits = model(window[None, :-1], use_cache=False).logits[0].float()
        seconds.append((time.process_time() - began) / len(logits))
        losses.append(torch.nn.functional.cross_entropy(logits, window[1:], reduction="none"))
    quarters = [part.mean().item() for part in torch.stack(losses).chunk(parts, 1)]
    return {"loss": torch.stack(losses).mean().item(), "quarters": quarters, "reading_cpu_seconds": min(seconds)}


@torch.inference_mode()
def support(model: Any, window: Tensor) -> dict[str, list[float]]:
    """Number of keys -> the share of them with weight in each layer, the mean of its heads and of 8 queries in turn.

    The numbers are an eighth, a quarter, a half and all of the window (T + 1,).
    """
    weights = model(window[None, :-1], output_attentions=True, use_cache=False).attentions
    shares = {}
    for keys in ((len(window) - 1) // divisor for divisor in (8, 4, 2, 1)):
        rows = [layer[0, :, keys - 8 : keys] > 0 for layer in weights]
        shares[str(keys)] = [(row.float().sum(-1) / torch.arange(keys - 7, keys + 1)).mean().item() for row in rows]
    return shares


@torch.inference_mode()
def decoding(model: Any, window: Tensor) -> float:
    """CPU seconds per token behind a window (T + 1,), the median token's."""
    cache, seconds = model(window[None, :-1], logits_to_keep=1).past_key_values, []
    for _ in range(DECODED):
        began = time.process_time()
        model(window[None, -1:], past_key_values=cache)
        seconds.append(time.process_time() - began)
    return statistics.median(seconds)


def trained(model: Any, ids: Tensor, steps: int, length: int, saved: Path) -> Any:
    """`model` with LoRA merged into its attention, after `steps` windows of `length` tokens; goes on from `saved`."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    adapted = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]))
    alphas = [parameter for name, parameter in adapted.named_parameters() if name.endswith("alpha_logit")]
    low_rank = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    weights = [*low_rank, *(parameter.requires_grad_() for parameter in alphas)]
    groups = [{"params": low_rank, "lr": RATE}, {"params": alphas, "lr": ALPHA_RATE}]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], weight_decay=0.0)
    done = restored(saved, weights, optimizer) if saved.exists() else 0
    starts = torch.randint(len(ids) - length, (steps,)).tolist()
    adapted.train()
    for step, first in enumerate(starts[done:], done + 1):
        window = ids[None, first : first + length]
        loss = adapted(window, labels=window, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % SAVE_EVERY == 0:
            print(f"  step {step} of {steps}: loss {loss.item():.3f}", flush=True)
            save(saved, weights, optimizer, step)
    return adapted.merge_and_unload().eval()


def save(path: Path, weights: list[Tensor], optimizer: torch.optim.Optimizer, step: int) -> None:
    """What a training goes on from: weights and AdamW's state."""
    tensors = {"done": torch.tensor(step)}
    for number, weight in enumerate(weights):
        state = {"weight": weight.detach(), **optimizer.state[weight]}
        tensors |= {f"{number}.{name}": tensor.contiguous() for name, tensor in state.items()}
    write_atomically(path, lambda draft: save_file(tensors, draft))


def restored(path: Path, weights: list[Tensor], optimizer: torch.optim.Optimizer) -> int:
    """The steps done of the training that `save` wrote to `path`, whose numbers are put back."""
    tensors = load_file(path)
    for number, weight in enumerate(weights):
        weight.data.copy_(tensors[f"{number}.weight"])
        names = ("step", "exp_avg", "exp_avg_sq")
        optimizer.state[weight] = {name: tensors[f"{number}.{name}"] for name in names}
    return int(tensors["done"])


def main() -> None:
    """Measure what is not in --out yet; print a line for each kernel."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a causal language model with its tokenizer")
    parser.add_argument("--train", type=Path, nargs="+", required=True, help="texts for LoRA")
    parser.add_argument("--test", type=Path, required=True, help="text that is scored")
    parser.add_argument("--kernels", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--windows", type=int, default=3, help="of the test text, evenly spaced (default: 3)")
    parser.add_argument("--length", type=int, default=512, help="tokens of a window (default: 512)")
    parser.add_argument("--steps", type=int, default=0, help="of LoRA, one window each (default: 0, no training)")
    parser.add_argument("--train-length", type=int, default=256, help="tokens of a window of LoRA (default: 256)")
    parser.add_argument("--out", type=Path, required=True, help="a JSON file for what came out")
    arguments = parser.parse_args()
    tokenizer, began = load_tokenizer(arguments.model), time.perf_counter()
    record = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"cases": {}}
    settings = {name: getattr(arguments, name) for name in ("windows", "length", "train_length")}
    settings |= {"train": [path.name for path in arguments.train], "test": arguments.test.name}
    if record.setdefault("settings", settings) != settings:
        parser.error(f"{arguments.out} was made with {record['settings']}")
    ids = token_ids(tokenizer, [arguments.test])
    starts = torch.linspace(0, len(ids) - arguments.length - 1, arguments.windows).long().tolist()
    windows = torch.stack([ids[first : first + arguments.length + 1] for first in starts])
    for name in arguments.kernels:
        label = f"{name}, {arguments.steps} steps"
        if label not in record["cases"]:
            model = load_model(arguments.model)
            if name == LEARNED:
                learned = learn_alpha(model)
            else:
                model.set_attn_implementation(name)
            if arguments.steps:
                saved = arguments.out.with_suffix(f".{name}.safetensors")
                train_ids = token_ids(tokenizer, arguments.train)
                model = trained(model, train_ids, arguments.steps, arguments.train_length, saved)
            case = {**by_position(model, windows), "decoding_cpu_seconds": decoding(model, windows[0])}
            if name != "sdpa":
                case["support_by_keys"] = support(model, windows[-1])
            if name == LEARNED:
                case["alphas"] = {name: alphas.alpha.tolist() for name, alphas in learned.items()}
            record["cases"][label] = case
            record["provenance"] = provenance(wall_seconds=time.perf_counter() - began)
            write_text_atomically(arguments.out, json.dumps(record, indent=1) + "\n")
            if arguments.steps:
                saved.unlink()
        case = record["cases"][label]
        share = statistics.mean(case.get("support_by_keys", {}).get(str(arguments.length), [1.0]))
        quarters = " ".join(f"{loss:.3f}" for loss in case["quarters"])
        print(
            f"{label:<32} loss {case['loss']:.3f} (quarters {quarters}), {100 * share:.0f} % of keys, reading "
            f"{1000 * case['reading_cpu_seconds']:.1f} ms, decoding {1000 * case['decoding_cpu_seconds']:.0f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
