"""Bad inputs made from the schemas end in an answer or in one sentence: what is added tomorrow is tried by existing."""

import copy
import inspect
import io
import json
import shutil
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import fields, is_dataclass
from typing import get_args, get_type_hints

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

import tessera
from tessera import recall
from tessera.base.errors import TesseraError
from tessera.cli.main import VERBS, main, make_parser
from tessera.data.tokenizers import TokenizerSpec, build_tokenizer, token_bytes, train_bpe
from tessera.generation.sampling import Sampling, continuation
from tessera.inspection import Trace, trace
from tessera.memory_files import Memory
from tessera.models.armt import ARMTState
from tessera.models.forking import state_tensors
from tessera.models.presets import matching_llama_config
from tessera.models.saving.loading import load_config, load_model, load_tokenizer
from tessera.papers.babilong.benchmark import FIELDS, read_samples
from tessera.recipes.recipe import read_recipe
from tessera.recipes.sections import Recipe
from tests.reliability.conftest import RECIPE, TORTURE, examples, tried
from tests.reliability.faults import in_child

BOOK = "years of work\n"
SPECIAL = [
    "../victim", "a/b", "/", ".", "~", "a\0b", "hf://no", "no/such/model", "5e-3", "nan", "%s%n", "\udcff", "x" * 5000,
    2**31, 2**63, 10**30, -(10**30), {"type": "gaussian"}, {"model_type": "gpt2"}, b"bytes",
]  # fmt: skip
TEXTS = ["a=b", "=", "--", "-", "training.steps=", "training=1", "model.type=", "data.source=[", "seed=-1", "1,2"]
TEXTS += ["9" * 5000, "book.txt", "folder", "/dev/full", "/proc/self/mem", "no.txt"]
SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.sampled_from(SPECIAL) | st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SCALARS, inner, max_size=2), max_leaves=4
)
WORDS = st.sampled_from(TEXTS) | VALUES.map(str)


def paths_of(cls: type, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Where a value can stand in a mapping that is read as dataclass `cls`; nested ones and items of lists included."""
    hints, places = get_type_hints(cls), []
    for item in fields(cls):
        here = (*prefix, item.name)
        places.append(here)
        for hint in (hints[item.name], *get_args(hints[item.name])):
            places += paths_of(hint, here) if is_dataclass(hint) else []
    return places


@st.composite
def spoiled(draw, good: dict, places: list[tuple[str, ...]]) -> dict:
    """A copy of `good` with one to three places set to bad values, and now and then a key that nobody knows."""
    result = copy.deepcopy(good)
    for *way, last in draw(st.lists(st.sampled_from(places), min_size=1, max_size=3)):
        inner = result
        for key in way:
            inner = inner.setdefault(key, {}) if isinstance(inner, dict) else None
            inner = inner[0] if isinstance(inner, list) and inner else inner
        if isinstance(inner, dict):
            inner[last] = draw(VALUES)
    if draw(st.integers(0, 9)) == 0:
        result[draw(SCALARS)] = draw(VALUES)
    return result


@st.composite
def damaged(draw, content: bytes) -> bytes:
    """A file as a disk, an editor or a person may leave it: cut, overwritten, continued, with flipped bits."""
    cut = st.integers(0, max(0, len(content) - 1)).map(lambda size: content[:size])
    longer = st.binary(max_size=20).map(lambda more: content + more)
    others = st.sampled_from([b"", b"[]", b"{}", b"null", b"3", b"[1, [2]]", b"\xff\xfe", b"[" * 100_000])
    bits = st.lists(st.integers(0, max(0, 8 * len(content) - 1)), min_size=1, max_size=8)
    flipped = bits.map(lambda places: _flip(content, places))
    return draw(st.one_of(cut, longer, others, st.binary(max_size=200), flipped))


def _flip(content: bytes, places: list[int]) -> bytes:
    flipped = bytearray(content)
    for place in places if content else ():
        flipped[place // 8] ^= 1 << place % 8
    return bytes(flipped)


class TooLong(BaseException):
    """An input takes more than a few seconds."""


@contextmanager
def in_time():
    """A call that takes more than 20 seconds of processor time is left."""

    def leave(*_):
        raise TooLong

    previous = signal.signal(signal.SIGPROF, leave)
    signal.setitimer(signal.ITIMER_PROF, 20)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


def answers(call, *arguments, **options) -> None:
    """`call` returns, or raises a `TesseraError` that says something."""
    try:
        with in_time(), warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            call(*arguments, **options)
    except TesseraError as error:
        sentence = str(error)
    else:
        return
    assert sentence.strip()
    assert "Traceback" not in sentence


def run(words: list[str], typed: str = "") -> None:
    """The command line in this process, without a terminal; `typed` is its input."""
    stdin, sys.stdin = sys.stdin, io.StringIO(typed)
    try:
        with redirect_stderr(io.StringIO()) as said:
            status = main(words)
    except SystemExit as error:
        status = error.code
    finally:
        sys.stdin = stdin
    assert status in (0, 2, 130)
    assert status != 2 or said.getvalue().strip(), "exit status 2 without a word"
    assert "Traceback" not in said.getvalue()


def copied(source, target):
    shutil.rmtree(target, ignore_errors=True)
    return shutil.copytree(source, target)


@examples(120)
@given(data=st.data())
def test_recipes(shop, data):
    tried()
    good = {**RECIPE, "training": {**RECIPE["training"], "curriculum": [{"length": 2, "steps": 1}]}}
    places = paths_of(Recipe) + [("model", name) for name in load_config(shop.run).to_dict()]
    bad = yaml.safe_dump(data.draw(spoiled(good, places)), allow_unicode=True).encode("utf-8", "surrogatepass")
    path = shop.folder / "recipe.yaml"
    path.write_bytes(data.draw(st.just(bad) | damaged(shop.recipe.read_bytes())))
    answers(read_recipe, path)


@examples(15)
@given(data=st.data())
def test_configurations(shop, data):
    """config.json of a model without and of one with a base model, bad values at every key."""
    tried()
    source = data.draw(st.sampled_from([shop.run, shop.segmented]))
    good = json.loads((source / "config.json").read_text())
    places = [(key,) for key in good] + [("base_config", key) for key in good.get("base_config", {})]
    bad = json.dumps(data.draw(spoiled(good, places)), default=str, skipkeys=True).encode("utf-8", "replace")
    target = copied(source, shop.folder / "model")
    (target / "config.json").write_bytes(data.draw(st.just(bad) | damaged(bad)))
    answers(load_config, target)
    answers(load_model, target)


@examples(10)
@given(data=st.data())
def test_damaged_files_of_models(shop, data):
    tried()
    target = copied(shop.run, shop.folder / "model")
    path = data.draw(st.sampled_from(sorted(file for file in target.iterdir() if file.is_file())))
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    answers(run, ["generate", str(target), "--prompt", "Once", "--max-new-tokens", "1"])


@examples(3)
@given(data=st.data())
def test_damaged_files_of_runs(shop, data):
    """Checkpoints included, damaged or gone; then the run is resumed."""
    tried()
    target = copied(shop.run, shop.folder / "run")
    path = data.draw(st.sampled_from(sorted(file for file in target.rglob("*") if file.is_file())))
    if data.draw(st.booleans()):
        path.unlink()
    else:
        path.write_bytes(data.draw(damaged(path.read_bytes())))
    answers(run, ["train", str(shop.recipe), "--output", str(target), "--resume"])


def documents_of(path) -> dict[str, torch.Tensor]:
    """What a memory file holds: of every document its tokens, and the tensors of its state."""
    memory = Memory().load(path)
    memory.verify()
    return {
        f"{document.name} {index}": tensor
        for document in memory.documents
        for index, tensor in enumerate([document.tokens, document.widths, *state_tensors(document.state)])
    }


def trace_of(path) -> dict[str, torch.Tensor]:
    """What a trace holds."""
    stored = Trace.load(path)
    tensors = {"losses": stored.losses.nan_to_num(), "input_ids": stored.input_ids}
    return tensors | {f"weights {index}": memory.weights for index, memory in enumerate(stored.memories)}


@pytest.fixture(scope="module")
def stored(shop) -> dict:
    """Files of every kind that a checksum guards, and how each is read."""
    page = shop.folder / "trace"
    trace(load_model(shop.run), torch.arange(12)[None], load_tokenizer(shop.run)).save(page)
    states = (shop.memory, lambda path: ARMTState.load(path).tensors())
    return {"states": states, "memory files": (shop.books, documents_of), "traces": (page, trace_of)}


@examples(60)
@given(data=st.data())
def test_damaged_files_with_checksums(shop, stored, data):
    """Either it is refused, or what is read is what was stored."""
    kind, path = data.draw(st.sampled_from(sorted(stored))), shop.folder / "damaged"
    source, read = stored[kind]
    tried(kind)
    path.write_bytes(data.draw(damaged(source.read_bytes())))
    with suppress(TesseraError):
        tensors = read(path)
        assert all(torch.equal(tensors[name], tensor) for name, tensor in read(source).items()), "it was changed"


@pytest.fixture(scope="module")
def programs(shop):
    """A command that decodes by compiled layers, its programs, and what it says."""
    words = ["generate", str(shop.run), "--prompt", "Once", "--max-new-tokens", "5", "--temperature", "0", "--compile"]
    folder = shop.folder / "programs" / "decoding"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TESSERA_CACHE", str(folder.parent))
        main(words)
        with redirect_stdout(io.StringIO()) as said:
            main(words)
        yield words, folder, said.getvalue()


@pytest.mark.skipif(not TORTURE, reason="needs a C++ compiler, and a minute")
@examples(4)
@given(data=st.data())
def test_damaged_programs(programs, tmp_path_factory, data):
    """A compiled program that was changed is made again, never run."""
    words, folder, expected = programs
    copy = copied(folder, tmp_path_factory.getbasetemp() / "copy" / "decoding")
    path = data.draw(st.sampled_from(sorted(copy.iterdir())))
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    tried()

    def compiled_before(*given):
        shutil.copy(folder / given[-1].name, given[-1])

    def decode() -> int:
        with redirect_stdout(io.StringIO()) as said, pytest.MonkeyPatch.context() as patch:
            patch.setenv("TESSERA_CACHE", str(copy.parent))
            patch.setattr(
                "tessera.models.decoding.programs._compile",
                lambda *given: shutil.copy(folder / given[-1].name, given[-1]),
            )
            return main(words) or int(said.getvalue() != expected)

    assert in_child(decode) == (0, "")


@examples(60)
@given(data=st.data())
def test_files_of_samples(shop, data):
    tried()
    good = {"input": "Mary is here.", "question": "Where is Mary?", "target": "here"}
    rows = data.draw(st.lists(spoiled(good, [(name,) for name in FIELDS]), max_size=2))
    content, path = json.dumps([*rows, good], default=str, skipkeys=True).encode(), shop.folder / "samples.json"
    path.write_bytes(data.draw(st.just(content) | damaged(content)))
    answers(read_samples, path)


def right_calls(verb: str, shop) -> list[list[str]]:
    """Calls that would succeed, or, where that takes minutes, be refused late."""
    run, text, books = str(shop.run), str(shop.text), str(shop.books)
    brief = ["--max-new-tokens", "2"]
    calls = {
        "train": [[str(shop.recipe)]],
        "generate": [[run, "--prompt", "Once", *brief]],
        "eval": [[run, "--sequences", "1"]],
        "prompts": [[run, "--many-shot", "banking77", "--shots", "1", "--contexts", "1", "--queries", "1"]],
        "info": [[run]],
        "check": [[run]],
        "plan": [[str(shop.recipe)]],
        "compare": [[run]],
        "sweep": [[str(shop.recipe), "seed=0,1", "data.source=/no/such/text"]],
        "convert": [["book.txt", "converted", "--source", "memory-mosaics"]],
        "models": [["get", "smollm2", "--output", "folder"]],
        "demo": [["data.source=/no/such/text", "--output", "demo"]],
        "memorize": [
            [str(shop.segmented), text, "--out", "book.txt", "--overwrite"],
            [run, text, "--append", "--out", "kings"],
            [run, "-", "--out", "new"],
        ],
        "memories": [
            ["ls", "."],
            ["info", "kings"],
            ["merge", books, "kings", "--out", "kings", "--overwrite"],
            ["forget", "kings", "kings", "--out", "book.txt"],
        ],
        "ask": [
            [str(shop.segmented), "Who?", "--memory", str(shop.memory), *brief],
            [run, "Who?", "--memory", books, "--cite", "--page", "book.txt", *brief],
            [run, "Who?", "--text", text, "--plant", "A king.", *brief],
        ],
        "chat": [[run, "--memory", books, *brief]],
        "inspect": [[run, "--text", text, "--tokens", "20", "--output", "book.txt"]],
        "reproduce": [["no-such-experiment"]],
    }
    return calls.get(verb, [[]])


@pytest.fixture(scope="module")
def office(shop, tmp_path_factory):
    """A folder to work in, programs in a place of their own, and no package that carries a model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TESSERA_CACHE", str(shop.folder / "programs"))
        patch.setattr("tessera.interop.smollm2.PACKAGE", "no_such_package")
        (folder := tmp_path_factory.mktemp("office")).joinpath("folder").mkdir()
        yield folder


@contextmanager
def at_work(folder, shop):
    """In `folder`, where a book and a memory lie; nobody writes on the book."""
    (folder / "book.txt").write_text(BOOK)
    shutil.copy(shop.kings, folder / "kings")
    with chdir(folder), suppress(TooLong):  # a million tokens are a right answer
        yield
    assert (folder / "book.txt").read_text() == BOOK


@examples(60)
@given(data=st.data())
def test_command_lines(shop, office, data):
    """A call of any verb that is right but for one to three options; nothing that is there before may change."""
    verb = data.draw(st.sampled_from(sorted(VERBS)))
    tried(verb)
    words = [verb, *data.draw(st.sampled_from(right_calls(verb, shop)))]
    parser = make_parser()._subparsers._group_actions[0].choices[verb]
    actions = [action for action in parser._actions if action.dest != "help"]
    for action in data.draw(st.lists(st.sampled_from(actions), min_size=1, max_size=3)):
        flags = [data.draw(st.sampled_from(action.option_strings))] if action.option_strings else []
        words += flags + ([] if action.nargs == 0 else data.draw(st.lists(WORDS, max_size=2)))
    words += ["data.source=/no/such/text"] if verb == "train" else []
    with at_work(office, shop):
        answers(run, words)


SAID = st.sampled_from(["/cite", "/read", "/forget", "/save", "/documents", "/new", "/no", "Who?", "\\", "/quit", "/"])
NAMED = st.sampled_from(["kings", "book.txt", "folder", "no.txt", "/dev/full", "../x", "a\0b", "\udcff", "queen", ""])


@examples(20)
@given(lines=st.lists(st.builds(lambda *words: " ".join(words).strip(), SAID, NAMED | WORDS), max_size=6))
def test_conversations(shop, office, lines):
    """Whatever is typed to `tessera chat`, it goes on to the end."""
    tried()
    with at_work(office, shop):
        answers(run, ["chat", str(shop.run), "--memory", "kings", "--max-new-tokens", "2"], "\n".join(lines))


SHAPES = [(), (0,), (5,), (2, 5), (2, 4), (2, 6), (5, 2), (1, 2, 5), (2, 0), (0, 5), (3, 5)]
NUMBERS = [0.0, 1.0, float("nan"), -1.0, 1e9]
DTYPES = [torch.long, torch.int32, torch.float32, torch.bool, torch.float64, torch.uint8]
TENSORS = st.builds(
    lambda shape, number, dtype: torch.full(shape, number).to(dtype), *map(st.sampled_from, (SHAPES, NUMBERS, DTYPES))
)


@pytest.fixture(scope="module")
def models(shop):
    return load_model(shop.run), load_model(shop.segmented)


@examples(150)
@given(data=st.data())
def test_calls_of_forward(models, data):
    """Bad values for every argument of the signature, of a plain and of a segmented model."""
    tried()
    model = data.draw(st.sampled_from(models))
    parameters = inspect.signature(model.forward).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    arguments = {"input_ids": torch.full((2, 5), 7)}
    for name in data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=2)):
        arguments[name] = data.draw(VALUES | TENSORS)
    answers(model, **arguments)


@pytest.fixture(scope="module")
def calls(shop) -> dict[str, tuple[Callable, dict]]:
    """Of what is public beside models and operations: a function, and arguments that it takes."""
    model, tokenizer = load_model(shop.run), load_tokenizer(shop.run)
    memory = Memory(model, tokenizer).load(shop.books)
    keys = torch.rand(2, 9, 4)
    index, few = recall.build(keys, keys), {"max_new_tokens": 2}
    attached = tessera.attach(load_model(shop.run), tokenizer, window=8)

    def fresh() -> Memory:
        return Memory(model, tokenizer).load(shop.books)

    return {
        "attach": (lambda **given: tessera.attach(**given).detach(), {"model": model, "tokenizer": tokenizer}),
        "Attached.read": (attached.read, {"text": "A king. A king."}),
        "compile_decoding": (tessera.compile_decoding, {"model": load_model(shop.run), "weights": "float32"}),
        "Memory": (lambda **given: Memory(**given).read("A king."), {"model": model, "tokenizer": tokenizer}),
        "Memory.read": (fresh().read, {"source": "A king.", "name": None}),
        "Memory.ask": (memory.ask, {"question": "Who?", "sampling": Sampling(2, 0.0), "cite": 1}),
        "Memory.forget": (fresh().forget, {"name": "queen"}),
        "Memory.merge": (fresh().merge, {"other": Memory(model, tokenizer)}),
        "Memory.save": (memory.save, {"path": "saved"}),
        "Memory.load": (Memory(model, tokenizer).load, {"path": "kings"}),
        "Sampling": (
            lambda **given: continuation(model, tokenizer, "Once", Sampling(**{**few, **given})),
            {field.name: field.default for field in fields(Sampling)} | few,
        ),
        "continuation": (
            continuation, {"model": model, "tokenizer": tokenizer, "prompt": "Once", "sampling": Sampling(2)}
        ),
        "recall.build": (recall.build, {"keys": keys, "values": keys, "documents": torch.zeros(9, dtype=torch.long)}),
        "PairIndex.recall": (
            index.recall, {"queries": keys[:, :2], "kernel": "biweight", "slope": 3.0, "intercept": 0.0}
        ),
        "PairIndex.append": (index.append, {"keys": keys, "values": keys}),
        "PairIndex.delete": (index.delete, {"places": torch.tensor([1])}),
        "PairIndex.merge": (index.merge, {"other": index}),
        "build_tokenizer": (build_tokenizer, {"spec": TokenizerSpec(), "texts": ["A king."]}),
        "train_bpe": (train_bpe, {"texts": ["A king."], "vocab_size": 260}),
        "token_bytes": (token_bytes, {"tokenizer": tokenizer}),
        "matching_llama_config": (
            matching_llama_config,
            {"config": tessera.MemoryMosaicV2Config(hidden_size=8, num_heads=2), "equal_parameters": True},
        ),
    }  # fmt: skip


@examples(80)
@given(data=st.data())
def test_calls_of_the_python_api(shop, office, calls, data):
    """One or two arguments are something else: an answer, or a sentence."""
    name = data.draw(st.sampled_from(sorted(calls)))
    tried(name)
    function, good = calls[name]
    given = dict(good)
    for argument in data.draw(st.lists(st.sampled_from(sorted(good)), min_size=1, max_size=2)):
        given[argument] = data.draw(VALUES | TENSORS | st.sampled_from([object(), [object()], len]))
    with at_work(office, shop):
        answers(function, **given)


def test_a_traceback_and_an_empty_sentence_are_noticed():
    def fail(error):
        raise error

    with pytest.raises(IndexError):
        answers(fail, IndexError())
    with pytest.raises(AssertionError):
        answers(fail, TesseraError(" "))
