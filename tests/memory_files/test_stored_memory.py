"""The file of a memory: what it may hold, what is refused, and that it and the memory do not disturb each other."""

import copy
import random
from contextlib import suppress

import pytest
import torch

from tessera.base.errors import TesseraError
from tessera.data.tokenizers import byte_tokenizer
from tessera.memory_files import Memory
from tessera.memory_files.document import Document
from tessera.memory_files.storing import made_by
from tessera.models.adjusting import adjust_model
from tessera.models.saving import state_file
from tessera.models.saving.state_file import StateFile, save_values
from tests.memory_files.models import make
from tests.memory_files.texts import TEXTS, memory, same
from tests.models.armt.bases import make as wrapped
from tests.refusals import refused


def test_files_that_are_no_memory_of_this_model(tmp_path):
    model, path = make("v2"), tmp_path / "memory"
    memory(model, "kings", "queen").save(path)

    def load(model=model, tokenizer=None, path=path):
        loaded = Memory(model, tokenizer or byte_tokenizer()).load(path)
        loaded.verify()
        return loaded

    load()
    other = copy.deepcopy(model)
    other.lm_head.weight.data[0, 0] += 1e-3
    refused("one that this model read; got .*, of other weights. Read", load, other)
    refused("be a stored llama memory; got memory_mosaic_v2 file", load, make("llama"))
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["king"])
    refused("of other tokens", load, tokenizer=tokenizer)
    content, damaged = path.read_bytes(), tmp_path / "damaged"
    chance = random.Random(0)
    for place in [3, 9, *(chance.randrange(len(content)) for _ in range(40))]:
        spoiled = bytearray(content)
        spoiled[place] ^= 1 << chance.randrange(8)
        damaged.write_bytes(bytes(spoiled))
        with suppress(TesseraError):
            assert same(load(path=damaged).state, load().state), "a space of the description"
    for size in (0, 7, 1000, len(content) - 1):
        damaged.write_bytes(content[:size])
        refused("must be a stored memory", load, path=damaged)
    later = StateFile.open(path, "test")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_file, "THIS_VERSION", 3)
        save_values(damaged, later.kind, {"documents": []})
    refused("be a memory of version 2; got '.*damaged', of version 3. Read the text again", load, path=damaged)
    owner = later.content["made_by"]
    for documents in ([{**vars(Document("a", 1, *2 * [torch.zeros(1)])), "later": 1}], [{"name": "a"}], [3]):
        save_values(damaged, later.kind, {"made_by": owner, "documents": documents})
        refused("must be a memory as this release stores it; got '.*damaged'", load, path=damaged)
    save_values(damaged, later.kind, {"made_by": owner})
    refused("must be a memory as this release stores it; got '.*damaged' \\('documents'\\)", load, path=damaged)


def test_a_memory_without_documents_or_model(tmp_path):
    memory(make("v1"), "kings").save(tmp_path / "memory")
    assert Memory().described() == "0 tokens in 0 documents"
    for mistake in (
        lambda: Memory().load(tmp_path / "memory").merge(Memory()),
        lambda: Memory().merge(Memory().load(tmp_path / "memory")),
        lambda: Memory().save(tmp_path / "other"),
    ):
        refused("the model must be given; got none. It says whose memory this is", mistake)


def test_a_state_without_its_tokens_goes_on_and_is_not_merged_behind_others(tmp_path):
    model = make("armt")
    memory(model, "queen").state.save(tmp_path / "state")
    alone = Memory(model, byte_tokenizer()).load(tmp_path / "state")
    with pytest.raises(TesseraError, match="merge: the tokens of every document must be kept; got none of the first"):
        memory(model, "kings").merge(alone)
    assert same(alone.merge(memory(model, "kings")).state, memory(model, "queen", "kings").state)


def test_opening_a_file_reads_its_description_alone(tmp_path):
    """However long its documents are: what is spoiled in their pairs shows when they are needed."""
    model, path = make("v1"), tmp_path / "memory"
    memory(model, *TEXTS).save(path)
    content = bytearray(path.read_bytes())
    content[-100:] = bytes(100)  # the last tensor's
    path.write_bytes(content)
    opened = Memory(model, byte_tokenizer()).load(path)
    assert opened.names == list(TEXTS)
    refused("changed", opened.verify)


def test_a_link_to_a_memory_stays_one(tmp_path):
    """`memorize --append` put a file in the place of the link, and what it led to stayed as it was."""
    model, place, link = make("v1"), tmp_path / "disk" / "memory", tmp_path / "link"
    place.parent.mkdir()
    memory(model, "kings").save(place)
    link.symlink_to(place)
    Memory(model, byte_tokenizer()).load(link).read(TEXTS["queen"], "queen").save(link)
    assert link.is_symlink()
    assert Memory().load(place).names == ["kings", "queen"]
    assert [path.name for path in place.parent.iterdir()] == ["memory"]


def test_what_was_merged_does_not_change_with_its_file(tmp_path):
    """It was mapped from there: the process died where the file was written over in place."""
    model = make("v1")
    memory(model, "queen", "home").save(tmp_path / "memory")
    merged = memory(model, "kings").merge(Memory(model, byte_tokenizer()).load(tmp_path / "memory"))
    content = (tmp_path / "memory").read_bytes()
    with open(tmp_path / "memory", "r+b") as file:
        file.write(b"\xff" * len(content))
    assert same(merged.state, memory(model, *TEXTS).state)


def test_tokens_of_a_file_stay_on_the_cpu(tmp_path, monkeypatch):
    """Of a model on a GPU they went there with the state, where `cite` and `read` met them with others of the CPU."""

    class OnGPU(torch.Tensor):
        def cpu(self):
            return self.as_subclass(torch.Tensor)

    memory(make("v1"), "kings").save(tmp_path / "memory")
    values = StateFile.tensors
    moved = {"meta": OnGPU, "cpu": torch.Tensor}
    monkeypatch.setattr(
        StateFile,
        "tensors",
        lambda file, device="cpu": {name: x.as_subclass(moved[str(device)]) for name, x in values(file).items()},
    )
    model = make("v1")
    loaded = Memory(model, byte_tokenizer()).load(tmp_path / "memory")
    monkeypatch.setattr(type(model), "device", torch.device("meta"))
    loaded.verify()
    (document,) = loaded.documents
    assert isinstance(document.state.layers[0][0].pending_key, OnGPU)
    assert not isinstance(document.tokens, OnGPU)
    assert not isinstance(document.widths, OnGPU)


@pytest.mark.parametrize(
    ("kind", "part", "name", "others"),
    [
        ("v1", "model", "inverse_bandwidth_scale", {"inverse_bandwidth_scale": 2.0}),
        ("v2", "model", "use_long_term_memory", {"use_long_term_memory": False}),
        ("armt", "model", "segment_end_ids", {"segment_end_ids": [1], "segment_end_window": 4}),
        ("armt around a mosaic", "base", "inverse_bandwidth_scale", {"inverse_bandwidth_scale": 2.0}),
    ],
)
def test_memories_of_releases_without_a_setting_stay_and_those_of_another_are_refused(
    kind, part, name, others, monkeypatch
):
    """An earlier release wrote the digest of the settings that it knew."""
    model = wrapped("armt", "memory_mosaic") if kind == "armt around a mosaic" else make(kind)

    def known(settings):
        own = {key: value for key, value in settings.items() if key != name}
        return {key: known(value) if isinstance(value, dict) else value for key, value in own.items()}

    adjusted = copy.deepcopy(model)
    adjust_model(adjusted.base if part == "base" else adjusted, others)
    digest, changed = (made_by(each, byte_tokenizer())["settings"] for each in (model, adjusted))
    assert digest != changed
    earlier = known(model.config.to_dict())
    monkeypatch.setattr(type(model.config), "to_dict", lambda config: copy.deepcopy(earlier))
    assert made_by(model, byte_tokenizer())["settings"] == digest
