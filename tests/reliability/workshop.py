"""What the harness works on: a text, a recipe of a second, a trained model, a model with a memory, a stored memory."""

import os
from dataclasses import dataclass
from pathlib import Path

import yaml

RECIPE = {
    "name": "tiny",
    "model": {"type": "memory_mosaic", "hidden_size": 8, "num_layers": 1, "num_heads": 2, "num_persistent_slots": 4},
    "tokenizer": {"type": "byte"},
    "data": {"context": 8, "validation_fraction": 0.2},
    "training": {
        "steps": 4,
        "batch_size": 2,
        "warmup_steps": 1,
        "precision": "fp32",
        "log_every": 1,
        "evaluate_every": 2,
        "evaluate_sequences": 2,
        "checkpoint_every": 2,
        "keep_checkpoints": 2,
    },
}


@dataclass(frozen=True)
class Workshop:
    """Paths of everything; nothing in here is changed by the harness, which works on copies."""

    folder: Path

    @property
    def text(self) -> Path:
        return self.folder / "text.txt"

    @property
    def recipe(self) -> Path:
        return self.folder / "tiny.yaml"

    @property
    def run(self) -> Path:
        return self.folder / "runs" / "done"

    @property
    def segmented(self) -> Path:
        return self.folder / "armt"

    @property
    def memory(self) -> Path:
        return self.folder / "memory"


def make_workshop(folder: Path) -> Workshop:
    """Train, wrap, memorize: about a second."""
    import tessera.armt as armt
    from tessera.models.saving.loading import load_model, load_tokenizer
    from tessera.recipes.recipe import read_recipe
    from tessera.training.run import train

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    shop = Workshop(folder)
    folder.mkdir(parents=True, exist_ok=True)
    shop.text.write_text("Once there were kings, and some of them were wise.\n" * 20)
    recipe = {**RECIPE, "data": {**RECIPE["data"], "source": str(shop.text)}}
    shop.recipe.write_text(yaml.safe_dump(recipe))
    train(read_recipe(shop.recipe), shop.run, progress=False)
    model = armt.wrap(load_model(shop.run), segment_size=8, num_memory_tokens=2, memory_dim=4)
    model.save_pretrained(shop.segmented)
    load_tokenizer(shop.run).save_pretrained(shop.segmented)
    model.empty_memory(1).save(shop.memory)
    return shop
