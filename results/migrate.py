"""Bring stored results up to the names that the code reads today: `python results/migrate.py [FOLDER]`.

Each rule changes the content of one file in place; applied twice it changes nothing. A file that no rule changes is
not written.
"""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from tessera.evaluation.provenance import command_line
from tessera.base.files import write_text_atomically


def halve_distances(stored: dict[str, Any]) -> None:
    """RegBench reported `l1` beside the papers' TVD, which is half of it: `tvd` and `last_tvd` are left."""
    if stored.get("header", {}).get("experiment") != "regbench":
        return
    for run in stored["runs"].values():
        for scores in (run["outcome"]["held_out"], run["outcome"].get("in_distribution")):
            for prefix in ("", "last_"):
                if scores and (distance := scores.pop(f"{prefix}l1", None)):
                    halved = {name: distance[name] / 2 for name in ("mean", "standard_error")}
                    scores[f"{prefix}tvd"] = {**distance, **halved}


# Fields of configurations that took the names of recipes and of Hugging Face.
RENAMED = {
    "batch": "batch_size",
    "check_every": "evaluate_every",
    "clip_norm": "clip",
    "heads": "num_heads",
    "layers": "num_layers",
    "memory_tokens": "num_memory_tokens",
    "memory_width": "memory_dim",
    "scalar_scale": "scalar_learning_rate_scale",
    "slots": "num_persistent_slots",
    "start": "initializer_range",
    "warmup": "warmup_ratio",
    "width": "hidden_size",
}


def rename_fields(stored: dict[str, Any]) -> None:
    """The configurations of every experiment's runs use one vocabulary."""
    if "experiment" not in stored.get("header", {}):
        return
    for run in stored["runs"].values():
        if "configuration" in run:
            run["configuration"] = _renamed(run["configuration"])


def _renamed(value: Any) -> Any:
    if isinstance(value, dict):
        return {RENAMED.get(name, name): _renamed(item) for name, item in value.items()}
    return [_renamed(item) for item in value] if isinstance(value, list) else value


def complete_sizes(stored: dict[str, Any]) -> None:
    """The sizes of associative retrieval's models are all fields of `ModelSize`."""
    if stored.get("header", {}).get("experiment") != "associative_retrieval":
        return
    for run in stored["runs"].values():
        run["configuration"]["sizes"].setdefault("kernel", "gaussian")
        run["configuration"]["sizes"].setdefault("num_persistent_slots", None)


def type_regbench(stored: dict[str, Any]) -> None:
    """RegBench's configurations without what its `fit` says, n-gram counts under that name, scores as lists."""
    if stored.get("header", {}).get("experiment") != "regbench":
        return
    for key in list(stored["runs"]):
        run = stored["runs"].pop(key)
        stored["runs"][key.replace("counting, ", "ngram, ")] = run
        settings, outcome = run["configuration"], run["outcome"]
        for name in ("steps", "epochs", "learning_rate", "weight_decay", "scalar_learning_rate_scale", "beta_2", "checks"):
            settings.pop(name, None)
        if "problems" in settings:
            settings["num_problems"] = settings.pop("problems")
        settings.setdefault("symbols", 0)
        settings.setdefault("label", "")
        if settings["model"] == "counting":
            settings |= {"model": "ngram", "fit": None}
            run["outcome"] = outcome = {name: outcome[name] for name in ("parameters", "held_out")}
        for place in ("held_out", "in_distribution"):
            for name, score in (outcome.get(place) or {}).items():
                if isinstance(score, dict):
                    outcome[place][name] = [score["mean"], score["standard_error"], score["count"]]


def type_length_generalization(stored: dict[str, Any]) -> None:
    """Length generalisation's configurations without a nest; a longer training is a variant of its task."""
    if stored.get("header", {}).get("experiment") != "length_generalization":
        return
    for run in stored["runs"].values():
        settings = run["configuration"]
        if "setting" in settings:
            nest = settings.pop("setting")
            settings.pop("model")
            task, _, variant = settings["task"].partition("_")
            settings |= {"task": task, "variant": variant, "task_fields": nest.pop("task"), "fit": nest.pop("options")}
            settings |= nest | {"factors": [float(factor) for factor in nest["factors"]]}


def type_associative_retrieval(stored: dict[str, Any]) -> None:
    """Associative retrieval's configurations say what their numbers count."""
    if stored.get("header", {}).get("experiment") != "associative_retrieval":
        return
    renamed = {"options": "fit", "contexts": "test_contexts", "asked": "test_questions"}
    renamed["check_contexts"] = "validation_contexts"
    for run in stored["runs"].values():
        run["configuration"] = {renamed.get(name, name): value for name, value in run["configuration"].items()}


def type_three_moons(stored: dict[str, Any]) -> None:
    """Three moons' two rounds of training stand side by side, and configurations know the ablations."""
    if stored.get("header", {}).get("experiment") != "three_moons":
        return
    for run in stored["runs"].values():
        settings, outcome = run["configuration"], run["outcome"]
        if "first_round" not in settings:
            names = ("batch_size", "loss_from", "first_step", "fit", "evaluation")
            settings["first_round"] = {name: settings.pop(name) for name in names}
            settings |= {"identity": [], "is_complex": True, "clip": 0.5}
            kept = {name: outcome.pop(name) for name in ("real_parameters", "second_round")}
            run["outcome"] = {"first_round": outcome, **kept}


def state_precision(stored: dict[str, Any]) -> None:
    """The recipe of the stories leaves the precision to the processor; outcomes say which one it was."""
    if stored.get("header", {}).get("experiment") not in ("language_modeling", "out_of_distribution"):
        return
    for run in stored["runs"].values():
        settings = run["configuration"]
        training = settings.get("trained", settings)["recipe"]["training"]
        if training["precision"] == "bf16":
            training["precision"] = "auto"
            run["outcome"] = {"precision": "bf16", **run["outcome"]}


def charge_openings(stored: dict[str, Any]) -> None:
    """BABILong's cost of writes is that of their opening; configurations say how many contexts are read at least.

    `armt_mosaic_gated`, which was trained with another cost, goes; the model with this one takes over its name.
    """
    if stored.get("header", {}).get("experiment") != "babilong":
        return
    renamed = ("armt_mosaic_opening", "armt_mosaic_gated")
    old, stored["runs"] = stored["runs"], {}
    for key, run in old.items():
        settings = run["configuration"]
        if settings["model"] == renamed[1] and "fewest_contexts" not in settings:
            continue
        stored["runs"][key.replace(*renamed)] = run
        settings["model"] = settings["model"].replace(*renamed)
        settings["recipe"]["name"] = settings["recipe"]["name"].replace(*renamed)
        settings.setdefault("fewest_contexts", 4)
        for stage in (*settings["recipe"]["training"]["curriculum"], *run["outcome"]["stages"]):
            stage.pop("write_cost_of", None)


def adjust_models(stored: dict[str, Any]) -> None:
    """Stages say what changes in the model in one map, `from_memory` is a setting of the task, recipes have the seed."""
    if stored.get("header", {}).get("experiment") not in ("associative_retrieval", "babilong"):
        return
    for run in stored["runs"].values():
        settings = run["configuration"]
        if "recipe" in settings:  # which says the seed
            settings.pop("seed", None)
        _adjust_models(settings["curriculum"]["stages"] if "curriculum" in settings else _stages(settings))
        _adjust_models(run["outcome"]["stages"])


def _stages(settings: dict[str, Any]) -> list[dict[str, Any]]:
    return settings["recipe"]["training"]["curriculum"]


def _adjust_models(stages: list[dict[str, Any]]) -> None:
    held = {"gate_penalty": 0.0, "backprop_segments": None, "strength_threshold": None}
    for stage in stages:
        if stage.pop("from_memory", False):
            stage["settings"] = {**stage.get("settings", {}), "from_memory": True}
        new = {"gate_penalty": stage.pop("write_cost", None)}
        new |= {name: stage.pop(name, None) for name in ("backprop_segments", "strength_threshold")}
        changed = {name: value for name, value in new.items() if value is not None and value != held[name]}
        if changed:
            stage["model"] = changed
        held |= changed


def drop_trainer(stored: Any) -> None:
    """Recipes have no settings for transformers' Trainer, which trains them no more; none were stored."""
    for value in stored.values() if isinstance(stored, dict) else stored if isinstance(stored, list) else ():
        drop_trainer(value)
    if isinstance(stored, dict) and "batch_size" in stored and stored.get("trainer") == {}:
        del stored["trainer"]


def strip_folders(stored: Any) -> None:
    """Commands name no folders of the machine that ran them."""
    for value in stored.values() if isinstance(stored, dict) else stored if isinstance(stored, list) else ():
        strip_folders(value)
    if isinstance(stored, dict) and isinstance(stored.get("command"), str):
        stored["command"] = command_line(shlex.split(stored["command"]))


# Fields that had one value in all records: those of budgets that never ran, and what the models take anyway.
DROPPED = {
    "associative_retrieval": ("ablation", "end_token"),
    "length_generalization": ("precision", "dropout", "contextual_dropout", "initialization"),
    "many_shot": ("initialization",),
    "regbench": ("initialization",),
}


def drop_fields(stored: dict[str, Any]) -> None:
    """Configurations are without the fields of published settings that were never trained."""
    experiment = stored.get("header", {}).get("experiment")
    for run in stored["runs"].values() if experiment in DROPPED else ():
        for name in DROPPED[experiment]:
            run["configuration"].pop(name, None)


# Bits per byte of ARMT on language: tokens per byte of the tested texts, and of the whole stores, by which they were.
TOKENS_PER_BYTE = {
    "stories": (0.30979048157439143, 0.3067259269534125),
    "novels": (0.33760918832097514, 0.3385853904468527),
}


def bytes_of_tested_texts(stored: dict[str, Any]) -> None:
    """ARMT on language divides by the bytes of the texts that it tests; records say the ratio."""
    if stored.get("header", {}).get("experiment") != "armt_language":
        return
    for run in stored["runs"].values():
        outcome = run["outcome"]
        if "tokens_per_byte" not in outcome:
            outcome["tokens_per_byte"] = {text: ratios[0] for text, ratios in TOKENS_PER_BYTE.items()}
            for text, (tested, whole) in TOKENS_PER_BYTE.items():
                for reading, rows in outcome["bits_per_byte"][text].items():
                    scaled = [[round(bits * tested / whole, 4) for bits in row] for row in rows]
                    outcome["bits_per_byte"][text][reading] = scaled


def drop_bits_per_byte(stored: dict[str, Any]) -> None:
    """Language models have their loss in nats per token; their bits were by the bytes of whole texts, and in no table."""
    if stored.get("header", {}).get("experiment") not in ("language_modeling", "out_of_distribution"):
        return
    for run in stored["runs"].values():
        run["outcome"].pop("bits_per_byte", None)


RULES = (
    drop_bits_per_byte,
    bytes_of_tested_texts,
    halve_distances,
    rename_fields,
    complete_sizes,
    type_regbench,
    type_length_generalization,
    type_associative_retrieval,
    type_three_moons,
    state_precision,
    charge_openings,
    adjust_models,
    drop_trainer,
    strip_folders,
    drop_fields,
)


def migrate(folder: Path) -> list[Path]:
    """Apply every rule to every results file under `folder`; returns the files that changed."""
    changed = []
    for path in sorted(folder.glob("*/*.json")):
        text = path.read_text(encoding="utf-8")
        stored = json.loads(text)
        for rule in RULES:
            rule(stored)
        new = json.dumps(stored, indent=1, allow_nan=False) + "\n"
        if new != text:
            write_text_atomically(path, new)
            changed.append(path)
    return changed


if __name__ == "__main__":
    for path in migrate(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent):
        print(f"migrated {path}")
