"""A memory beside a decoder: what it may see, what it does to calls, and what it refuses."""

import pytest
import torch
import transformers as hf

import tessera
from tessera.recall.token_memory import TokenMemory
from tests.models.armt.bases import BASES, GROUPED, ROTARY
from tests.refusals import refused

MODELS = ("llama", "gpt2", "memory_mosaic")
llama = BASES["llama"]


@pytest.mark.parametrize("family", MODELS)
def test_reads_predicts_and_goes(family):
    model = BASES[family]().eval()
    ids = torch.randperm(60).repeat(5)
    with torch.no_grad():
        before = model(ids[None, :64], labels=ids[None, :64])
        attached = tessera.attach(model, window=64, kernel="biweight")
        assert torch.equal(model(ids[None, :64]).logits, before.logits)  # nothing was read yet
        assert len(attached.read(ids).memory) == len(ids) - 1
        with_memory = model(ids[None, :64], labels=ids[None, :64])
        prompt = ids[None, :30]
        said = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, do_sample=False)
        attached.detach()
        after = model(ids[None, :64], labels=ids[None, :64])
    assert torch.equal(after.logits, before.logits)
    assert with_memory.loss < before.loss - 0.5
    assert said[0, 30:].tolist() == ids[30:38].tolist()


def test_a_token_is_predicted_before_it_is_stored(monkeypatch):
    seen, fitted = [], TokenMemory.fitted

    def watched(memory, hidden, tokens, own):
        seen.append((len(memory), tokens))
        return fitted(memory, hidden, tokens, own)

    monkeypatch.setattr(TokenMemory, "fitted", watched)
    ids = torch.randint(0, 50, (150,))
    tessera.attach(llama().eval(), window=32).read(ids)
    assert torch.equal(torch.cat([tokens for _, tokens in seen]), ids[1:])  # each once, windows overlap or not
    assert [size for size, _ in seen] == [sum(len(t) for _, t in seen[:i]) for i in range(len(seen))]


def test_a_memory_of_another_model_is_refused():
    model, other, ids = llama().eval(), llama().eval(), torch.arange(50).repeat(3)
    memory = tessera.attach(model, window=32).read(ids).memory
    beside_another = tessera.attach(other, memory=memory).model
    refused("memory must be of this model; got one of other weights", beside_another, ids[None])
    again = tessera.attach(model, memory=memory)
    with torch.no_grad():
        model(ids[None])
        model.model.layers[0].mlp.up_proj.weight.mul_(2)
        refused("other weights", model, ids[None])
    again.detach()


def test_a_memory_keeps_its_own_kernel_and_bounds():
    """Others that were given beside it counted for nothing."""
    model, ids = llama().eval(), torch.arange(50).repeat(3)
    with tessera.attach(model, window=32, kernel="biweight", budget=40) as attached:
        memory = attached.read(ids).memory
    for other in ({"kernel": "sparsemax"}, {"budget": 30}, {"eviction": "random"}):
        (name,) = other
        refused(
            f"attach: {name} must be left out with memory, which has its own",
            tessera.attach,
            model,
            memory=memory,
            **other,
        )
    with tessera.attach(model, window=32, kernel="biweight", memory=memory, budget=40) as again:
        assert again.memory is memory
    refused("be attached to the output layer while it reads; got a detached one", again.read, ids)


def test_mistakes_are_one_line_and_leave_no_hook():
    bert = hf.BertLMHeadModel(hf.BertConfig(**ROTARY))
    refused("attach: the model must see no later token", tessera.attach, bert)
    capped = hf.Gemma2Config(**GROUPED, final_logit_softcapping=5.0)
    wrapped = tessera.wrap(llama(), segment_size=16, num_memory_tokens=2, memory_dim=4)
    for model in (hf.Gemma2ForCausalLM(capped), wrapped):
        refused("unchanged", tessera.attach, model)
        assert not model.get_output_embeddings()._forward_hooks
    refused("Did you mean 'oldest'", tessera.attach, llama(), budget=3, eviction="odlest")
    refused("tokenizer", tessera.attach(llama()).read, "text")
    for wrong in (torch.zeros(1, 4), [False], ["a", "b"], None):
        refused("token ids", tessera.attach(llama()).read, wrong)
    for length in (0, 1, 2):
        ids = torch.arange(length)
        assert len(tessera.attach(llama()).read(ids).memory) == max(0, length - 1)


@pytest.mark.parametrize("wrong", [60, -1])
@pytest.mark.parametrize("place", [0, 20, 99])  # the last is predicted and never read
@pytest.mark.parametrize("family", MODELS)
def test_tokens_beyond_the_vocabulary_are_refused_before_any_is_read(family, place, wrong):
    model, ids = BASES[family](), torch.arange(100) % 60
    ids[place] = wrong
    with tessera.attach(model, window=16) as attached:
        values = f"values from {min(wrong, 0)} to {max(wrong, 59)}"
        refused(rf"attach: token ids must lie in 0\.\.59.*got {values}", attached.read, ids)
        assert len(attached.memory) == 0
        assert len(attached.read((torch.arange(100) % 60).short()).memory) == 99
