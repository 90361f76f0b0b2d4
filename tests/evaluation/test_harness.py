"""lm-evaluation-harness gets from `--model tessera` what its own Hugging Face backend gives on the same model."""

import json
import logging
import re
import shutil
import subprocess
import sys

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, BertConfig, BertLMHeadModel

from tessera.base.beginnings import BEGINS_WITH_BOS
from tessera.data.tokenizers import byte_tokenizer
from tessera.evaluation.continuations import Request, continuation_likelihoods
from tessera.models.armt import ARMTConfig, ARMTForCausalLM
from tessera.models.memory_mosaic import MemoryMosaicConfig, MemoryMosaicForCausalLM
from tessera.models.memory_mosaic_v2 import MemoryMosaicV2Config, MemoryMosaicV2ForCausalLM
from tessera.models.saving.loading import load_model, load_tokenizer
from tessera.models.transformer import transformer_config
from tests import refusals
from tests.cli.test_beginnings import BOS, tokenizer_with
from tests.covering import some

pytest.importorskip("lm_eval")
# What the harness's own dependencies warn about while they are imported and while it hands out tasks.
IGNORED = ("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
pytestmark = pytest.mark.filterwarnings(*IGNORED)

SIZES = {"vocab_size": 258, "hidden_size": 24, "num_layers": 2, "num_heads": 2}
WINDOWS = {"intermediate_size": 40, "short_term_span": 6, "long_term_delay": 4, "training_long_term_delay": (2, 9)}
ABSOLUTE = transformer_config(positions="absolute", max_positions=400, **SIZES)
BUILDERS = {
    "v1": lambda: MemoryMosaicForCausalLM(MemoryMosaicConfig(**SIZES, num_persistent_slots=10)),
    "v2": lambda: MemoryMosaicV2ForCausalLM(MemoryMosaicV2Config(**SIZES, **WINDOWS)),
    "armt": lambda: ARMTForCausalLM(
        ARMTConfig(base_config=ABSOLUTE, segment_size=16, num_memory_tokens=2, memory_dim=6)
    ),
    "transformer": lambda: AutoModelForCausalLM.from_config(ABSOLUTE),
    "rotary": lambda: AutoModelForCausalLM.from_config(
        transformer_config(positions="rope", max_positions=400, **SIZES)
    ),
}
NO_OTHERS = {"include_defaults": False}
TASKS = ["local_choice", "local_perplexity", "local_generation"]


@pytest.fixture(scope="module")
def load_once():
    """`datasets.load_dataset`, which takes a third of a second for each of our small files."""
    import datasets

    load, loaded = datasets.load_dataset, {}

    def load_dataset(**arguments):
        key = repr(arguments)
        if key not in loaded:
            loaded[key] = load(**arguments)
        return loaded[key]

    return load_dataset


@pytest.fixture(autouse=True)
def _in_less_time(monkeypatch, load_once):
    """The harness asks pip for a list of all packages at the end of every evaluation: two seconds each."""
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)
    monkeypatch.setattr("datasets.load_dataset", load_once)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of small models whose weights are far from their start."""
    made = {}
    for name, build in BUILDERS.items():
        torch.manual_seed(1)
        model = build()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        made[name] = tmp_path_factory.mktemp(name)
        model.save_pretrained(made[name])
        byte_tokenizer().save_pretrained(made[name])
    return made


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """A folder with a task of multiple choice (behind two examples), one of perplexity and one of generation."""
    folder = tmp_path_factory.mktemp("tasks")
    colours = ["red", "green", "blue", "white"]
    rows = [
        {"question": f"What colour has thing {i}?", "choices": colours[: 2 + i % 3], "answer": i % 2} for i in range(7)
    ]
    texts = [{"text": "Once upon a time there was a king. " * (1 + i)} for i in range(4)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "texts.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))

    def task(name, file, **settings):
        kept = {"data_files": {"test": str(folder / file)}, "cache_dir": str(folder / "cache")}
        data = {"dataset_path": "json", "dataset_kwargs": kept, "test_split": "test", "fewshot_split": "test"}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"task": name, **data, **settings}))

    choice = {"doc_to_text": "Question: {{question}}\nAnswer:", "doc_to_target": "{{answer}}", "num_fewshot": 2}
    metrics = [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")]
    task(
        "local_choice",
        "rows.jsonl",
        output_type="multiple_choice",
        doc_to_choice="{{choices}}",
        metric_list=metrics,
        **choice,
    )
    task(
        "local_perplexity",
        "texts.jsonl",
        output_type="loglikelihood_rolling",
        doc_to_text="",
        doc_to_target="{{text}}",
        metric_list=[{"metric": name} for name in ("word_perplexity", "byte_perplexity", "bits_per_byte")],
    )
    task(
        "local_generation",
        "rows.jsonl",
        output_type="generate_until",
        doc_to_text="Question: {{question}}\nAnswer:",
        doc_to_target="{{choices[answer]}}",
        num_fewshot=1,
        generation_kwargs={"until": ["\n"], "max_gen_toks": 12, "do_sample": False},
        metric_list=[{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    )
    return folder


def samples(model, tasks, names=TASKS):
    """(numbers, answers of the model to every request)"""
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    manager = TaskManager(include_path=str(tasks), **NO_OTHERS)
    results = simple_evaluate(model=model, tasks=list(names), task_manager=manager, bootstrap_iters=0)
    answers = {
        name: [sample["filtered_resps"] for sample in sorted(results["samples"][name], key=lambda one: one["doc_id"])]
        for name in names
    }
    return results["results"], answers


def ours(folder, **options):
    from tessera.evaluation.harness import TesseraLM

    return TesseraLM(str(folder), device="cpu", **options)


def backend(folder, **options):
    """The harness's own, on the same weights."""
    from lm_eval.models.huggingface import HFLM

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    dtype = options.pop("dtype", torch.float32)
    return HFLM(pretrained=load_model(folder).to(dtype), tokenizer=load_tokenizer(folder), backend="causal", **options)


def flat(value):
    if isinstance(value, (list, tuple)):
        return [item for part in value for item in flat(part)]
    if isinstance(value, dict):
        return [item for key in sorted(value) for item in flat(value[key])]
    return [value]


def same(one, other, precision):
    first, second = flat(one), flat(other)
    assert len(first) == len(second) > 0
    for mine, theirs in zip(first, second):
        assert mine == (pytest.approx(theirs, rel=precision) if isinstance(theirs, float) else theirs)


@some("name", BUILDERS, by_default=("rotary",))
def test_every_number_is_that_of_the_harness_and_batches_change_nothing(name, folders, tasks):
    # In float64 the order of sums has no part in this.
    expected = samples(backend(folders[name], batch_size=1, dtype=torch.float64), tasks)
    assert set(expected[0]) == set(TASKS)
    for size in (1, 5) if name == "v2" else (5,):
        same(samples(ours(folders[name], batch_size=size, dtype="float64"), tasks), expected, 1e-9)


def test_single_precision_differs_by_its_rounding(folders, tasks):
    expected = samples(backend(folders["v2"], batch_size=4), tasks, TASKS[:2])
    same(samples(ours(folders["v2"], batch_size=4), tasks, TASKS[:2]), expected, 1e-4)


class HarnessRequest:
    """A request as the harness hands it over."""

    task_name = None

    def __init__(self, *arguments):
        self.args = arguments


def test_order_and_repetition_change_nothing(folders):
    model = ours(folders["v2"], batch_size=3, dtype="float64")
    requests = [HarnessRequest(f"There was a king number {i} who", f" had {i % 3} cats") for i in range(6)]
    requests += [requests[2], HarnessRequest("", "Once"), HarnessRequest("There was ", "one")]
    likelihoods = model.loglikelihood(requests, disable_tqdm=True)
    same(model.loglikelihood(requests[::-1], disable_tqdm=True)[::-1], likelihoods, 1e-9)
    settings = {"until": ["."], "max_gen_toks": 9}
    prompts = [HarnessRequest(f"There was a king number {i} who", dict(settings)) for i in (1, 2, 33, 2)]
    answers = model.generate_until(prompts, disable_tqdm=True)
    assert len(set(answers)) >= 2, "the prompts make no difference"
    assert model.generate_until(prompts[::-1], disable_tqdm=True)[::-1] == answers
    assert [model.generate_until([one], disable_tqdm=True)[0] for one in prompts] == answers


def test_answers_end_at_every_end_token_of_the_model(folders, tmp_path):
    """Llama 3 ends a turn with a token that is not its tokenizer's."""
    for file in folders["rotary"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    prompts = [HarnessRequest(f"thing {i} is", {"until": [], "max_gen_toks": 12}) for i in range(3)]
    without_second_end = ours(tmp_path, dtype="float64", batch_size=3).generate_until(prompts, disable_tqdm=True)
    model, read = load_model(tmp_path), byte_tokenizer()(prompts[0].args[0], return_tensors="pt").input_ids
    said = model.generate(read, max_new_tokens=4, do_sample=False)[0, -1]
    model.generation_config.eos_token_id = [byte_tokenizer().eos_token_id, int(said)]
    model.save_pretrained(tmp_path)
    expected = backend(tmp_path, batch_size=3, dtype=torch.float64).generate_until(prompts, disable_tqdm=True)
    assert expected != without_second_end, "the second end token ends nothing"
    assert ours(tmp_path, dtype="float64", batch_size=3).generate_until(prompts, disable_tqdm=True) == expected


@pytest.mark.parametrize("begins", [True, False], ids=["BOS", "no BOS"])
def test_a_run_begins_texts_as_its_training_did(folders, tmp_path, begins):
    """Where its tokenizer's template says the opposite; what is asked for (`add_bos_token`) goes before."""
    shutil.copytree(folders["v2"], tmp_path, dirs_exist_ok=True)
    tokenizer = tokenizer_with(not begins)
    tokenizer.init_kwargs[BEGINS_WITH_BOS] = begins
    tokenizer.save_pretrained(tmp_path)
    model, opening = ours(tmp_path, dtype="float64"), [BOS] * begins
    assert model.tok_encode("A king") == opening + list(b"A king")
    assert model.tok_batch_encode(["A king"])[0].tolist() == [opening + list(b"A king")]
    single = Request([*opening, *b"A king"], list(b" had")), Request([BOS], list(b"A king"))
    expected = [one.log_likelihood for one in continuation_likelihoods(model.model, single)]
    [(said, _)] = model.loglikelihood([HarnessRequest("A king", " had")], disable_tqdm=True)
    [rolling] = model.loglikelihood_rolling([HarnessRequest("A king")], disable_tqdm=True)
    assert [said, rolling] == pytest.approx(expected, rel=1e-9)
    assert ours(tmp_path, add_bos_token=not begins).tok_encode("A") == [BOS] * (not begins) + list(b"A")


def test_long_term_memories_are_left_out(folders, tasks):
    off = ours(folders["v2"], long_term_memory="off", dtype="float64")
    reference = backend(folders["v2"], dtype=torch.float64)
    reference.model.disable_long_term_memory()
    expected = samples(reference, tasks, TASKS[:1])
    same(samples(off, tasks, TASKS[:1]), expected, 1e-9)
    with_them = samples(ours(folders["v2"], dtype="float64"), tasks, TASKS[:1])
    assert flat(with_them[1]) != flat(expected[1])
    assert (off.long_term_memory, off.get_model_info()["long_term_memory"]) == (False, False)


def test_nothing_is_cut_off(folders):
    transformer, mosaic = ours(folders["transformer"]), ours(folders["v1"])
    longest, beyond = HarnessRequest("a" * 398, "bc"), HarnessRequest("a" * 399, "bcd")
    assert len(transformer.loglikelihood([longest], disable_tqdm=True)) == 1
    too_long = "a request must have at most 400 tokens; got 401. Nothing is cut off"
    refusals.refused(too_long, transformer.loglikelihood, [beyond], disable_tqdm=True)
    to_write = HarnessRequest("a" * 395, {"until": [], "max_gen_toks": 10})
    refusals.refused("must have at most 400 tokens; got 405", transformer.generate_until, [to_write], disable_tqdm=True)
    # A model without positions reads what the backend would cut at 2,048 tokens.
    long = HarnessRequest("the key is x. " + "a" * 2500, " x"), HarnessRequest("the key is y. " + "a" * 2500, " x")
    one, other = mosaic.loglikelihood(list(long), disable_tqdm=True)
    assert one[0] != other[0]
    rotary = ours(folders["rotary"])
    refusals.refused(r"max_length=401 to read beyond it", rotary.loglikelihood, [beyond], disable_tqdm=True)
    assert ours(folders["rotary"], max_length=401).loglikelihood([beyond], disable_tqdm=True)


def test_a_text_longer_than_the_positions_is_cut_into_windows_as_by_the_harness(folders):
    text = HarnessRequest("Once upon a time there was a king. " * 40)
    for name, options in (("transformer", {}), ("v1", {"max_length": 100})):
        model, reference = ours(folders[name], dtype="float64", **options), backend(folders[name], dtype=torch.float64)
        reference._max_length = options.get("max_length")
        expected = reference.loglikelihood_rolling([text], disable_tqdm=True)
        assert model.loglikelihood_rolling([text], disable_tqdm=True) == pytest.approx(expected, rel=1e-9)
    at_once = ours(folders["v1"], dtype="float64").loglikelihood_rolling([text, HarnessRequest("")], disable_tqdm=True)
    assert at_once[0] != pytest.approx(expected[0], rel=1e-3)
    assert at_once[1] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_sise": 4}, "unknown model argument 'batch_sise'. Did you mean 'batch_size'?"),
        ({"batch_size": "auto"}, "batch_size must be a positive integer; got 'auto'"),
        ({"long_term_memory": "of"}, "long_term_memory must be on or off; got 'of'"),
        ({"long_term_memory": "off"}, "must have long-term memories to switch off; this gpt2 has none"),
        ({"dtype": "int8"}, "dtype must be one of float32, bfloat16, float64; got 'int8'"),
        ({"max_length": 401}, "max_length must lie in 2..400, the learned positions; got 401"),
    ],
)
def test_mistakes_in_the_arguments_are_one_line(folders, options, message):
    refusals.refused_in_a_line(message, ours, folders["transformer"], **options)


def test_a_model_that_sees_what_it_predicts_is_refused(tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertLMHeadModel(BertConfig(vocab_size=258, **sizes, max_position_embeddings=32)).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    refusals.refused("see no later token when it predicts one; got BertLMHeadModel", ours, tmp_path)


def test_eval_with_tasks(folders, tasks, tessera, done, refused, monkeypatch):
    from tessera.evaluation import harness

    options = ("--include-path", tasks, "--batch-size", 4)
    command = ("eval", folders["v2"], *options)
    out, _ = done(*command, "--tasks", ",".join(TASKS[:2]), "--json", "--without-long-term-memory")
    report = json.loads(out)
    assert report["long_term_memory"] is False
    assert report["n-samples"]["local_choice"]["effective"] == 7
    assert 0 <= report["results"]["local_choice"]["acc,none"] <= 1
    assert report["provenance"]["configuration"]["tasks"] == TASKS[:2]
    out, _ = done(*command, "--tasks", TASKS[0], "--limit", 2)
    assert re.search(r"metric +value +standard error +shots +filter\nlocal_choice +acc +[01]\.\d{4} ", out)
    stored = tasks / "answers.jsonl"
    done(*command, "--tasks", ",".join(TASKS), "--output", stored)
    rows = [json.loads(line) for line in stored.read_text().splitlines()]
    stored.unlink()
    assert {row["task"]: len(row["answer"]) > 0 for row in rows} == dict.fromkeys(TASKS, True)
    choices = [row["acc"] for row in rows if row["task"] == "local_choice"]
    accuracy = json.loads(done(*command, "--tasks", "local_choice", "--json")[0])["results"]["local_choice"]["acc,none"]
    assert sum(choices) / len(choices) == pytest.approx(accuracy)
    assert all(row["prompt"].endswith("Answer:") for row in rows if row["task"] == "local_generation")
    refused("--include-path must be left out without --tasks", *command, "--task", "mqmtar")
    refused("--tasks must name a task; got none", *command, "--tasks", ",")
    # The harness's own ten thousand files are not read for this.
    few = harness.TaskManager
    monkeypatch.setattr(harness, "TaskManager", lambda include_path, **_: few(include_path=include_path, **NO_OTHERS))
    refused("--tasks local_choise must load; got: ", *command, "--tasks", "local_choise")
    # The shots leave no room in 400 positions.
    status, _, err = tessera("eval", folders["transformer"], *options, "--tasks", TASKS[0], "--max-length", 60)
    assert (status, "a request must have at most 60 tokens; got " in err.splitlines()[-1]) == (2, True)


def test_rows_hold_the_prompts_of_all_choices():
    """Those of WinoGrande differ in the prompt alone; the second was in no row."""
    from tessera.evaluation.harness import _rows

    requests = [("Ann paid Bo, so Ann", " was poor."), ("Ann paid Bo, so Bo", " was poor.")]
    scored = {"target": 0, "filtered_resps": [(-1.0, False), (-2.0, False)], "metrics": ["acc"], "acc": 1.0}
    (row,) = _rows({"winogrande": [{"arguments": requests, **scored}]})
    assert (row["prompt"], row["asked"]) == (requests[0][0], [(" was poor.",), requests[1]])
    (row,) = _rows({"arc": [{"arguments": [("Q:", " a"), ("Q:", " b")], **scored}]})
    assert (row["prompt"], row["asked"], row["acc"]) == ("Q:", [(" a",), (" b",)], 1.0)


def test_arguments_of_the_harness_own_command_line(folders, monkeypatch):
    """Its default device is a GPU, and model arguments may say again what its options say."""
    from tessera.evaluation.harness import TesseraLM

    options = {"batch_size": 1, "max_batch_size": None, "device": "cuda:0"}
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    model = TesseraLM.create_from_arg_string(f"pretrained={folders['v1']},batch_size=3", options)
    assert (model.device.type, model.batch_size) == ("cpu", 3)
    model = TesseraLM.create_from_arg_obj({"pretrained": str(folders["v1"]), "device": "cpu"}, {"device": "cuda:0"})
    assert model.device.type == "cpu"
    for device in ("cuda:7", "gpu"):
        arguments = f"pretrained={folders['v1']},device={device}"
        message = f"device must be one of this machine, such as cpu; got '{device}'"
        refusals.refused(message, TesseraLM.create_from_arg_string, arguments, options)


@pytest.mark.slow
def test_the_harness_own_command_line(folders, tasks):
    command = [sys.executable, "-m", "tessera.lm_eval", "--model", "tessera", "--include_path", str(tasks)]
    command += ["--tasks", "local_choice", "--model_args"]
    arguments = f"pretrained={folders['v2']},batch_size=2,long_term_memory="
    done = subprocess.run([*command, arguments + "off"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.search(r"^\| *Tasks *\|Version\|Filter\|n-shot\|", done.stdout, re.M)
    assert "|local_choice|" in done.stdout
    done = subprocess.run([*command, arguments + "of"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].endswith("long_term_memory must be on or off; got 'of'.")
