"""Every family of transformers that the page names: an untrained memory adds nothing, generation is reading."""

from pathlib import Path

import pytest
import torch

import tessera.armt as armt
from tests.models.armt.bases import tokens
from tests.models.armt.families import FAMILIES, READERS, tiny

PAGE = Path(__file__).parents[3] / "docs" / "armt.md"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # transformers' words on its own configurations
@pytest.mark.parametrize("family", [*FAMILIES, *READERS])
@torch.no_grad()
def test_a_family(family):
    base, ids = tiny(family), 2 + tokens(2, 20, 58)
    expected = torch.cat([base(part).logits for part in ids.split(8, 1)], 1)
    model = armt.wrap(base, segment_size=8, num_memory_tokens=3, memory_dim=4).eval()
    torch.testing.assert_close(model(ids).logits, expected, rtol=1e-4, atol=1e-4)  # float32 sums
    if family in READERS:
        return
    for parameter in model.memories.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    text = prompt = ids[:1, :5]
    made = model.generate(prompt, attention_mask=prompt > 0, max_new_tokens=9, do_sample=False, pad_token_id=0)
    while text.shape[1] < made.shape[1]:
        text = torch.cat([text, model(text).logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(made, text)


@pytest.mark.filterwarnings("ignore")  # transformers' and PEFT's words
@pytest.mark.parametrize("family", ["bert", "mamba", "mpt", "phi3", "rwkv"])
def test_an_adapter_goes_on_what_no_user_named(family):
    peft = pytest.importorskip("peft")
    model = armt.wrap(tiny(family), segment_size=8, num_memory_tokens=3, memory_dim=4)
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM"))
    layers = [name for name, _ in adapted.named_modules() if name.endswith(".lora_A")]
    assert layers
    assert not [name for name in layers if ".memories." in name]


def test_the_page_names_them_all():
    page = PAGE.read_text(encoding="utf-8")
    assert f"{len(FAMILIES)} families" in page
    assert [name for name in (*FAMILIES, *READERS) if f"`{name}`" not in page] == []
