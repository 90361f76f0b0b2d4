"""Models in EleutherAI's lm-evaluation-harness (the optional extra `tessera[eval]`): `--model tessera`.

Tokens, prompts, metrics and generation are the harness's; the numbers are those of its own Hugging Face backend. What
differs is how a model reads: contexts whose continuations are compared are read once (`continuation_likelihoods`),
models without a longest context read texts of any length, and a request that is too long is an error, where the backend
cuts its beginning off.
"""

import importlib.metadata
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.registry import register_model
from lm_eval.evaluator import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window, simple_parse_args_string
from tokenizers.processors import TemplateProcessing

from tessera.base.beginnings import BEGINS_WITH_BOS, opening_tokens
from tessera.base.errors import TesseraError, did_you_mean, expect
from tessera.data.encoding import num_ids
from tessera.evaluation.continuations import Request, continuation_likelihoods
from tessera.evaluation.provenance import provenance
from tessera.models.causality import expect_next_token
from tessera.models.saving.loading import load_model, load_tokenizer
from tessera.models.sizes import num_parameters
from tessera.models.transformer import context_limit

WHERE = "lm_eval --model tessera"
ARGUMENTS = "pretrained long_term_memory batch_size max_length dtype device add_bos_token prefix_token_id".split()
DEFAULT_DEVICE = "cuda:0"  # of the harness's command line
SWITCHES = {"on": True, "off": False, True: True, False: False}
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


@register_model("tessera")
class TesseraLM(HFLM):
    """The model in folder `pretrained`, as the harness asks for it.

    Args:
        pretrained: a run, checkpoint or model folder. long_term_memory: "off" leaves the long-term memories of a v2
            model out (Memory Mosaics v2, tables 2 and 6). batch_size: rows per call. max_length: the longest request in
            tokens (default: the positions that the model has learned or states; none for models without positions).
        dtype: of the weights: float32, bfloat16 or float64. device: such as cuda or cpu. add_bos_token,
            prefix_token_id: as of the harness's backend; without the first a run begins texts as its training did.
    Raises `TesseraError`: an unknown argument, a folder without a model, and later each request that is too long.
    """

    def __init__(
        self,
        pretrained: str | None = None,
        long_term_memory: str | bool = "on",
        batch_size: int | str = 1,
        max_length: int | None = None,
        dtype: str = "float32",
        device: str | None = None,
        add_bos_token: bool | None = None,
        prefix_token_id: int | None = None,
        max_batch_size: int | None = None,
        **unknown: object,
    ) -> None:
        for name in unknown:
            raise TesseraError(f"{WHERE}: unknown model argument {name!r}. {did_you_mean(name, ARGUMENTS)}")
        expect(bool(pretrained), WHERE, "model argument pretrained", "be a model's folder", "none")
        expect(long_term_memory in SWITCHES, WHERE, "long_term_memory", "be on or off", repr(long_term_memory))
        expect(dtype in PRECISIONS, WHERE, "dtype", "be one of " + ", ".join(PRECISIONS), repr(dtype))
        is_number = str(batch_size).isdigit() and int(batch_size) > 0
        expect(is_number, WHERE, "batch_size", "be a positive integer", repr(batch_size))
        has_device = device is None or _is_there(device)
        expect(has_device, WHERE, "device", "be one of this machine, such as cpu", repr(device))
        model = load_model(str(pretrained), long_term_memory=SWITCHES[long_term_memory])
        expect_next_token(model, WHERE)
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        longest = context_limit(model.config)
        if max_length is not None:
            valid = isinstance(max_length, int) and 1 < max_length <= (longest or max_length)
            requirement = f"lie in 2..{longest}, the learned positions" if longest else "be an integer above 1"
            expect(valid, WHERE, "max_length", requirement, max_length)
        # Models of transformers state a longest context, such as the trained one of rotary positions.
        stated = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self.longest: int | None = max_length or longest or stated
        self.long_term_memory = getattr(model.config, "recalls_long_term", None)
        tokenizer = load_tokenizer(str(pretrained))
        self.begins_as_trained = add_bos_token is None and tokenizer.init_kwargs.get(BEGINS_WITH_BOS) is not None
        if self.begins_as_trained:  # whatever its template says
            special = [tokenizer.bos_token] * len(opening_tokens(tokenizer))
            known = [(token, tokenizer.bos_token_id) for token in special]
            tokenizer.backend_tokenizer.post_processor = TemplateProcessing([*special, "$A"], None, known)
        logger = logging.getLogger("lm_eval.models.huggingface")
        level = logger.level
        logger.setLevel(logging.ERROR)  # it warns of what is meant: a model in place of its name
        try:
            super().__init__(
                pretrained=model.to(device, PRECISIONS[dtype]),
                tokenizer=tokenizer,
                backend="causal",
                batch_size=int(batch_size),
                add_bos_token=add_bos_token,
                prefix_token_id=prefix_token_id,
            )
        finally:
            logger.setLevel(level)
        self.folder = str(pretrained)
        size, largest = model.config.get_text_config().vocab_size, num_ids(self.tokenizer)
        expect(largest <= size, WHERE, "the tokenizer", f"fit the model (vocab_size {size})", f"{largest} tokens")

        if self.model.can_generate():  # else rows go on behind the end token as long as others of their batch do
            own = self.model.generation_config.eos_token_id
            ends = {self.eot_token_id, *(own if isinstance(own, list) else [own])} - {None}
            self.model.generation_config.eos_token_id = sorted(ends)

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> "TesseraLM":
        """See `create_from_arg_obj`."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> "TesseraLM":
        """The model of these arguments; `additional_config`: options of the command line, which count behind them.

        Its default for the device is a GPU, whether there is one or not.
        """
        options = {name: value for name, value in (additional_config or {}).items() if value is not None}
        if options.get("device") == DEFAULT_DEVICE and not torch.cuda.is_available():
            del options["device"]
        return cls(**{**options, **arg_dict})

    @property
    def max_length(self) -> int:
        """The longest request in tokens; 2^62 for models without a longest context."""
        return self.longest or 1 << 62

    def get_model_info(self) -> dict[str, Any]:
        """What the harness stores with its results."""
        return {
            "model_num_parameters": num_parameters(self.model),
            "model_dtype": str(self.model.dtype),
            "model_revision": "",
            "model_sha": "",
            "long_term_memory": self.long_term_memory,
        }

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **options: object
    ) -> list[tuple[float, bool]]:
        pairs = [Request(context, continuation) for _, context, continuation in requests]
        for (texts, _, _), pair in zip(requests, pairs):
            self._expect_room(len(pair.context) + len(pair.continuation) - 1, texts)
        likelihoods = continuation_likelihoods(
            self.model,
            pairs,
            batch_size=self.batch_size,
            progress=not disable_tqdm and self.rank == 0 and sys.stderr.isatty(),
        )
        answers = [(likelihood.log_likelihood, likelihood.is_greedy) for likelihood in likelihoods]
        for (texts, _, _), answer in zip(requests, answers):
            if texts is not None:
                self.cache_hook.add_partial("loglikelihood", texts, answer)
        return answers

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """log p of each whole text after the prefix token, in nats.

        A text longer than `max_length` is cut into windows that predict every token once, as the harness defines it;
        without a longest context it is one window.
        """
        windows: list[tuple[None, list[int], list[int]]] = []
        owners: list[int] = []
        for number, request in enumerate(requests):
            # The prefix token begins the text.
            tokens = self.tok_encode(request.args[0], add_special_tokens=False if self.begins_as_trained else None)
            pieces = get_rolling_token_windows(tokens, self.prefix_token_id, min(self.max_length, len(tokens) + 1), 1)
            for context, continuation in map(make_disjoint_window, pieces if tokens else ()):
                windows.append((None, context, continuation))
                owners.append(number)
        totals = [0.0] * len(requests)
        for owner, (value, _) in zip(owners, self._loglikelihood_tokens(windows, disable_tqdm)):
            totals[owner] += value
        for request, total in zip(requests, totals):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """What the model writes after each context, as the backend generates it; nothing is cut off."""
        expect(self.model.can_generate(), WHERE, "the model", "be one that generates", self.model.config.model_type)
        for context, settings in (request.args for request in requests):
            length = len(self.tok_encode(context))
            expect(length > 0, WHERE, "a context", "hold at least one token", repr(context))
            new = normalize_gen_kwargs(settings, self.max_gen_toks)["max_gen_toks"]
            self._expect_room(length + new, (context, f"{new} new tokens"))
        return super().generate_until(requests, disable_tqdm or not sys.stderr.isatty())

    def _expect_room(self, length: int, request: object) -> None:
        if self.longest is not None and length > self.longest:
            text = "" if request is None else f" It begins: {str(request)[:60]!r}."
            advice = "Nothing is cut off: use shorter requests or fewer shots"
            if context_limit(self.model.config) is None:
                advice += f", or model argument max_length={length} to read beyond it"
            raise TesseraError(
                f"{WHERE}: a request must have at most {self.longest:,} tokens; got {length:,}. {advice}.{text}"
            )


def _is_there(device: str) -> bool:
    try:
        torch.empty(1, device=device)
    except Exception:  # of an unknown name, or of a driver that is not installed
        return False
    return True


def harness_report(model: TesseraLM, tasks: Sequence[str], *, samples: bool = False, **settings: Any) -> dict[str, Any]:
    """`evaluate_tasks` as a JSON-ready record with provenance; with `samples` also what was asked and answered."""
    began = time.time()
    results = evaluate_tasks(model, tasks, log_samples=samples, **settings)
    kept = ("results", "groups", "versions", "n-shot", "n-samples", "higher_is_better")
    configuration = {
        "model": model.model.config.to_diff_dict(),
        "tasks": list(tasks),
        "harness": importlib.metadata.version("lm_eval"),
        "batch_size": model.batch_size,
        "max_length": model.longest,
        **{name: None if value is None else str(value) for name, value in settings.items()},
    }
    return {
        "long_term_memory": model.long_term_memory,
        **{name: results[name] for name in kept if name in results},
        **({"samples": list(_rows(results["samples"]))} if samples else {}),
        "provenance": provenance(configuration=configuration, seed=0, wall_seconds=time.time() - began),
    }


def _rows(samples: dict[str, list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """A row for each sample of each task: prompt, what was asked behind it, target, answer, and its scores.

    Where requests have prompts of their own, as those of WinoGrande, the others stand before what is asked.
    """
    for task, of_task in samples.items():
        for sample in of_task:
            prompt, requests = sample["arguments"][0][0], sample["arguments"]
            question = {"prompt": prompt, "asked": [one[1:] if one[0] == prompt else one for one in requests]}
            outcome = {"target": sample["target"], "answer": sample["filtered_resps"]}
            yield {"task": task, **question, **outcome, **{name: sample[name] for name in sample["metrics"]}}


def expect_tasks(tasks: Sequence[str], include_path: str | Path | None = None) -> None:
    """Raise `TesseraError` where no task is named, or `include_path` is no folder."""
    expect(include_path is None or Path(include_path).is_dir(), "eval", "--include-path", "be a folder", include_path)
    expect(len(tasks) > 0, "eval", "--tasks", "name a task", "none")


def evaluate_tasks(
    model: TesseraLM, tasks: Sequence[str], *, include_path: str | Path | None = None, **options: Any
) -> dict[str, Any]:
    """The harness's results of `model` on these tasks, of its own or from YAML files in folder `include_path`.

    `options` are those of its `simple_evaluate`, such as `limit` and `num_fewshot`.
    Raises `TesseraError`: a task that is unknown or cannot be loaded, such as for want of its data set.
    """
    expect_tasks(tasks, include_path)
    path = None if include_path is None else str(include_path)
    manager = TaskManager(include_path=path, include_defaults=False) if path else None
    if manager is None or not all(manager.match_tasks([name]) for name in tasks):
        manager = TaskManager(include_path=path)  # reads some ten thousand files
    try:
        manager.load(list(tasks))
    except Exception as error:  # whatever a task's files and data set bring up
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise TesseraError(f"eval: --tasks {','.join(tasks)} must load; got: {reason}.") from error
    return simple_evaluate(model=model, tasks=list(tasks), task_manager=manager, batch_size=model.batch_size, **options)
