"""Bad inputs made from the schemas: a field, an option or an argument that is added tomorrow is fuzzed by existing."""

import argparse
import inspect
import io
import json
import shutil
import sys
from contextlib import chdir
from functools import partial
from pathlib import Path
from random import Random

import torch
import yaml

from tessera.cli.main import VERBS, main, make_parser
from tessera.models.saving.loading import load_config, load_model
from tests.reliability.hostile import TEXTS, VALUES, damaged, paths_of, put, spoiled
from tests.reliability.verdict import Tally, cause_of
from tests.reliability.workshop import Workshop

BOOK = "years of work\n"


def fuzz_recipes(shop: Workshop, folder: Path, count: int, chance: Random) -> Tally:
    """Recipe files with bad values at every field of every section and stage, and as bytes that are no YAML."""
    from tessera.recipes.recipe import read_recipe
    from tessera.recipes.sections import Recipe
    from tessera.training.curriculum import Stage

    tally, good = Tally("recipes"), yaml.safe_load(shop.recipe.read_text())
    model = load_config(shop.run).to_dict()
    places = paths_of(Recipe) + [("model", name) for name in (*good["model"], *model)]
    path = folder / "recipe.yaml"
    for _ in range(count):
        if chance.random() < 0.1:
            content = damaged(shop.recipe.read_bytes(), chance)
        else:
            bad = spoiled(good, places, chance)
            if chance.random() < 0.2:
                put(bad, ("training", "curriculum"), [spoiled({"length": 2, "steps": 1}, paths_of(Stage), chance)])
            content = yaml.safe_dump(bad, allow_unicode=True).encode("utf-8", "surrogatepass")
        path.write_bytes(content)
        tally.add(cause_of(partial(read_recipe, path)), content.decode("utf-8", "replace"))
    return tally


def fuzz_stages(shop: Workshop, folder: Path, count: int, chance: Random) -> Tally:
    """Stages of questions with bad values at their fields and at the task's settings, until their data are open."""
    from tessera.data.sources import BUNDLED
    from tessera.papers.babilong.task import BABILong
    from tessera.recipes.files import find_recipe
    from tessera.recipes.recipe import read_recipe
    from tessera.training.curriculum import Stage
    from tessera.training.staged_data import open_staged_data

    tally, path, books = Tally("stages of questions"), folder / "stages.yaml", folder / "books"
    books.mkdir()
    for book in BUNDLED["stories"].glob("*.txt"):  # whole books would take longer to tokenise than all else
        (books / book.name).write_text(book.read_text(encoding="utf-8")[:20_000], encoding="utf-8")
    good = yaml.safe_load(find_recipe("armt-babilong-qa1").read_text())
    good["data"]["task"] |= {"vocab_size": 250, "noise": str(books)}
    settings = [("settings", *place) for place in paths_of(BABILong)]
    for _ in range(count):
        stage = spoiled({"length": 2, "steps": 1, "min_length": 2}, chance.choice((paths_of(Stage), settings)), chance)
        bad = {**good, "training": {**good["training"], "curriculum": [stage]}}
        path.write_bytes(yaml.safe_dump(bad, allow_unicode=True).encode("utf-8", "surrogatepass"))
        tally.add(cause_of(lambda: open_staged_data(read_recipe(path), folder, saved_tokenizer=False)), repr(stage))
    return tally


def fuzz_command_lines(shop: Workshop, folder: Path, count: int, chance: Random) -> Tally:
    """Every verb with every option of its parser; nothing that is there before may change."""
    tally = Tally("command lines")
    verbs = _verbs()
    (folder / "folder").mkdir(exist_ok=True)
    with chdir(folder):
        for _ in range(count):
            Path("book.txt").write_text(BOOK)
            words = _command_line(chance.choice(list(VERBS)), verbs, shop, chance)
            tally.add(cause_of(partial(_run, words), may_take_long=True) or _book_lost(), repr(words))
    return tally


def fuzz_configurations(shop: Workshop, folder: Path, count: int, chance: Random) -> Tally:
    """config.json of a model without and of one with a base model, bad values at every key."""
    tally = Tally("configurations")
    for number in range(count):
        source = (shop.run, shop.segmented)[number % 2]
        good = json.loads((source / "config.json").read_text())
        places = [(key,) for key in good]
        places += [("base_config", key) for key in good.get("base_config", {})]
        content = json.dumps(spoiled(good, places, chance), default=str, skipkeys=True).encode("utf-8", "replace")
        target = _copy(source, folder / "model")
        (target / "config.json").write_bytes(content if chance.random() < 0.8 else damaged(content, chance))
        tally.add(cause_of(partial(_load, target)), content.decode("utf-8", "replace"))
    return tally


def fuzz_files(shop: Workshop, folder: Path, count: int, chance: Random) -> Tally:
    """Every file of a model folder, damaged; then the model is loaded with its tokenizer and says a token."""
    tally = Tally("damaged model files")
    for _ in range(count):
        target = _copy(shop.run, folder / "model")
        path = chance.choice(sorted(file for file in target.iterdir() if file.is_file()))
        path.write_bytes(damaged(path.read_bytes(), chance))
        words = ["generate", str(target), "--prompt", "Once", "--max-new-tokens", "1"]
        tally.add(cause_of(partial(_run, words)), path.name)
    return tally


def fuzz_memories(shop: Workshop, folder: Path, count: int, chance: Random) -> Tally:
    """A stored memory, damaged: either it is refused, or what is read is what was stored."""
    from tessera.models.armt import ARMTState

    tally = Tally("damaged memories")
    stored = ARMTState.load(shop.memory).tensors()
    path = folder / "memory"

    def load() -> None:
        tensors = ARMTState.load(path).tensors()
        assert all(torch.equal(tensors[name], tensor) for name, tensor in stored.items()), "a changed memory was read"

    for _ in range(count):
        path.write_bytes(damaged(shop.memory.read_bytes(), chance))
        tally.add(cause_of(load))
    return tally


def fuzz_samples(shop: Workshop, folder: Path, count: int, chance: Random) -> Tally:
    """Files of BABILong samples, with bad values in their rows and damaged."""
    from tessera.papers.babilong.benchmark import FIELDS, read_samples

    tally = Tally("files of samples")
    good = {"input": "Mary is here.", "question": "Where is Mary?", "target": "here"}
    path = folder / "samples.json"
    for _ in range(count):
        rows = [spoiled(good, [(name,) for name in FIELDS], chance) for _ in range(chance.randrange(3))] + [good]
        content = json.dumps(rows, default=str, skipkeys=True).encode()
        path.write_bytes(content if chance.random() < 0.5 else damaged(content, chance))
        tally.add(cause_of(partial(read_samples, path)), content.decode())
    return tally


def fuzz_run_files(shop: Workshop, folder: Path, count: int, chance: Random) -> Tally:
    """Every file of a run's folder, checkpoints included, damaged or gone; then the run is resumed."""
    tally = Tally("damaged run files")
    for _ in range(count):
        target = _copy(shop.run, folder / "run")
        path = chance.choice(sorted(file for file in target.rglob("*") if file.is_file()))
        if chance.random() < 0.2:
            path.unlink()
        else:
            path.write_bytes(damaged(path.read_bytes(), chance))
        words = ["train", str(shop.recipe), "--output", str(target), "--resume"]
        tally.add(cause_of(partial(_run, words)), str(path.relative_to(target)))
    return tally


def fuzz_calls(shop: Workshop, folder: Path, count: int, chance: Random) -> Tally:
    """`forward` of a plain and of a segmented model, bad values for every argument of its signature."""
    tally = Tally("calls of forward")
    models = [load_model(shop.run), load_model(shop.segmented)]
    for number in range(count):
        model = models[number % 2]
        names = [name for name, p in inspect.signature(model.forward).parameters.items() if p.kind is not p.VAR_KEYWORD]
        arguments = {"input_ids": torch.randint(0, 250, (2, 5))}
        for name in chance.sample(names, chance.choice((1, 1, 2))):
            arguments[name] = _hostile_argument(chance)
        described = {name: getattr(value, "shape", value) for name, value in arguments.items()}
        tally.add(cause_of(partial(model, **arguments)), f"{type(model).__name__} {described}")
    return tally


FUZZERS = {
    "recipes": fuzz_recipes,
    "stages": fuzz_stages,
    "command_lines": fuzz_command_lines,
    "configurations": fuzz_configurations,
    "files": fuzz_files,
    "memories": fuzz_memories,
    "samples": fuzz_samples,
    "run_files": fuzz_run_files,
    "calls": fuzz_calls,
}


def _verbs() -> dict[str, list[argparse.Action]]:
    parser = make_parser()
    verbs = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return {name: child._actions for name, child in verbs.choices.items()}


def _command_line(verb: str, verbs: dict[str, list[argparse.Action]], shop: Workshop, chance: Random) -> list[str]:
    """A call that is right but for one to three options. Nothing that works may take long, or train."""
    words, actions = _right_call(verb, shop), [one for one in verbs[verb] if one.dest != "help"]
    for action in chance.sample(actions, min(len(actions), chance.choice((1, 1, 2, 3)))):
        flags = [chance.choice(action.option_strings)] if action.option_strings else []
        takes = 0 if action.nargs == 0 else chance.choice((0, 1, 1, 1, 2))
        values = [chance.choice(TEXTS) for _ in range(takes)]
        words[1:1] = flags + values if chance.random() < 0.5 else []
        words += flags + values
    if verb == "train":
        words += ["data.source=/no/such/text"]
    return words


def _right_call(verb: str, shop: Workshop) -> list[str]:
    calls = {
        "train": [str(shop.recipe)],
        "generate": [str(shop.run), "--prompt", "Once", "--max-new-tokens", "1"],
        "eval": [str(shop.run), "--sequences", "1"],
        "info": [str(shop.run)],
        "plan": [str(shop.recipe)],
        "compare": [str(shop.run)],
        "convert": ["book.txt", "converted", "--source", "memory-mosaics"],
        "demo": ["data.source=/no/such/text", "--output", "demo"],
        "memorize": [str(shop.segmented), str(shop.text), "--out", "book.txt", "--overwrite"],
        "ask": [str(shop.segmented), "Who?", "--memory", str(shop.memory), "--max-new-tokens", "1"],
        "reproduce": ["no-such-experiment"],
    }
    return [verb, *calls.get(verb, [])]


def _run(words: list[str]) -> None:
    """The command line in this process, without a terminal and without input."""
    stdin, sys.stdin = sys.stdin, io.StringIO("")
    try:
        status = main(words)
    except SystemExit as error:
        status = error.code
    finally:
        sys.stdin = stdin
    said = sys.stderr.getvalue()
    assert status in (0, 2, 130), f"exit status {status}"
    assert status != 2 or said.strip(), "exit status 2 without a word"
    assert "Traceback" not in said, "a traceback on standard error"


def _load(folder: Path) -> None:
    load_config(folder)
    load_model(folder)


def _book_lost() -> str | None:
    book = Path("book.txt")
    return None if book.is_file() and book.read_text() == BOOK else "a file was lost"


def _copy(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(source, target))


def _hostile_argument(chance: Random):
    if chance.random() < 0.4:
        return chance.choice(VALUES)
    shape = chance.choice([(), (0,), (5,), (2, 5), (2, 4), (2, 6), (5, 2), (1, 2, 5), (2, 0), (0, 5), (3, 5)])
    values = chance.choice(
        [torch.zeros(shape), torch.ones(shape) * torch.nan, torch.full(shape, -1), torch.full(shape, 10**9)]
    )
    return values.to(chance.choice([torch.long, torch.int32, torch.float32, torch.bool, torch.float64, torch.uint8]))
