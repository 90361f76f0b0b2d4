"""A pretrained model from a package, unpacked where it is asked for."""

from tessera.interop import smollm2
from tests.models.armt.bases import BASES
from tests.refusals import refused


def test_smollm2_is_unpacked_on_demand_only(tmp_path, monkeypatch):
    monkeypatch.setattr(smollm2.constants, "HF_HOME", str(tmp_path))
    monkeypatch.setattr(smollm2, "PACKAGE", "no_such_package")
    refused("pip install", smollm2.get)
    assert not list(tmp_path.iterdir())
    folder = smollm2.cached_folder()
    assert tmp_path in folder.parents
    folder.mkdir(parents=True)
    (folder / "model.safetensors").touch()
    assert smollm2.get() == folder  # there already
    other = tmp_path / "other"
    BASES["llama"]().save_pretrained(other)
    refused("--output must be new or hold smollm2; got .*, which holds another model", smollm2.get, other)
