"""What the tests here work on, and how much: a sample with `make test`, everything with `make torture` (TORTURE=50)."""

import os
import resource
from collections import Counter
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, settings

import tessera
from tessera.memory_files import Memory
from tessera.models.saving.loading import load_model, load_tokenizer
from tessera.recipes.recipe import read_recipe
from tessera.training.run import train
from tests.training.conftest import TINY

FACTOR = int(os.environ.get("TORTURE", "0"))
TORTURE = FACTOR > 0
# A sample is the same each time; a torture looks elsewhere each time, and hypothesis keeps what it found.
settings.register_profile(
    "reliability",
    deadline=None,
    derandomize=not TORTURE,
    database=None if not TORTURE else settings.default.database,
    suppress_health_check=list(HealthCheck),
)
if TORTURE:  # a huge number must not take the machine's memory
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))
SHORT = {"steps": 4, "batch_size": 2, "warmup_steps": 1, "evaluate_every": 2, "evaluate_sequences": 2}
RECIPE = {**TINY, "training": {**TINY["training"], **SHORT, "keep_checkpoints": 2}}
TRIED: Counter[str] = Counter()


def tried(what: str = "") -> None:
    """Count one input: a row of the table that a torture prints. `what`: beside the name of the test."""
    test = os.environ["PYTEST_CURRENT_TEST"].split("::")[1].split(" (")[0].split("[")[0]
    TRIED[test.removeprefix("test_").replace("_", " ") + (f": {what}" if what else "")] += 1


def pytest_terminal_summary(terminalreporter):
    """The table of docs/reliability.md."""
    if TORTURE and TRIED:
        rows = [f"| {what} | {count:,} |" for what, count in [*sorted(TRIED.items()), ("all", TRIED.total())]]
        terminalreporter.write("\n".join(["", "| what | tried |", "|---|---|", *rows, ""]))


def examples(count: int):
    """TORTURE times so many examples of a test; half of so many in a sample."""
    return settings(settings.get_profile("reliability"), max_examples=count * FACTOR or max(2, count // 2))


class Workshop:
    """A text, a recipe of a second, a trained model, a model with a memory, stored memories: tests work on copies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.text, self.recipe = folder / "text.txt", folder / "tiny.yaml"
        self.run, self.segmented, self.memory = folder / "runs" / "done", folder / "armt", folder / "memory"
        self.kings, self.books = folder / "kings.memory", folder / "books.memory"  # of `run`: one document, and two


@pytest.fixture(scope="session")
def shop(tmp_path_factory) -> Workshop:
    """Train, wrap, memorize: about a second."""
    shop = Workshop(tmp_path_factory.mktemp("workshop"))
    shop.text.write_text("Once there were kings, and some of them were wise.\n" * 20)
    recipe = {**RECIPE, "data": {**RECIPE["data"], "source": str(shop.text)}}
    shop.recipe.write_text(yaml.safe_dump(recipe))
    train(read_recipe(shop.recipe), shop.run, progress=False)
    model = tessera.wrap(load_model(shop.run), segment_size=8, num_memory_tokens=2, memory_dim=4)
    model.save_pretrained(shop.segmented)
    load_tokenizer(shop.run).save_pretrained(shop.segmented)
    model.empty_memory(1).save(shop.memory)
    plain = load_model(shop.run), load_tokenizer(shop.run)
    Memory(*plain).read(["A king. Two kings."], "kings").save(shop.kings)
    Memory(*plain).read(["One queen."], "queen").read(["So they went home."], "home").save(shop.books)
    return shop
