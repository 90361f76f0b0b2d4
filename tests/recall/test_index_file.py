"""An index is opened as it was saved, and other files are refused."""

import pytest
import torch

import tessera.recall
from tessera.base.errors import TesseraError
from tests.recall.test_recall import near_a_plane, random

pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.mark.parametrize("with_documents", [False, True])
def test_an_index_is_opened_as_it_was_saved(with_documents, tmp_path):
    keys, values, documents = near_a_plane(2, 1100, 12), random(2, 1100, 3), torch.arange(1100) % 3
    index = tessera.recall.build(keys, values, documents if with_documents else None)
    index = index.delete(torch.tensor([5, 700])) if with_documents else index
    tessera.recall.save(index, tmp_path / "my.index")
    opened = tessera.recall.open(tmp_path / "my.index", verify=True)
    asked = {"kernel": "sparsemax", "slope": 100.0}
    asked |= {"query_documents": torch.tensor([0, 1])} if with_documents else {}
    ours, theirs = (each.recall(keys[:, 5:7], **asked) for each in (opened, index))
    torch.testing.assert_close(ours.output, theirs.output, rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.certificate.pairs_read, theirs.certificate.pairs_read)
    assert ours.certificate.is_exact
    assert opened.filed == index.filed > 0
    assert opened.kept is index.kept is None or torch.equal(opened.kept, index.kept)
    longer = opened.append(
        keys[:, :600], values[:, :600], torch.zeros(600, dtype=torch.long) if with_documents else None
    )
    assert (len(longer), len(opened)) == (1700, 1100), "what was opened stays as it is"


def test_keys_that_are_their_own_values_are_saved(tmp_path):
    keys = torch.randn(1, 40, 4, generator=torch.Generator().manual_seed(0))
    tessera.recall.save(tessera.recall.build(keys, keys), tmp_path / "a.index")
    opened = tessera.recall.open(tmp_path / "a.index", verify=True)
    assert torch.equal(opened.pairs.keys[0], keys)
    assert torch.equal(opened.pairs.values[0], keys)


def test_files_that_are_no_index_are_refused(tmp_path):
    from safetensors import safe_open
    from safetensors.torch import save_file

    path = tmp_path / "my.index"
    tessera.recall.save(tessera.recall.build(near_a_plane(1, 600, 12), random(1, 600, 3)), path)
    with safe_open(path, framework="pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118

    def refused(message, *, tensors=tensors, metadata=metadata, **options):
        save_file(tensors, tmp_path / "other.index", metadata=metadata)
        with pytest.raises(TesseraError, match=message):
            tessera.recall.open(tmp_path / "other.index", **options)

    refused("which was changed", tensors=tensors | {"values": tensors["values"] + 1}, verify=True)
    refused("must be a saved index", tensors=tensors | {"values": tensors["values"][:, :, 1:].clone()})
    refused("must be a saved index", tensors=tensors | {"blocks.0.low": tensors["blocks.0.low"][:, :, 1:].clone()})
    refused("must be a saved index", tensors={name: x for name, x in tensors.items() if name != "blocks.0.high"})
    refused("must be a saved index", metadata={"format": "pt"})
    refused("version 2; got 1. Build", metadata={"tessera_index": '{"version": 1, "filed": 512}'})
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(TesseraError, match="must be a saved index"):
        tessera.recall.open(path)
    with pytest.raises(TesseraError, match="does not exist"):
        tessera.recall.open(tmp_path / "none.index")
