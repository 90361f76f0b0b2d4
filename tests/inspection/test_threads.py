"""Looking into a model while other threads use it, as in a server: neither sees the other."""

import threading

import pytest
import torch

import tessera
from tessera.data.tokenizers import byte_tokenizer
from tessera.inspection import Removal, find_sites, loss_of, trace
from tessera.inspection.attention_weights import intercepted_attention
from tessera.inspection.recall import recall_weights
from tests.inspection.models import IDS, build, gpt2, v1, v2

OTHER = IDS.flip(1)[:, :11]


def armt():
    base = build(gpt2(), scale=0.5)
    return tessera.wrap(base, segment_size=8, num_memory_tokens=2, memory_dim=4).eval()


def recalled(model):
    return [recall.weights for recall in recall_weights(model, IDS, [3, 20])]


def without_a_memory(model):
    return [loss_of(model, IDS, Removal(find_sites(model)[0]))]


def without_a_head(model):
    return [loss_of(model, IDS, Removal(find_sites(model)[0], head=1))]


def traced(model):
    memories = trace(model, IDS).memories
    return [value for memory in memories for value in vars(memory).values() if isinstance(value, torch.Tensor)]


def all_weights(model):
    return list(model(IDS, output_attentions=True).attentions)


def attached(model):
    with tessera.attach(model, kernel="biweight", window=16) as attached:
        memory = attached.read(IDS[0]).memory
    return [memory.index.pairs.keys, memory.index.pairs.values, memory.mixture.losses]


CASES = [(kind, look) for kind in (v1, v2) for look in (recalled, without_a_memory, without_a_head, traced)]
CASES += [(v1, all_weights), (gpt2, recalled), (gpt2, without_a_memory), (armt, traced)]


@pytest.mark.parametrize(("kind", "look"), [*CASES, (gpt2, attached)])
def test_another_thread_asks_the_model_meanwhile(kind, look):
    model = kind() if kind is armt else build(kind(), scale=0.5)
    with torch.no_grad():
        seen, answered = look(model), model(OTHER).logits
    looking, meanwhile = threading.get_ident(), []

    @torch.no_grad()
    def ask():
        meanwhile.append(model(OTHER).logits)

    def interrupt(*call):
        if threading.get_ident() == looking:
            other = threading.Thread(target=ask)
            other.start()
            other.join()

    last_layer = model.get_input_embeddings() if kind is armt else _last_layer(model)
    with torch.no_grad(), last_layer.register_forward_pre_hook(interrupt):
        again = look(model)
    assert meanwhile, "nobody asked"
    for logits in meanwhile:
        if look is not attached:  # where the memory stands beside the model for all
            assert torch.equal(logits, answered)
    for one, other in zip(seen, again, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_citations_of_questions_that_are_asked_at_the_same_time():
    tokenizer = byte_tokenizer()
    model = build(v1(vocab_size=len(tokenizer)), scale=0.5)
    text = "The king lives in Rome. The queen lives in Bonn. The cook lives in Oslo."
    memory, fresh = (tessera.Memory(model, tokenizer).read(text) for _ in range(2))  # one that was never asked
    questions = [f"Where is {who}?" for who in ("the king", "the queen", "the cook", "nobody")]

    def cited(memory, question):
        return memory.ask(question, cite=2, max_new_tokens=3).citations

    expected, got = [cited(memory, question) for question in questions], {}
    start = threading.Barrier(len(questions))

    def ask(question):
        start.wait()
        got[question] = [cited(fresh, question) for _ in range(3)]

    threads = [threading.Thread(target=ask, args=(question,)) for question in questions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {question: [citations] * 3 for question, citations in zip(questions, expected)}


def test_two_threads_that_look_into_one_transformer():
    """The first to begin ends while the other looks on: its attention is still watched, and put back in the end."""
    model = build(gpt2(), scale=0.5)
    before, expected = model.config._attn_implementation, recalled(model)
    has_begun, may_end, got = threading.Event(), threading.Event(), []

    def wait(*call):
        has_begun.set()
        may_end.wait(30)

    def look_first():
        with torch.no_grad(), intercepted_attention(model, lambda *call: call[-1]):
            wait()

    def look_on(*call):
        if not may_end.is_set():
            may_end.set()
            first.join()

    first = threading.Thread(target=look_first)
    first.start()
    has_begun.wait(30)
    with _last_layer(model).register_forward_pre_hook(look_on):
        got = recalled(model)
    assert may_end.is_set()
    assert model.config._attn_implementation == before
    for one, other in zip(expected, got, strict=True):
        assert torch.equal(one, other)


def _last_layer(model):
    layers = getattr(model.base_model, "layers", None)
    return (model.transformer.h if layers is None else layers)[-1]
